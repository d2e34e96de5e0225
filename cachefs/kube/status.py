"""The status of a Dataset: what users see, and what the controller needs after its own death. Pure.

The controller writes that it attaches a source before it does so: after its own death it knows what
it may have made.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cachefs.core.printable import cut
from cachefs.core.units import format_size

MAX_MESSAGE: Final = 1024


class Phase(enum.StrEnum):
    """The phase of a Dataset. FAILED: the load or the spec; ATTACHED: without a load."""

    PENDING = "Pending"
    ATTACHED = "Attached"
    LOADING = "Loading"
    LOADED = "Loaded"
    FAILED = "Failed"


class Type(enum.StrEnum):
    """The type of a condition."""

    ACCEPTED = "Accepted"  # only while the spec cannot be used
    ATTACHED = "Attached"  # the source is in the cluster's namespace
    LOADED = "Loaded"  # every byte of it is cached
    VOLUME = "VolumeReady"  # the volume and the claim exist
    MASTER = "MasterReachable"
    REMOVABLE = "Removable"  # only while the object is being deleted


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: Type
    status: str  # "True" or "False"
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A status. `source`: what the controller attaches or has attached at `path`; "": nothing.
    `attachments`: how often. `job_key`: the key with which `job` was submitted. `job_settings`,
    `policy`: those that the master was sent last."""

    phase: Phase = Phase.PENDING
    path: str = ""
    source: str = ""
    attachments: int = 0
    policy: str = ""
    job: int = 0
    job_key: str = ""
    job_settings: str = ""
    files: int = 0
    bytes: int = 0
    cached_bytes: int = 0
    cached: str = ""
    failed_files: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()

    def condition(self, type: Type) -> Condition | None:
        return next((one for one in self.conditions if one.type is type), None)

    def holds(self, type: Type) -> bool:
        found = self.condition(type)
        return found is not None and found.status == "True"

    def told(self, type: Type, holds: bool, reason: str, message: str = "") -> Status:
        """Returns the status with a condition. `dated` gives it its time."""
        before = self.condition(type)
        status = "True" if holds else "False"
        since = before.last_transition_time if before and before.status == status else ""
        one = Condition(type, status, reason, one_line(message), since)
        others = [other for other in self.conditions if other.type is not type]
        conditions = tuple(sorted([*others, one], key=lambda condition: condition.type.value))
        return self.with_(conditions=conditions)

    def without(self, type: Type) -> Status:
        return self.with_(conditions=tuple(one for one in self.conditions if one.type is not type))

    def with_(self, **changes: Any) -> Status:
        return msgspec.structs.replace(self, **changes)

    def with_cached(self, cached_bytes: int) -> Status:
        """Returns the status with another amount of cached bytes."""
        return self.with_(
            cached_bytes=cached_bytes, cached=share(cached_bytes, self.bytes, self.files)
        )


def dated(status: Status, now: str, generation: int) -> Status:
    """Returns the status with the time of the conditions that have changed, and the generation of
    the spec that it is about."""
    conditions = tuple(
        msgspec.structs.replace(
            one,
            last_transition_time=one.last_transition_time or now,
            observed_generation=generation,
        )
        for one in status.conditions
    )
    return status.with_(conditions=conditions, observed_generation=generation)


def parse(document: Mapping[str, Any]) -> Status:
    """Returns the status of an object; an empty one for a status that this version cannot read."""
    try:
        return msgspec.convert(document, Status, strict=False)
    except msgspec.ValidationError:
        return Status()


def patch_of(before: Mapping[str, Any], status: Status) -> dict[str, Any]:
    """Returns the merge patch from a document to a status; {} for none. Fields that this version
    does not know stay."""
    after = {"phase": status.phase.value, **msgspec.to_builtins(status)}
    names = {field.encode_name for field in msgspec.structs.fields(Status)}
    gone = {name: None for name in names if name in before and name not in after}
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return {**gone, **changed}


def share(done_bytes: int, total_bytes: int, files: int) -> str:
    """Returns how much is cached, for a column: `50 % of 2 GiB`."""
    if not total_bytes:
        return "100 % of 0 B" if files else ""
    percent = 100 * min(done_bytes, total_bytes) // total_bytes
    return f"{percent} % of {format_size(total_bytes)}"


def one_line(text: str) -> str:
    """Returns a text as Kubernetes takes it in a condition or an event."""
    return cut(" ".join(text.split()), MAX_MESSAGE)
