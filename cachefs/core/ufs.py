"""The messages about the sources of a namespace, between the master, its workers and operators."""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.messages import Message
from cachefs.core.model import Inode, UfsSpec

MAX_PUSHED: Final = 1000  # objects of one call
PUSH_INTERVAL_S: Final = 3600.0


class GetUfs(Message, frozen=True):
    """Requests the source with this key (`Origin.ufs`). Answered by UfsFound; raises NotFound."""

    key: str


class UfsFound(Message, frozen=True):
    source: UfsSpec


class AddUfs(Message, frozen=True):
    """Mounts a source at a directory of the namespace ("/imagenet"), which is created. Idempotent.
    Raises the origin's error, and InUse if another source is mounted there."""

    path: bytes
    source: UfsSpec
    sync_interval_s: float = 60.0
    push: str = ""


class UfsAdded(Message, frozen=True):
    root: Inode
    warning: str = ""


class SetUfs(Message, frozen=True):
    """Changes a source that is mounted: sets `options`, removes the options `unset`. None: the sync
    interval stays. Inodes and cached bytes stay. Answered by UfsChanged once durable. Raises the
    origin's error with the new options, NotFound, and BadConfig for options that the source cannot
    have or that would name another store."""

    path: bytes
    options: dict[str, str]
    unset: tuple[str, ...] = ()
    sync_interval_s: float | None = None
    push: str | None = None  # "": none
    push_interval_s: float | None = None


class PushEvents(Message, frozen=True):
    """Events of a store about the source at a path: its objects may have changed. `objects`:
    (bucket, key as the event has it). Answered by Done once every change is durable and announced.
    Raises AccessDenied for another secret than the source's, and for a source that accepts no
    events."""

    path: bytes
    secret: str
    objects: list[tuple[str, str]]  # at most MAX_PUSHED

    def __repr__(self) -> str:
        return f"PushEvents({self.path!r}, {len(self.objects)} objects)"


class RemoveUfs(Message, frozen=True):
    """Removes a source from the namespace. Answered by Done. Raises NotFound, and InUse if `force`
    is False and a path of the source is pinned."""

    path: bytes
    force: bool = False


class ListUfs(Message, frozen=True):
    pass


class UfsRow(msgspec.Struct, frozen=True):
    path: bytes
    source: UfsSpec
    sync_interval_s: float
    origin_down: bool = False
    warning: str = ""
    push: str = ""  # how changes are reported; see `master.push.settings`
    pushed: int = 0  # names that were reported since the master's start
    pushed_at: float = 0.0  # of the last one, wall clock seconds
    push_interval_s: float = PUSH_INTERVAL_S  # how long names are valid while changes are reported
    feed_current_at: float = 0.0  # every change until then was reported; wall clock seconds
    feed_error: str = ""  # why changes are not reported now
    background_last_at: float = 0.0  # last complete background sync's begin, wall clock seconds
    background_next_at: float = 0.0  # 0: none is due
    background_error: str = ""  # of the last one


class UfsTable(Message, frozen=True):
    rows: list[UfsRow]


class UfsChanged(Message, frozen=True):
    """The source as it is now."""

    row: UfsRow
