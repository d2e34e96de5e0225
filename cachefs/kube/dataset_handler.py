"""Takes the steps of one Dataset after the other, as `steps` plans them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cachefs.core.errors import CacheFSError, InUse, NotFound, Stale
from cachefs.kube import dataset as datasets
from cachefs.kube import events, status, steps, volumes
from cachefs.kube.api import KubeApi
from cachefs.kube.dataset import Dataset
from cachefs.kube.master_calls import MasterCalls
from cachefs.kube.master_view import MasterView
from cachefs.kube.names import FINALIZER, Key, Object
from cachefs.kube.remedies import with_remedy
from cachefs.kube.reporter import Reporter, utc_now
from cachefs.kube.rules import Rules
from cachefs.kube.status import Status
from cachefs.kube.steps import Attached, Failure, Measured, Objects, Seen, Step
from cachefs.kube.volume_users import users

MOST_STEPS: Final = 40
FIGURES_S: Final = 5.0  # between two writes of nothing but figures

Kept = Callable[[Dataset], None]
Dropped = Callable[[Dataset], None]


class DatasetHandler:
    """Handles Datasets. `kept` is called with each new version that a change returned, `dropped`
    when the last finalizer was removed. Cancellation leaves what every step may leave."""

    def __init__(
        self,
        api: KubeApi,
        master: MasterCalls,
        view: MasterView,
        rules: Rules,
        address: str,
        kept: Kept,
        dropped: Dropped,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._master = master
        self._view = view
        self._rules = rules
        self._address = address
        self._kept = kept
        self._dropped = dropped
        self._clock = clock
        self._reporter = Reporter(api)
        self._written_at: dict[Key, float] = {}

    async def handle(
        self, dataset: Dataset, *, looks_at_objects: bool = False, measured: Measured | None = None
    ) -> float:
        """Takes steps until there is nothing to do now. Returns as a handler of `Handling` does.
        Raises the errors of the API server."""
        seen = Seen(master=self._view.master)
        if measured is not None:
            seen = _with(seen, use=measured.use, policy=measured.policy)
        if looks_at_objects and dataset.spec.volume.create:
            seen = _with(seen, objects=await self._objects(dataset))
        for _ in range(MOST_STEPS):
            plan = steps.plan(dataset, seen, self._address)
            if plan.is_written_first:
                dataset = await self._write(dataset, plan)
            if isinstance(plan.step, steps.Wait):
                return plan.step.after_s
            dataset, seen = await self._take(plan.step, dataset, seen)
        return steps.RETRY

    def forget(self, key: Key) -> None:
        self._written_at.pop(key, None)

    async def _take(self, step: Step, dataset: Dataset, seen: Seen) -> tuple[Dataset, Seen]:
        match step:
            case steps.AddFinalizer():
                return await self._finalizers(dataset, [*dataset.finalizers, FINALIZER]), seen
            case steps.RemoveFinalizer():
                return await self._remove_finalizer(dataset), seen
            case steps.LookAtMaster():
                await self._view.look()
                return dataset, _with(seen, master=self._view.master, is_master_new=True)
            case steps.LookAtObjects():
                return dataset, _with(seen, objects=await self._objects(dataset))
            case steps.LookAtPods():
                began_s = self._clock()
                found = await users(self._api, dataset.path, is_confined=self._rules.confine)
                return dataset, _with(seen, users=found, users_s=self._clock() - began_s)
            case steps.SetPolicy(is_changed=True):
                await self._reporter.report([events.of_policies(dataset)])
        try:
            return dataset, _with(await self._changed(step, seen), failure=None)
        except Stale:
            raise
        except CacheFSError as err:
            return dataset, _with(seen, failure=self._failure(step, err))

    def _failure(self, step: Step, err: CacheFSError) -> Failure:
        is_away = self._master.is_away(err)
        if is_away:
            self._view.is_away(err.cause)
        return Failure(type(step), err.code, with_remedy(err).one_line(), is_away)

    async def _changed(self, step: Step, seen: Seen) -> Seen:
        """Takes a step that may fail, and returns what was seen."""
        master = self._master
        match step:
            case steps.Attach(path, url, options, push):
                warning = await master.attach(path, url, options, push)
                self._view.attached(path, Attached(url, warning))
                return _with(seen, master=self._view.master)
            case steps.SetPolicy(path, policy):
                await master.set_policy(path, policy)
                return _with(seen, is_policy_set=True)
            case steps.Submit(job, key):
                number = await master.submit(job, key)
                return _with(seen, submitted=number, submitted_key=key, job=None, is_job_gone=False)
            case steps.LookAtJob(number):
                return await self._job(number, seen)
            case steps.Create(thing):
                return await self._create(thing, seen)
            case steps.Remove(thing):
                await self._delete(thing)
                return _with(seen, objects=None)
            case _:
                return await self._unmade(step, seen)

    async def _unmade(self, step: Step, seen: Seen) -> Seen:
        master = self._master
        match step:
            case steps.EndJobs(path):
                await master.end_jobs(path)
                return _with(seen, are_jobs_ended=True)
            case steps.UnsetPolicy(path):
                await master.unset_policy(path)
                return _with(seen, is_policy_unset=True)
            case steps.Detach(path):
                await master.detach(path)
                self._view.detached(path)
                return _with(seen, is_detached=True)
        raise AssertionError(step)

    async def _job(self, number: int, seen: Seen) -> Seen:
        try:
            return _with(seen, job=await self._master.job(number))
        except NotFound:
            return _with(seen, is_job_gone=True)

    async def _objects(self, dataset: Dataset) -> Objects:
        volume = await self._api.find("PersistentVolume", ("", volumes.volume_name(dataset)))
        return Objects(volume, await self._api.find("PersistentVolumeClaim", dataset.key))

    async def _create(self, thing: Object, seen: Seen) -> Seen:
        with contextlib.suppress(InUse):  # the next look shows which one it is
            await self._api.create(thing)
        return _with(seen, objects=None)

    async def _delete(self, thing: Object) -> None:
        metadata = thing["metadata"]
        key = metadata.get("namespace", ""), metadata["name"]
        kind = "PersistentVolumeClaim" if key[0] else "PersistentVolume"
        with contextlib.suppress(NotFound):
            await self._api.delete(kind, key, metadata["uid"])

    async def _finalizers(self, dataset: Dataset, finalizers: list[str]) -> Dataset:
        metadata = {"finalizers": finalizers, "resourceVersion": dataset.resource_version}
        return self._new(await self._api.patch("Dataset", dataset.key, {"metadata": metadata}))

    async def _remove_finalizer(self, dataset: Dataset) -> Dataset:
        left = [one for one in dataset.finalizers if one != FINALIZER]
        with contextlib.suppress(NotFound):
            await self._finalizers(dataset, left)
        self._dropped(dataset)
        return msgspec.structs.replace(dataset, finalizers=tuple(left))

    def _new(self, thing: Object) -> Dataset:
        found = datasets.parse(thing, self._rules)
        self._kept(found)
        return found

    async def _write(self, dataset: Dataset, plan: steps.Plan) -> Dataset:
        """Writes a status that differs, and reports what has changed. Figures alone are written
        every `FIGURES_S`. The status is about the former spec until the steps of a new one were
        taken or have failed. Raises Stale, NotFound."""
        is_about_new = isinstance(plan.step, steps.Wait)
        generation = dataset.generation if is_about_new else dataset.status.observed_generation
        after = status.dated(plan.status, utc_now(), generation)
        patch = status.patch_of(dataset.document, after)
        if not patch or (_are_figures(dataset.status, after) and not self._is_due(dataset.key)):
            return dataset
        version = {"resourceVersion": dataset.resource_version}
        body: dict[str, Any] = {"metadata": version, "status": patch}
        found = self._new(await self._api.patch("Dataset", dataset.key, body, part="status"))
        self._written_at[dataset.key] = self._clock()
        await self._reporter.report(events.of_change(dataset, after))
        return found

    def _is_due(self, key: Key) -> bool:
        return self._clock() - self._written_at.get(key, -FIGURES_S) >= FIGURES_S


def _are_figures(before: Status, after: Status) -> bool:
    """Returns whether two statuses differ in figures and messages only."""
    return _essence(before) == _essence(after)


def _essence(one: Status) -> tuple[object, ...]:
    told = tuple((c.type, c.status, c.reason) for c in one.conditions)
    return (
        one.phase, one.source, one.attachments, one.policy, one.job, one.job_key, one.job_settings,
        one.observed_generation, told,
    )  # fmt: skip


def _with(seen: Seen, **changes: Any) -> Seen:
    return msgspec.structs.replace(seen, **changes)
