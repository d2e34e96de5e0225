"""Opens the gates of pods whose Datasets are loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import BadConfig, NotFound
from cachefs.kube import events, gates
from cachefs.kube.api import JSON_PATCH, KubeApi
from cachefs.kube.events import Event, Severity
from cachefs.kube.facts import Facts
from cachefs.kube.gates import Open, Shut, WaitingPod
from cachefs.kube.known import Datasets, Pods
from cachefs.kube.late_reports import LateReports
from cachefs.kube.names import Key

LOOK_S: Final = 300.0  # a pod that waits is looked at again: its end may have been missed
_WARNED: Final = ("NoDatasets", "TooManyDatasets", "DatasetFailed", "DatasetNotLoaded")


class PodHandler:
    """Handles pods with our gate. Every method may be repeated. Raises the errors of the API
    server."""

    def __init__(
        self,
        api: KubeApi,
        pods: Pods,
        datasets: Datasets,
        facts: Facts,
        reports: LateReports,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._pods = pods
        self._datasets = datasets
        self._facts = facts
        self._clock = clock
        self._reports = reports

    async def handle(self, key: Key) -> float:
        """Opens the gate if it may. Returns as a handler of `Handling` does."""
        pod = await self._current(key)
        if pod is None:
            return 0.0
        match gates.decide(pod, self._datasets.by_key):
            case Open():
                await self._open(pod)
                return 0.0
            case Shut(reason, text):
                type: Severity = events.WARNING if reason in _WARNED else events.NORMAL
                self._reports.add(Event(events.of_pod(pod), type, reason, text))
                return LOOK_S

    async def _current(self, key: Key) -> WaitingPod | None:
        found = self._pods.get(key)
        if found is None or self._clock() - found[1] < LOOK_S:
            return found[0] if found is not None else None
        return await self._look(key)

    async def _look(self, key: Key) -> WaitingPod | None:
        """Returns the pod as the API server has it; None if it does not wait any more."""
        self._pods.drop(key)
        thing = await self._api.find("Pod", key)
        pod = gates.parse(thing) if thing is not None else None
        if pod is not None:
            self._pods.put(pod, self._clock())
        return pod

    async def _open(self, pod: WaitingPod) -> None:
        try:
            await self._api.patch("Pod", pod.key, gates.opening(pod), type=JSON_PATCH)
        except NotFound:
            return self._pods.drop(pod.key, pod.uid)
        except BadConfig:  # another gate was removed, or it is another pod of this name
            found = await self._look(pod.key)
            if found is None or found == pod:
                raise
            return await self._open_again(found)
        self._opened(pod)

    async def _open_again(self, pod: WaitingPod) -> None:
        if isinstance(gates.decide(pod, self._datasets.by_key), Open):
            await self._api.patch("Pod", pod.key, gates.opening(pod), type=JSON_PATCH)
            self._opened(pod)

    def _opened(self, pod: WaitingPod) -> None:
        self._pods.drop(pod.key, pod.uid)
        self._facts.opened_gates += 1
        text = f"loaded: {', '.join(pod.datasets)}"
        self._reports.add(Event(events.of_pod(pod), events.NORMAL, "Loaded", text))
