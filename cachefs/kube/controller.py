"""The controller: what its watches see becomes due, and is handled.

A handler reads the current state and ignores the content of an event. So events may arrive twice,
late, or be lost while nothing watches: the controller also checks objects from time to time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from cachefs.core.errors import NotFound, Stale
from cachefs.kube import dataset as datasets
from cachefs.kube import gates, volumes
from cachefs.kube.api import KubeApi
from cachefs.kube.claim_handler import ClaimHandler
from cachefs.kube.dataset import Dataset
from cachefs.kube.dataset_handler import DatasetHandler
from cachefs.kube.facts import Facts
from cachefs.kube.handling import Handling
from cachefs.kube.known import Datasets, Pods
from cachefs.kube.late_reports import LateReports
from cachefs.kube.master_calls import MasterCalls
from cachefs.kube.master_view import MasterView
from cachefs.kube.names import OWNER, Key, Object, key_of
from cachefs.kube.pod_handler import PodHandler
from cachefs.kube.readings import AGAIN_S, Readings
from cachefs.kube.reporter import Reporter
from cachefs.kube.spec import OperatorSpec
from cachefs.kube.steps import Measured
from cachefs.kube.use_round import UseRound
from cachefs.kube.work_queue import Item

DELETED: Final = "DELETED"  # of a watch
DATASET, POD, CLAIM, VOLUME = "Dataset", "Pod", "PersistentVolumeClaim", "PersistentVolume"
DATASET_SLOTS: Final = 1000  # most wait for an origin
POD_SLOTS: Final = 12
CLAIM_SLOTS: Final = 8


class Controller:
    """The controller of one leader. Belongs to one event loop."""

    def __init__(
        self,
        api: KubeApi,
        master: MasterCalls,
        spec: OperatorSpec,
        facts: Facts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._rules = spec.rules
        self._facts = facts
        self._clock = clock
        self._datasets = Datasets()
        self._pods = Pods()
        self._readings = Readings()
        self._with_other_objects: set[Key] = set()  # Datasets whose volume or claim has changed
        self._measurements: dict[Key, Measured] = {}  # not handled yet
        self._view = MasterView(master, self._master_changed)
        self._use_round = UseRound(
            master, lambda: [*self._datasets.by_key.values()], self._measured, clock
        )
        self._dataset_handler = DatasetHandler(
            api, master, self._view, spec.rules, spec.address, self._kept, self._dropped, clock
        )
        self._reports = LateReports(Reporter(api))
        self._pod_handler = PodHandler(api, self._pods, self._datasets, facts, self._reports, clock)
        self._claim_handler = ClaimHandler(api, facts)
        self._handled_datasets = Handling(self._handle_dataset, DATASET_SLOTS, facts, clock)
        self._handled_pods = Handling(self._handle_pod, POD_SLOTS, facts, clock)
        self._handled_claims = Handling(self._handle_claim, CLAIM_SLOTS, facts, clock)

    async def prime(self) -> None:
        """Reads all Datasets, so that no pod seems to name one that is not there. Raises the errors
        of the API server."""
        async for thing in self._api.list(DATASET):
            self.saw_dataset("ADDED", thing)

    async def run(self) -> None:
        """Handles what is due. Ends as `Handling.run`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._view.run())
            group.create_task(self._use_round.run())
            group.create_task(self._reports.run())
            for handling in (self._handled_datasets, self._handled_pods, self._handled_claims):
                group.create_task(handling.run())

    def saw_dataset(self, change: str | None, thing: Object) -> None:
        if change == DELETED:
            self._gone(key_of(thing), thing["metadata"]["uid"])
            return
        dataset = datasets.parse(thing, self._rules)
        if self._datasets.put(dataset):
            self._add_pods_of(dataset.key)
        self._add_dataset(dataset.key)

    def saw_pod(self, change: str | None, thing: Object) -> None:
        pod = None if change == DELETED else gates.parse(thing)
        if pod is None:
            self._pods.drop(key_of(thing), thing["metadata"]["uid"])
        else:
            self._pods.put(pod, self._clock())
            self._handled_pods.add(Item(POD, *pod.key))
        self._facts.waiting_pods = len(self._pods)

    def saw_claim(self, change: str | None, thing: Object) -> None:
        self._saw_object_of(thing, key_of(thing))
        if change != DELETED and volumes.is_ours(thing):
            self._handled_claims.add(Item(CLAIM, *key_of(thing)))

    def saw_volume(self, change: str | None, thing: Object) -> None:
        claim = (thing.get("spec") or {}).get("claimRef") or {}
        self._saw_object_of(thing, (claim.get("namespace", ""), claim.get("name", "")))
        if change != DELETED and volumes.is_released(thing):
            self._handled_claims.add(Item(VOLUME, *key_of(thing)))

    def _saw_object_of(self, thing: Object, key: Key) -> None:
        """Makes the Dataset due whose volume or claim has changed."""
        known = self._datasets.by_key.get(key)
        owner = (thing["metadata"].get("labels") or {}).get(OWNER)
        if known is not None and owner == known.uid:
            self._with_other_objects.add(key)
            self._add_dataset(key)

    def _add_dataset(self, key: Key) -> None:
        self._handled_datasets.add(Item(DATASET, *key))
        self._count()

    def _add_pods_of(self, key: Key) -> None:
        for pod in self._pods.waiting_for(key):
            self._handled_pods.add(Item(POD, *pod.key))

    def _kept(self, dataset: Dataset) -> None:
        if self._datasets.replace(dataset):
            self._add_pods_of(dataset.key)
        self._count()

    def _dropped(self, dataset: Dataset) -> None:
        self._gone(dataset.key, dataset.uid)

    def _gone(self, key: Key, uid: str) -> None:
        if self._datasets.drop(key, uid):
            self._dataset_handler.forget(key)
            self._readings.drop(key)
            self._with_other_objects.discard(key)
            self._measurements.pop(key, None)
            self._add_pods_of(key)
            self._count()

    def _master_changed(self, paths: Iterable[str] | None) -> None:
        changed = None if paths is None else {*paths}
        for dataset in self._datasets.by_key.values():
            if changed is None or dataset.path in changed:
                self._add_dataset(dataset.key)

    def _measured(self, dataset: Dataset, measured: Measured) -> None:
        if dataset.key in self._datasets.by_key:
            self._measurements[dataset.key] = measured
            self._add_dataset(dataset.key)

    def _count(self) -> None:
        facts, master = self._facts, self._view.master
        facts.phases = self._datasets.phases()
        facts.is_master_away = master is not None and bool(master.away)
        handled = (self._handled_datasets, self._handled_pods, self._handled_claims)
        facts.queued = sum(len(one) for one in handled)

    async def _handle_dataset(self, item: Item) -> float:
        key = (item.namespace, item.name)
        dataset = await self._read(key)
        if dataset is None:
            return 0.0
        changed = key in self._with_other_objects
        self._with_other_objects.discard(key)
        measured = self._measurements.pop(key, None)
        try:
            after_s = await self._dataset_handler.handle(
                dataset, looks_at_objects=changed, measured=measured
            )
        except NotFound:
            return await self._look(dataset)
        except Stale:
            self._readings.drop(key)
            raise
        return after_s or AGAIN_S

    async def _read(self, key: Key) -> Dataset | None:
        """Returns a known Dataset, read from the API server if that is due."""
        known = self._datasets.by_key.get(key)
        if known is None or not self._readings.is_due(known, self._clock()):
            return known
        thing = await self._api.find(DATASET, key)
        if thing is None:
            self._gone(key, known.uid)
            return None
        found = datasets.parse(thing, self._rules)
        if self._datasets.put_read(found, known):
            self._add_pods_of(key)
        self._readings.add(found, self._clock())
        self._with_other_objects.add(key)  # the end of its volume or claim may be missed
        return self._datasets.by_key.get(key)

    async def _look(self, dataset: Dataset) -> float:
        """Reads a Dataset that seems to be removed."""
        self._gone(dataset.key, dataset.uid)
        thing = await self._api.find(DATASET, dataset.key)
        if thing is not None:
            self.saw_dataset(None, thing)
        return 0.0

    async def _handle_pod(self, item: Item) -> float:
        after_s = await self._pod_handler.handle((item.namespace, item.name))
        self._facts.waiting_pods = len(self._pods)
        return after_s

    async def _handle_claim(self, item: Item) -> float:
        if item.kind == VOLUME:
            return await self._claim_handler.handle_volume(item.name)
        return await self._claim_handler.handle_claim((item.namespace, item.name))
