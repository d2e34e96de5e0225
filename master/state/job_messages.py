"""One-line messages on why a load job ended, or what it waits for. Pure."""

from __future__ import annotations

from typing import Final

from cachefs.core.jobs import FullQuota, Room
from cachefs.core.policies import shown
from cachefs.core.units import format_size

_LARGER: Final = "give a larger one: cachefs quota PATH SIZE"
NO_OWNER: Final = (
    "waits: no worker owns blocks; start one: cachefs worker --master URL --tier ssd:DIR:SIZE"
)
NO_PATHS: Final = (
    "waits for the rest of its list of paths; if the command that sends it has ended, stop this job"
)


def waits_for_origin(url: str, cause: str) -> str:
    """Returns the message of a job while one of its origins does not reply."""
    return f"waits for {url} ({cause})"


def failed(failures: int, found: int) -> str:
    return f"{failures:,} of {found:,} files could not be loaded"


def too_many(failures: int) -> str:
    return f"stopped after {failures:,} failed files, the limit"


def too_large(size: int) -> str:
    """Returns the cause of a file that no job loads."""
    return f"a file of {format_size(size)} is too large to load"


def no_room(left_bytes: int, room: Room) -> str:
    """Returns the message for a worker that has no space left."""
    return (
        f"stopped before the rest was loaded, it does not fit: {format_size(left_bytes)} to go, "
        f"a worker's limit is {format_size(room.limit_bytes)}, of which "
        f"{format_size(room.held_bytes)} is held, {format_size(room.pinned_bytes)} pinned and "
        f"{format_size(room.busy_bytes)} in use"
    )


def cannot_fit(needed_bytes: int, capacity_bytes: int, *, is_all: bool) -> str:
    """Returns the message for a job that exceeds the capacity of all caches."""
    at_least = "" if is_all else "at least "
    return (
        f"stopped before it was loaded, it does not fit: it needs {at_least}"
        f"{format_size(needed_bytes)}, the caches hold {format_size(capacity_bytes)}"
    )


def beyond_quota(needed_bytes: int, path: bytes, quota_bytes: int, *, is_all: bool) -> str:
    """Returns the message for a job that exceeds a quota."""
    at_least = "" if is_all else "at least "
    return (
        f"stopped before it was loaded, it does not fit: it needs {at_least}"
        f"{format_size(needed_bytes)}, the quota of {shown(path)} is {format_size(quota_bytes)};"
        f" {_LARGER}"
    )


def quota_full(left_bytes: int, full: FullQuota) -> str:
    """Returns the message for a full quota under which no remaining file can be cached."""
    return (
        f"stopped before the rest was loaded, the quota of {shown(full.path)} is full:"
        f" {format_size(full.used_bytes)} of {format_size(full.quota_bytes)} are used,"
        f" {format_size(left_bytes)} to go; {_LARGER}"
    )
