"""What one sync found so far, as it is shown: counts, the list of changes as far as it is kept, and
how it ended. Pure: times are given. Nothing is counted after the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.syncs import CHANGES_PER_REPLY, KEPT_CHANGES, Change, ChangeKind, SyncStatus

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
REPLY_BYTES: Final = 100 << 10  # of changes, well below what a frame may hold
CHANGE_BYTES: Final = 130  # of memory, beside its path
MAX_MESSAGE_CHARS: Final = 1000


class Found(NamedTuple):
    """A part of what was compared: counted where it is found, so that adding it takes no time."""

    names: int
    changes: Sequence[Change]
    added: int
    replaced: int
    gone: int
    memory_bytes: int


def counted(names: int, changes: Sequence[Change]) -> Found:
    kinds = [change.kind for change in changes]
    return Found(
        names,
        changes,
        kinds.count(ChangeKind.ADDED),
        kinds.count(ChangeKind.REPLACED),
        kinds.count(ChangeKind.GONE),
        _memory(changes),
    )


def _memory(changes: Sequence[Change]) -> int:
    return sum(len(change.path) for change in changes) + CHANGE_BYTES * len(changes)


class Report:
    """Of one sync; `sync` is its number. `room` is asked before a change is kept: it takes so many
    bytes of memory."""

    def __init__(
        self,
        sync: int,
        path: bytes,
        began_s: float,
        room: Callable[[int], bool],
        *,
        recursive: bool,
        dry_run: bool,
    ) -> None:
        self.sync = sync
        self.path = path
        self.recursive = recursive
        self.dry_run = dry_run
        self.state = RUNNING
        self.directories = 0
        self.names = 0
        self.added = 0
        self.replaced = 0
        self.gone = 0
        self.errors = 0
        self.kept_bytes = 0
        self._message = ""
        self._full = False  # changes are only counted from here on
        self._changes: list[Change] = []
        self._room = room
        self._began_s = began_s
        self._ended_s = 0.0
        self._seq = 0

    @property
    def ended(self) -> bool:
        return self.state != RUNNING

    def add(self, found: Found) -> None:
        """What was compared; nothing after the end."""
        if self.ended:
            return
        self.names += found.names
        self.added += found.added
        self.replaced += found.replaced
        self.gone += found.gone
        if not self._full:
            self._keep(found)

    def _keep(self, found: Found) -> None:
        """The first ones are kept, without gaps: a place in the list stays one."""
        fitting = found.changes[: KEPT_CHANGES - len(self._changes)]
        self._full = len(fitting) < len(found.changes)
        size = _memory(fitting) if self._full else found.memory_bytes
        if not self._room(size):
            self._full, fitting, size = True, *self._some(fitting)
        self._changes += fitting
        self.kept_bytes += size

    def _some(self, changes: Sequence[Change]) -> tuple[Sequence[Change], int]:
        """As many as there is room for, and what they take."""
        size = 0
        for place, change in enumerate(changes):
            one = _memory([change])
            if not self._room(one):
                return changes[:place], size
            size += one
        return changes, size

    def looked_into(self) -> None:
        """One more directory was compared as a whole."""
        if not self.ended:
            self.directories += 1

    def failed(self, path: bytes, err: CacheFSError) -> None:
        """Something could not be compared; the sync goes on, and will end as failed."""
        if self.ended:
            return
        self.errors += 1
        if not self._message:
            shown = "/" + path.decode("utf-8", "backslashreplace")
            self._message = f"{shown}: {_without_path(err)}"[:MAX_MESSAGE_CHARS]

    def end(self, state: str, now_s: float, seq: int) -> None:
        """`state`: STOPPED, or DONE, which is FAILED where anything failed. `seq`: the position of
        the newest event by then. The first end counts."""
        if not self.ended:
            self.state = FAILED if state == DONE and self.errors else state
            self._ended_s = now_s
            self._seq = seq

    def forget_changes(self) -> None:
        """The list makes room for others; the counts stay."""
        self._changes = []
        self.kept_bytes = 0

    def changes(self, after: int) -> list[Change]:
        """From a place in the list on, at most 500 and 100 KiB."""
        found: list[Change] = []
        size = 0
        for change in self._changes[max(0, after) : max(0, after) + CHANGES_PER_REPLY]:
            size += len(change.path) + 16
            if found and size > REPLY_BYTES:
                break
            found.append(change)
        return found

    def shown(self, now_s: float) -> SyncStatus:
        return SyncStatus(
            self.sync,
            self.state,
            self.path,
            self.recursive,
            self.dry_run,
            self.directories,
            self.names,
            self.added,
            self.replaced,
            self.gone,
            self.errors,
            (self._ended_s if self.ended else now_s) - self._began_s,
            self._message,
            len(self._changes),
            self._seq,
        )


def _without_path(err: CacheFSError) -> str:
    """The line of an error whose path is said already."""
    return f"{err.cause}; {err.remedy}" if err.remedy else err.cause
