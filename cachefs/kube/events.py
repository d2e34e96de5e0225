"""The events of Kubernetes that the controller reports. Pure.

The name of an event is made of its object and its text. So the same event is not reported twice,
also by two controllers, until Kubernetes forgets it (after an hour).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from cachefs.kube.dataset import Dataset, digest
from cachefs.kube.gates import WaitingPod
from cachefs.kube.names import COMPONENT, GROUP, KIND, VERSION, Object
from cachefs.kube.status import Condition, Phase, Status, Type, one_line

Severity = Literal["Normal", "Warning"]
NORMAL: Final = "Normal"
WARNING: Final = "Warning"
_MAX_NAME: Final = 230  # of 253, before the digest
_WARNED: Final = (Type.ACCEPTED, Type.ATTACHED, Type.VOLUME, Type.MASTER, Type.REMOVABLE)
_QUIET: Final = ("Attaching", "Replacing")


class Reference(msgspec.Struct, frozen=True, rename="camel"):
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class Event(msgspec.Struct, frozen=True):
    about: Reference
    type: Severity
    reason: str
    message: str


def of_dataset(dataset: Dataset) -> Reference:
    return Reference(f"{GROUP}/{VERSION}", KIND, dataset.namespace, dataset.name, dataset.uid)


def of_pod(pod: WaitingPod) -> Reference:
    return Reference("v1", "Pod", pod.namespace, pod.name, pod.uid)


def of_claim(claim: Object) -> Reference:
    metadata = claim["metadata"]
    return Reference(
        "v1", "PersistentVolumeClaim", metadata["namespace"], metadata["name"], metadata["uid"]
    )


def of_change(dataset: Dataset, after: Status) -> list[Event]:
    """Returns the events of a change of a Dataset's status."""
    before, about = dataset.status, of_dataset(dataset)
    found = [
        Event(about, WARNING, one.reason, one.message or one.reason)
        for one in after.conditions
        if _is_warning(before, one)
    ]
    if after.phase is not before.phase:
        found += _of_phase(about, after)
    return found


def of_policies(dataset: Dataset) -> Event:
    """Returns the event of policies that were changed at the master."""
    text = f"the policies of {dataset.path} were changed at the master; those of the spec are set"
    return Event(of_dataset(dataset), NORMAL, "PoliciesSetBack", text)


def _is_warning(before: Status, one: Condition) -> bool:
    known = before.condition(one.type)
    is_known = known is not None and (known.reason, known.message) == (one.reason, one.message)
    return (
        one.type in _WARNED and one.status == "False" and one.reason not in _QUIET and not is_known
    )


def _of_phase(about: Reference, after: Status) -> list[Event]:
    told = after.condition(Type.LOADED)
    text = told.message if told is not None else ""
    match after.phase:
        case Phase.LOADING:
            return [Event(about, NORMAL, "Loading", f"job {after.job} loads {after.path}")]
        case Phase.LOADED:
            return [Event(about, NORMAL, "Loaded", text)]
        case Phase.FAILED if told is not None:
            return [Event(about, WARNING, "LoadFailed", f"job {after.job}: {text}")]
        case _:
            return []


def name_of(event: Event) -> str:
    mark = digest([event.about.uid, event.type, event.reason, event.message])
    return f"{event.about.name[:_MAX_NAME].rstrip('.-')}.{mark}"


def body_of(event: Event, now: str) -> dict[str, Any]:
    """Returns the object to create. `now`: UTC, as RFC 3339."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name_of(event), "namespace": event.about.namespace},
        "involvedObject": msgspec.to_builtins(event.about),
        "type": event.type,
        "reason": event.reason,
        "message": one_line(event.message),
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
