"""The merge of an ordered listing into the stored names of a directory. Pure.

`Pages` cuts a listing into batches: each covers the range (after, upto] of order keys and holds its
current entries. All names in the range are decided, with one exception. A directory hides a file of
the same name, and `a/` sorts behind `a`, `a!` and `a.txt`. So a file that is a prefix of the last
key waits until its directory can no longer follow. At most 255 files wait (a name has no more
prefixes). `plan` compares a batch with the stored names.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from cachefs.core.errors import OriginError
from cachefs.core.model import Inode, Kind
from connectors.base import Entry, order_key
from master.state.records import Stored, name_of


class Action(enum.Enum):
    """The kind of change to a name."""

    INSERT = "insert"
    UPDATE = "update"  # same bytes, other attributes: the ino stays
    REPLACE = "replace"  # other bytes: a new ino
    REMOVE = "remove"


class Change(NamedTuple):
    action: Action
    key: bytes  # order key
    entry: Entry | None  # None: removed
    stored: Stored | None  # None: inserted


class Batch(msgspec.Struct, frozen=True):
    """A decided part of a listing."""

    after: bytes
    upto: bytes | None  # inclusive; None: to the end of the directory
    entries: list[tuple[bytes, Entry]] = []  # ordered, within the range
    waiting: frozenset[bytes] = frozenset()  # names of listed files that are not decided yet
    late: list[Entry] = []  # files from before the range, decided now
    dropped: list[bytes] = []  # names of files from before the range that a directory hides
    hidden: int = 0
    safe_below: bytes | None = b""  # every smaller key is decided; None: all are

    @property
    def last(self) -> bool:
        return self.upto is None

    def rest(self, after: bytes) -> Batch:
        """Returns the part of the batch that remains once the range up to `after` is merged."""
        entries = [item for item in self.entries if item[0] > after]
        return Batch(after, self.upto, entries, self.waiting, safe_below=self.safe_below)

    def part(self, upto: bytes) -> list[tuple[bytes, Entry]]:
        return [item for item in self.entries if item[0] <= upto]


class Pages:
    """One ordered listing in progress."""

    def __init__(self) -> None:
        self._after = b""
        self._waiting: list[Entry] = []

    def add(self, entries: Iterable[Entry], hidden: int = 0) -> Batch:
        """Returns the next page as a batch. Raises OriginError if the page is out of order."""
        keyed = sorted(
            [(order_key(e.name, e.fingerprint.kind is Kind.DIRECTORY), e) for e in entries],
            key=_first,
        )
        if not keyed:
            return Batch(self._after, self._after, hidden=hidden, safe_below=self._safe())
        after, upto = self._after, keyed[-1][0]
        if keyed[0][0] <= after and after:
            raise OriginError("the origin's listing is not in order")
        self._after = upto
        directories = {e.name for key, e in keyed if key[-1] == _SLASH}
        late, dropped = self._settle(directories, upto)
        decided, clashes = self._decide(keyed, directories, upto)
        return Batch(
            after,
            upto,
            decided,
            frozenset(entry.name for entry in self._waiting),
            late,
            dropped,
            hidden + len(dropped) + clashes,
            self._safe(),
        )

    def end(self) -> Batch:
        """Returns the batch that ends the listing."""
        late, self._waiting = self._waiting, []
        return Batch(self._after, None, late=late, safe_below=None)

    def _settle(self, directories: set[bytes], upto: bytes) -> tuple[list[Entry], list[bytes]]:
        """Decides waiting files; returns (files to keep, names of files hidden by a directory)."""
        late = []
        dropped = []
        still = []
        for entry in self._waiting:
            if entry.name in directories:
                dropped.append(entry.name)
            elif entry.name + b"/" > upto:
                still.append(entry)
            else:
                late.append(entry)
        self._waiting = still
        return late, dropped

    def _decide(
        self, keyed: list[tuple[bytes, Entry]], directories: set[bytes], upto: bytes
    ) -> tuple[list[tuple[bytes, Entry]], int]:
        """Returns the decided entries of a page, and the count of files hidden by directories."""
        decided = []
        clashes = 0
        for item in keyed:
            key, entry = item
            if key[-1] == _SLASH:
                decided.append(item)
            elif key in directories:
                clashes += 1
            elif key + b"/" > upto:
                self._waiting.append(entry)
            else:
                decided.append(item)
        return decided, clashes

    def _safe(self) -> bytes:
        first = self._after + b"\0"
        return min([first, *(entry.name for entry in self._waiting)])


_SLASH = ord("/")


def _first(item: tuple[bytes, Entry]) -> bytes:
    return item[0]


def compare(inode: Inode, entry: Entry) -> Action | None:
    """Returns the change from `inode` to the origin's `entry` of the same key; None: no change."""
    new = entry.fingerprint
    if inode.kind is not new.kind:
        return Action.REPLACE
    same_data = inode.size == new.size and inode.mtime_ns == new.mtime_ns and inode.etag == new.etag
    if inode.kind is not Kind.DIRECTORY and not (same_data and inode.target == entry.target):
        return Action.REPLACE
    same_owner = inode.mode == entry.mode and inode.uid == entry.uid and inode.gid == entry.gid
    return None if same_data and same_owner else Action.UPDATE


def inode_of(entry: Entry, ino: int, nonce: int, version: int = 0) -> Inode:
    new = entry.fingerprint
    return Inode(
        ino,
        new.kind,
        new.size,
        new.mtime_ns,
        new.etag,
        version,
        nonce,
        entry.mode,
        entry.uid,
        entry.gid,
        entry.target,
    )


def is_newer(stored: Stored, asked_at: float, now: float) -> bool:
    """Returns whether this name was checked at the origin after the listing began (`asked_at`)."""
    return asked_at < stored.checked_at <= now


def plan(
    stored: Sequence[tuple[bytes, Stored]],
    entries: Sequence[tuple[bytes, Entry]],
    waiting: frozenset[bytes],
    asked_at: float,
    now: float,
) -> list[Change]:
    """Returns the changes that turn a range of `stored` names into `entries`. A name checked after
    `asked_at`, the start of the listing, is newer than the listing and stays unchanged."""
    if not stored:
        return [Change(Action.INSERT, key, entry, None) for key, entry in entries]
    left = dict(stored)
    changes = []
    for key, entry in entries:
        old = left.pop(key, None)
        if old is None:
            changes.append(Change(Action.INSERT, key, entry, None))
        elif (action := compare(old.inode, entry)) and not is_newer(old, asked_at, now):
            changes.append(Change(action, key, entry, old))
    if not left:
        return changes
    newer = {key for key, old in left.items() if is_newer(old, asked_at, now)}
    removed = [
        Change(Action.REMOVE, key, None, old)
        for key, old in left.items()
        if key not in newer and key not in waiting
    ]
    return removed + [c for c in changes if not (newer and _hidden_by(c, newer))]


def _hidden_by(change: Change, newer: set[bytes]) -> bool:
    """Returns whether a newer directory has the name of the file that `change` inserts."""
    return change.action is Action.INSERT and change.key + b"/" in newer


def keys_of(name: bytes) -> tuple[bytes, bytes]:
    """Returns the order keys under which a name may be stored: as a directory, as a file."""
    return order_key(name, True), name


__all__ = [
    "Action",
    "Batch",
    "Change",
    "Pages",
    "compare",
    "inode_of",
    "is_newer",
    "keys_of",
    "name_of",
    "plan",
]
