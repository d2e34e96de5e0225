"""Pods that wait until Datasets of their namespace are loaded. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cachefs.kube.dataset import Dataset
from cachefs.kube.names import DATASETS, GATE, Key, Object
from cachefs.kube.status import Phase, Type

MAX_DATASETS: Final = 100  # of one pod


class WaitingPod(msgspec.Struct, frozen=True):
    """A pod with our gate. `place`: of the gate among the pod's gates. `datasets`: their names."""

    namespace: str
    name: str
    uid: str
    place: int
    datasets: tuple[str, ...]

    @property
    def key(self) -> Key:
        return self.namespace, self.name


class Open(msgspec.Struct, frozen=True):
    """The gate is removed."""


class Shut(msgspec.Struct, frozen=True):
    """The gate stays. `reason`, `text`: for an event of the pod."""

    reason: str
    text: str


def parse(pod: Object) -> WaitingPod | None:
    """Returns a pod with our gate; None for any other one."""
    metadata = pod["metadata"]
    gates = [gate.get("name") for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if GATE not in gates or "deletionTimestamp" in metadata:
        return None
    text = (metadata.get("annotations") or {}).get(DATASETS, "")
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    return WaitingPod(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        gates.index(GATE),
        tuple(names),
    )


def decide(pod: WaitingPod, datasets: Mapping[Key, Dataset]) -> Open | Shut:
    """Returns whether a pod may be scheduled."""
    if not pod.datasets:
        return Shut("NoDatasets", f"the pod has the gate {GATE} and no annotation {DATASETS}")
    if len(pod.datasets) > MAX_DATASETS:
        return Shut("TooManyDatasets", f"the annotation {DATASETS} names over {MAX_DATASETS}")
    for name in pod.datasets:
        reason = _obstacle(name, datasets.get((pod.namespace, name)))
        if reason is not None:
            return reason
    return Open()


def _obstacle(name: str, dataset: Dataset | None) -> Shut | None:
    if dataset is None:
        return Shut("DatasetMissing", f"there is no Dataset {name}")
    if dataset.is_deleting:
        return Shut("DatasetRemoved", f"the Dataset {name} is being deleted")
    match dataset.status.phase:
        case Phase.LOADED if not _is_outdated(dataset):
            return None
        case Phase.ATTACHED:
            return Shut("DatasetNotLoaded", f"the Dataset {name} has no load")
        case Phase.FAILED:
            return Shut("DatasetFailed", f"the Dataset {name} has failed{_cause(dataset)}")
        case _:
            return Shut("WaitingForDataset", f"the Dataset {name} is not loaded yet")


def _is_outdated(dataset: Dataset) -> bool:
    """Returns whether a newer spec requests another load."""
    status = dataset.status
    return not dataset.problem and status.job_key != dataset.job_key(status.attachments)


def _cause(dataset: Dataset) -> str:
    found = dataset.status.condition(Type.LOADED) or dataset.status.condition(Type.ACCEPTED)
    return f": {found.message}" if found is not None and found.message else ""


def opening(pod: WaitingPod) -> list[dict[str, Any]]:
    """Returns the JSON patch that removes the gate of this pod, and of no other of its name."""
    place = f"/spec/schedulingGates/{pod.place}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": f"{place}/name", "value": GATE},
        {"op": "remove", "path": place},
    ]
