"""The objects that the controller knows from its watches. Pure.

An event may come late: one of an older version, or of a former object of the same name, changes
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from cachefs.kube.dataset import Dataset
from cachefs.kube.gates import WaitingPod
from cachefs.kube.names import Key
from cachefs.kube.status import Phase


class Datasets:
    """The Datasets by namespace and name."""

    def __init__(self) -> None:
        self.by_key: dict[Key, Dataset] = {}

    def put(self, dataset: Dataset) -> bool:
        """Keeps a Dataset unless a newer version is known. Returns whether its pods must be looked
        at. A known spec of the same generation stays: a watch may show less of it."""
        before = self.by_key.get(dataset.key)
        if before is not None and not is_newer(dataset.resource_version, before.resource_version):
            return False
        if before is not None and _generation(before) == _generation(dataset):
            dataset = _with_spec(dataset, before)
        return self._set(before, dataset)

    def put_read(self, dataset: Dataset, known: Dataset | None = None) -> bool:
        """As `put`, for an object that was read, and not watched: its spec is whole. `known`: what
        was known when the read began. If it still is, the reply is newer, whatever its version: an
        API server that was restored has earlier ones."""
        before = self.by_key.get(dataset.key)
        if before is not None and before is known:
            return self._set(before, dataset)
        if before is None or _generation(before) != _generation(dataset):
            return self.put(dataset)
        is_older = is_newer(before.resource_version, dataset.resource_version)
        return self._set(before, _with_spec(before, dataset) if is_older else dataset)

    def _set(self, before: Dataset | None, dataset: Dataset) -> bool:
        self.by_key[dataset.key] = dataset
        return before is None or _gate_facts(before) != _gate_facts(dataset)

    def replace(self, dataset: Dataset) -> bool:
        """As `put`, for the reply to a change: an object that was removed in between stays so."""
        before = self.by_key.get(dataset.key)
        if before is None or before.uid != dataset.uid:
            return False
        return self.put(dataset)

    def drop(self, key: Key, uid: str) -> bool:
        """Forgets the object with this uid. Returns whether it was known."""
        before = self.by_key.get(key)
        if before is None or before.uid != uid:
            return False
        del self.by_key[key]
        return True

    def phases(self) -> dict[Phase, int]:
        """Returns the number of Datasets by phase, also of the phases that none has."""
        found = Counter(one.status.phase for one in self.by_key.values())
        return {phase: found[phase] for phase in Phase}


def _generation(dataset: Dataset) -> tuple[str, int]:
    return dataset.uid, dataset.generation


def _with_spec(dataset: Dataset, of: Dataset) -> Dataset:
    """Returns a Dataset with the spec of another version of the same generation."""
    return msgspec.structs.replace(
        dataset, spec=of.spec, policy=of.policy, job=of.job, problem=of.problem
    )


def _gate_facts(dataset: Dataset) -> tuple[object, ...]:
    status = dataset.status
    return (
        dataset.uid, dataset.is_deleting, status.phase, status.job_key, dataset.spec.load.revision
    )  # fmt: skip


def is_newer(version: str, than: str) -> bool:
    """Returns whether a version of an object is newer. Versions of Kubernetes are numbers; others
    are taken as newer."""
    if version.isdecimal() and than.isdecimal():
        return int(version) > int(than)
    return version != than


class Pods:
    """The pods with our gate, with the time at which each was last seen."""

    def __init__(self) -> None:
        self._by_key: dict[Key, tuple[WaitingPod, float]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, pod: WaitingPod, now: float) -> None:
        self._by_key[pod.key] = (pod, now)

    def get(self, key: Key) -> tuple[WaitingPod, float] | None:
        return self._by_key.get(key)

    def drop(self, key: Key, uid: str = "") -> None:
        """Forgets a pod; with a uid only that one."""
        found = self._by_key.get(key)
        if found is not None and uid in ("", found[0].uid):
            del self._by_key[key]

    def waiting_for(self, key: Key) -> Iterator[WaitingPod]:
        """Yields the pods that name a Dataset."""
        namespace, name = key
        for pod, _ in self._by_key.values():
            if pod.namespace == namespace and name in pod.datasets:
                yield pod
