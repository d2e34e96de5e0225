"""Typed writes of the namespace: every change of names, with its inos, back pointers and events.

Invariants: a dentry and its back pointer are written together. An ino is assigned once. Each change
to a name that a client may have cached is in an event of the same transaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

import msgspec

from cachefs.core.errors import BadConfig, Stale
from cachefs.core.model import MAX_INO, ROOT_INO, Fingerprint, Inode, Kind, NamespaceId
from cachefs.core.policies import Policy
from connectors.base import Entry, order_key
from master.state import merge, numbers
from master.state.feed_state import FeedRecord
from master.state.merge import Action, Batch, Change
from master.state.records import (
    EVERYTHING,
    FORMAT,
    META_KEY,
    NO_PARENT,
    POLICIES,
    ROOT_KEY,
    TIMES,
    DirectoryState,
    Meta,
    MountRecord,
    Stored,
    dentry_key,
    encode,
    encode_dentry,
    feed_key,
    ino_key,
    name_of,
    policy_key,
)
from master.store.base import Store, Table, Writer
from master.store.comparison import Compared, changes_of, compare, compare_name
from master.store.snapshot import Names

T = TypeVar("T")

MAX_STORED_PER_MERGE: Final = 4000  # bounds one transaction's work and memory
EVENT_NAMES: Final = 500
EVENTS_KEPT: Final = 10_000
_TRIM_AT_ONCE: Final = 200


class Merged(msgspec.Struct, frozen=True):
    """The result of a merge. `resume_after`: the order key to continue after; None: it is done."""

    changed: int = 0
    removed_directories: int = 0
    resume_after: bytes | None = None
    compared: Compared = Compared()


class Transaction(Names):
    """Reads and writes in one transaction of the engine. `finish` writes counters and events."""

    __slots__ = ("_events", "_meta", "removed_directories", "stat_changes", "writer")

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.writer = writer
        meta = self.meta()
        if meta is None:
            raise BadConfig("the metadata store was never initialised")
        self._meta = meta
        self._events: list[tuple[int, bytes]] = []
        self.removed_directories = 0  # paths below them are no longer valid
        self.stat_changes: Sequence[Change] = ()  # made by the last `apply_stat`

    def finish(self) -> None:
        """Writes counters and events if anything changed."""
        self._write_events()
        if self._meta != self.meta():
            self.writer.put(Table.META, [(META_KEY, encode(self._meta))])

    def merge(
        self,
        parent: int,
        batch: Batch,
        asked_at: float,
        now: float,
        watched: frozenset[bytes],
        skipped: frozenset[bytes] = frozenset(),
    ) -> Merged:
        """Merges the batch into the stored names, except those `skipped`, which stay as they are.
        Announces new names if the directory was listed before or if they are in `watched`. Raises
        Stale if the directory was removed."""
        if parent != ROOT_INO and self.place(parent) is None:
            raise Stale("the directory was removed while it was listed")
        events_before = len(self._events)
        compared = compare(self, parent, batch, asked_at, now, MAX_STORED_PER_MERGE)
        if skipped:
            changes = [c for c in compared.changes if name_of(c.key) not in skipped]
            compared = compared._replace(changes=changes)
        self._apply(parent, compared.changes, asked_at, watched, announce=compared.was_listed)
        cut = compared.upto if compared.cut else None
        changed = len(self._events) - events_before
        return Merged(changed, self.removed_directories, cut, compared)

    def complete_listing(self, directory: int, listed_at: float, hidden: int) -> None:
        """Records that a whole listing, which began at `listed_at`, was merged."""
        old = self.directory(directory) or DirectoryState()
        self._count(hidden=hidden - old.hidden)
        self._put_directory(directory, DirectoryState(listed_at, True, hidden))

    def distrust_directory(self, directory: int) -> None:
        """Clears the time of a directory's listing and keeps its names."""
        old = self.directory(directory)
        if old is not None and old.listed_at:
            self._put_directory(directory, msgspec.structs.replace(old, listed_at=0.0))

    def forget_listing(self, directory: int) -> None:
        """Deletes the record of a directory's listing, as if it had never been listed."""
        old = self.directory(directory)
        if old is not None:
            self._count(hidden=-old.hidden)
            self.writer.delete(Table.DIRECTORIES, [ino_key(directory)])

    def _put_directory(self, ino: int, state: DirectoryState) -> None:
        self.writer.put(Table.DIRECTORIES, [(ino_key(ino), encode(state))])

    def apply_stat(
        self, parent: int, name: bytes, entry: Entry | None, asked_at: float, *, announce_new: bool
    ) -> Stored | None:
        """Applies the origin's reply about one name (None: not found) and returns the stored name.
        An unchanged name gets the new time of checking, unless that is 0."""
        if parent != ROOT_INO and self.place(parent) is None:
            return None
        dir_key = order_key(name, True)
        if self.is_held(parent, dir_key):
            return self._apply_stat_of_held(parent, dir_key, entry, asked_at)
        changes = compare_name(self, parent, name, entry)
        watched = frozenset([name]) if announce_new else frozenset[bytes]()
        self._apply(parent, changes, asked_at, watched, announce=False)
        self.stat_changes = changes
        if entry is None:
            return None
        key = order_key(name, entry.fingerprint.kind is Kind.DIRECTORY)
        if all(change.entry is None for change in changes):
            self._checked(parent, key, asked_at)
        return self.dentry(parent, key)

    def _apply_stat_of_held(
        self, parent: int, key: bytes, entry: Entry | None, asked_at: float
    ) -> Stored | None:
        """Returns a held name, which no origin removes. Updates only the attributes of a directory
        above a root."""
        old = self.dentry(parent, key)
        assert old is not None, "what is held is there"
        if entry is None or entry.fingerprint.kind is not Kind.DIRECTORY:
            return old
        return old if self.mount(old.inode.ino) is not None else self.update(old, entry, asked_at)

    def update(self, old: Stored, entry: Entry, asked_at: float) -> Stored:
        """Updates the attributes of a directory. Raises Stale if it was removed."""
        place = self.place(old.inode.ino)
        if place is None:
            raise Stale("the directory is gone")
        parent, key = place
        changes = changes_of(key, entry, old)
        self._apply(parent, changes, asked_at, frozenset(), announce=False)
        if not changes:
            self._checked(parent, key, asked_at)
        stored = self.dentry(parent, key)
        assert stored is not None, "an update removes nothing"
        return stored

    def _checked(self, parent: int, key: bytes, asked_at: float) -> None:
        """Records when an unchanged name was last seen at the origin."""
        old = self.dentry(parent, key)
        if old is not None and asked_at:
            self.put_dentry(parent, key, msgspec.structs.replace(old, checked_at=asked_at))

    def announce(self, parent: int, name: bytes) -> None:
        """Queues an event that makes clients invalidate a name."""
        self._events.append((parent, name))

    def _apply(
        self,
        parent: int,
        changes: Sequence[Change],
        checked_at: float,
        watched: frozenset[bytes],
        *,
        announce: bool,
    ) -> None:
        """Applies removals first, so that a file can replace a directory of the same name."""
        self._remove(parent, [c for c in changes if c.action is Action.REMOVE])
        kept = [c for c in changes if c.action is not Action.REMOVE]
        inodes = self._inodes(kept)
        prefix = ino_key(parent)
        born = [
            (ino_key(inode.ino), prefix + c.key)
            for c, inode in zip(kept, inodes, strict=True)
            if c.action is not Action.UPDATE
        ]
        self.writer.delete(Table.PARENTS, _inos(c for c in kept if c.action is Action.REPLACE))
        self.writer.put(Table.PARENTS, born)
        self.writer.put(
            Table.DENTRIES,
            [
                (prefix + c.key, encode_dentry(inode, checked_at))
                for c, inode in zip(kept, inodes, strict=True)
            ],
        )
        inserted = sum(c.action is Action.INSERT for c in kept)
        self._count(names=inserted)
        if not announce and not watched and inserted == len(kept):
            return  # no client has cached one of these
        for change in kept:
            name = name_of(change.key)
            if announce or change.action is not Action.INSERT or name in watched:
                self._events.append((parent, name))

    def _inodes(self, changes: Sequence[Change]) -> list[Inode]:
        nonces = memoryview(os.urandom(8 * len(changes))).cast("Q") if changes else ()
        ino = self._meta.next_ino
        inodes = []
        for change, nonce in zip(changes, nonces, strict=True):
            assert change.entry is not None
            if change.action is Action.UPDATE and change.stored is not None:
                old = change.stored.inode
                inodes.append(merge.inode_of(change.entry, old.ino, old.nonce, old.version))
            else:
                inodes.append(merge.inode_of(change.entry, ino, nonce))
                ino += 1
        if ino > MAX_INO:
            raise BadConfig("no inode numbers are left", remedy="start with a new metadata store")
        if ino != self._meta.next_ino:
            self._meta = msgspec.structs.replace(self._meta, next_ino=ino)
        return inodes

    def skip_inos(self) -> None:
        """Skips inode numbers that a later state of this store may have assigned."""
        next_ino = numbers.skipped(self._meta.next_ino)
        self._meta = msgspec.structs.replace(self._meta, next_ino=next_ino)

    def _remove(self, parent: int, removed: Sequence[Change]) -> None:
        prefix = ino_key(parent)
        for change in removed:
            assert change.stored is not None
            self._events.append((parent, name_of(change.key)))
            if change.stored.inode.kind is Kind.DIRECTORY:
                self._bury(change.stored.inode.ino)
        self.writer.delete(Table.DENTRIES, [prefix + c.key for c in removed])
        self.writer.delete(Table.PARENTS, _inos(removed))
        self._count(names=-len(removed))

    def _bury(self, ino: int) -> None:
        self.removed_directories += 1
        self.forget_listing(ino)
        self.writer.put(Table.ORPHANS, [(ino_key(ino), b"")])

    def collect_orphan(self, ino: int) -> bool:
        """Deletes some children of a removed directory. Returns whether none are left."""
        children = self.children(ino, b"", None, MAX_STORED_PER_MERGE)
        for _, child in children:
            if child.inode.kind is Kind.DIRECTORY:
                self._bury(child.inode.ino)
        self.writer.delete(Table.DENTRIES, [dentry_key(ino, key) for key, _ in children])
        self.writer.delete(Table.PARENTS, [ino_key(child.inode.ino) for _, child in children])
        self._count(names=-len(children))
        if len(children) == MAX_STORED_PER_MERGE:
            return False
        self.writer.delete(Table.ORPHANS, [ino_key(ino)])
        self.writer.delete(Table.DIRECTORIES, [ino_key(ino)])
        return True

    def put_mount(self, root: int, record: MountRecord) -> None:
        self.writer.put(Table.MOUNTS, [(ino_key(root), encode(record))])

    def put_feed(self, root: int, record: FeedRecord | None) -> None:
        """Replaces what is kept of the reports about a source; None: deletes it. Writes nothing if
        the source was removed, or has another feed now."""
        mount = self.mount(root)
        if record is None:
            self.writer.delete(Table.META, [feed_key(root)])
        elif mount is not None and mount.push == record.push:
            self.writer.put(Table.META, [(feed_key(root), encode(record))])

    def check_source(self, directory: int, root: int, key: str) -> None:
        """Raises Stale if a directory is no longer in the mount of that root and UFS. The caller
        must then discard the reply, which is not from the directory's present source."""
        if self.source_of(directory) != (root, key):
            raise Stale("the source was removed, or another was put in its place")

    def hold(self, parent: int, key: bytes, ino: int) -> None:
        self.writer.put(Table.HELD, [(dentry_key(parent, key), ino_key(ino))])

    def unhold(self, parent: int, key: bytes) -> None:
        self.writer.delete(Table.HELD, [dentry_key(parent, key)])

    def insert_directory(self, parent: int, name: bytes) -> int:
        """Inserts a directory that no origin has listed yet. Returns its ino."""
        key = order_key(name, True)
        made = Change(Action.INSERT, key, Entry(name, Fingerprint(Kind.DIRECTORY)), None)
        self._apply(parent, [made], 0.0, frozenset(), announce=True)
        stored = self.dentry(parent, key)
        assert stored is not None
        return stored.inode.ino

    def remove(self, parent: int, key: bytes) -> None:
        """Removes a stored name and everything below it."""
        self._remove(parent, [Change(Action.REMOVE, key, None, self.dentry(parent, key))])

    def put_dentry(self, parent: int, key: bytes, stored: Stored) -> None:
        value = encode_dentry(stored.inode, stored.checked_at)
        self.writer.put(Table.DENTRIES, [(dentry_key(parent, key), value)])

    def mark_unchecked(self, marks: Iterable[tuple[int, bytes]]) -> None:
        """Records names as reported."""
        self.writer.put(Table.UNCHECKED, [(dentry_key(*mark), b"") for mark in marks])

    def end_unchecked(self, marks: Iterable[tuple[int, bytes]]) -> None:
        self.writer.delete(Table.UNCHECKED, [dentry_key(*mark) for mark in marks])

    def distrust(self, parent: int, key: bytes) -> None:
        """Clears the time at which a name was checked."""
        stored = self.dentry(parent, key)
        if stored is not None:
            self.put_dentry(parent, key, msgspec.structs.replace(stored, checked_at=0.0))

    def put_policy(
        self, path: bytes, policy: Policy, *, other_names: bool = False, other_times: bool = False
    ) -> None:
        """Stores the policy of a path, or deletes an empty one, and announces it to workers.
        `other_names`: names are valid for other times, so workers invalidate all of them.
        `other_times`: the TTLs or quotas of cached contents may have changed."""
        if policy.says_nothing:
            self.writer.delete(Table.POLICIES, [policy_key(path)])
        else:
            self.writer.put(Table.POLICIES, [(policy_key(path), encode((path, policy)))])
        self.announce(*(EVERYTHING if other_names else POLICIES))
        if other_times:
            self.announce(*TIMES)

    def _count(self, names: int = 0, hidden: int = 0) -> None:
        if names or hidden:
            self._meta = msgspec.structs.replace(
                self._meta, names=self._meta.names + names, hidden=self._meta.hidden + hidden
            )

    def _write_events(self) -> None:
        if not self._events:
            return
        groups = [
            self._events[start : start + EVENT_NAMES]
            for start in range(0, len(self._events), EVENT_NAMES)
        ]
        first = self._meta.seq + 1
        self.writer.put(
            Table.EVENTS, [(ino_key(first + n), encode(group)) for n, group in enumerate(groups)]
        )
        seq = self._meta.seq + len(groups)
        first_seq = self._trim(max(self._meta.first_seq, seq - EVENTS_KEPT + 1))
        self._meta = msgspec.structs.replace(self._meta, seq=seq, first_seq=first_seq)
        self._events = []

    def _trim(self, wanted_first: int) -> int:
        """Deletes at most `_TRIM_AT_ONCE` old events. Returns the number of the first one kept."""
        first = min(wanted_first, self._meta.first_seq + _TRIM_AT_ONCE)
        gone: Iterable[int] = range(self._meta.first_seq, first)
        self.writer.delete(Table.EVENTS, map(ino_key, gone))
        return first


def _inos(changes: Iterable[Change]) -> list[bytes]:
    """Returns the keys of the inos that these changes remove."""
    return [ino_key(c.stored.inode.ino) for c in changes if c.stored is not None]


def transact(store: Store, function: Callable[[Transaction], T]) -> Future[T]:
    """Queues a typed write; see `Store.write`."""

    def run(writer: Writer) -> T:
        transaction = Transaction(writer)
        result = function(transaction)
        transaction.finish()
        return result

    return store.write(run)


def initialise(store: Store, namespace: NamespaceId, now_s: float = 0.0) -> Meta:
    """Returns the store's `Meta` record. Creates the record and the root in an empty store. In any
    other store, skips inode numbers (`master.state.numbers`); `now_s` is the wall time."""

    def run(writer: Writer) -> Meta:
        names = Names(writer)
        if (meta := names.meta()) is not None:
            next_ino = numbers.first_of_start(meta.next_ino, now_s)
            meta = msgspec.structs.replace(meta, next_ino=next_ino)
            writer.put(Table.META, [(META_KEY, encode(meta))])
            return meta
        meta = Meta(FORMAT, namespace, ROOT_INO + 1)
        root_place = dentry_key(NO_PARENT, ROOT_KEY)
        nonce = int.from_bytes(os.urandom(8), "big")
        writer.put(Table.META, [(META_KEY, encode(meta))])
        writer.put(Table.PARENTS, [(ino_key(ROOT_INO), root_place)])
        root = Inode(ROOT_INO, Kind.DIRECTORY, nonce=nonce)
        writer.put(Table.DENTRIES, [(root_place, encode_dentry(root, 0.0))])
        return meta

    return store.write(run).result()
