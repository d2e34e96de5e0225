"""The report of one sync: its counts, its list of changes up to a limit, and its final state.
Pure: the caller passes the times. Nothing is counted after the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.policies import shown
from cachefs.core.syncs import CHANGES_PER_REPLY, KEPT_CHANGES, Change, ChangeKind, SyncStatus

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
REPLY_BYTES: Final = 100 << 10  # of changes, well below the limit of a frame
CHANGE_BYTES: Final = 130  # of memory, beside its path
MAX_MESSAGE_CHARS: Final = 1000


class Found(NamedTuple):
    """A compared part, counted in the thread that found it so that the event loop only adds it."""

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
    """The report of one sync; `sync` is its number. `room(size)` is called before changes of
    `size` bytes are kept; it returns whether they may be."""

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
        """Adds a compared part; does nothing after the end."""
        if self.ended:
            return
        self.names += found.names
        self.added += found.added
        self.replaced += found.replaced
        self.gone += found.gone
        if not self._full:
            self._keep(found)

    def _keep(self, found: Found) -> None:
        """Keeps the first changes without gaps, so that an index in the list stays valid."""
        fitting = found.changes[: KEPT_CHANGES - len(self._changes)]
        self._full = len(fitting) < len(found.changes)
        size = _memory(fitting) if self._full else found.memory_bytes
        if not self._room(size):
            self._full, fitting, size = True, *self._some(fitting)
        self._changes += fitting
        self.kept_bytes += size

    def _some(self, changes: Sequence[Change]) -> tuple[Sequence[Change], int]:
        """Returns the changes that fit into the reserved memory, and their size."""
        size = 0
        for place, change in enumerate(changes):
            one = _memory([change])
            if not self._room(one):
                return changes[:place], size
            size += one
        return changes, size

    def looked_into(self) -> None:
        """Counts a directory that was compared completely."""
        if not self.ended:
            self.directories += 1

    def failed(self, path: bytes, err: CacheFSError) -> None:
        """Records a failed comparison; the sync continues and ends as failed."""
        if self.ended:
            return
        self.errors += 1
        if not self._message:
            self._message = f"{shown(path)}: {_without_path(err)}"[:MAX_MESSAGE_CHARS]

    def end(self, state: str, now_s: float, seq: int) -> None:
        """Ends the sync; later calls do nothing. `seq` is the position of the newest event. `state`
        is STOPPED or DONE; DONE becomes FAILED if there were errors."""
        if not self.ended:
            self.state = FAILED if state == DONE and self.errors else state
            self._ended_s = now_s
            self._seq = seq

    def forget_changes(self) -> None:
        """Drops the list of changes to free memory; the counts stay."""
        self._changes = []
        self.kept_bytes = 0

    def changes(self, after: int) -> list[Change]:
        """Returns changes from index `after` on, at most 500 and about 100 KiB."""
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
    """Returns the text of an error without its path."""
    return f"{err.cause}; {err.remedy}" if err.remedy else err.cause
