"""Typed reads of the namespace in one snapshot (or in a transaction that sees its own writes)."""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import Stale
from cachefs.core.model import ROOT_INO, Inode
from cachefs.core.policies import Policy
from master.state.feed_state import FeedRecord
from master.state.records import (
    META_KEY,
    ORDER_END,
    DirectoryState,
    Meta,
    MountRecord,
    Stored,
    decode_dentry,
    decode_directory,
    decode_event,
    decode_feed,
    decode_meta,
    decode_mount,
    decode_policy,
    dentry_key,
    feed_key,
    ino_key,
    split_dentry_key,
)
from master.store.base import Reader, Table

ABOVE_ALL: Final = b"\xff" * 9
MAX_POLICIES: Final = 10_000
MAX_HELD: Final = 1 << 20  # more than a mount table can have


class Names:
    """Typed reads over a `Reader`, valid as long as the reader."""

    __slots__ = ("reader",)

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def meta(self) -> Meta | None:
        """Returns the record, None before initialisation. Raises BadConfig for another format."""
        value = self.reader.get(Table.META, META_KEY)
        return None if value is None else decode_meta(value)

    def child(self, parent: int, name: bytes) -> Stored | None:
        """Returns the stored name; a directory takes precedence over a file."""
        key = ino_key(parent) + name
        value = self.reader.get(Table.DENTRIES, key + b"/")
        if value is None:
            value = self.reader.get(Table.DENTRIES, key) if name else None
        return None if value is None else decode_dentry(value)

    def dentry(self, parent: int, order_key: bytes) -> Stored | None:
        value = self.reader.get(Table.DENTRIES, dentry_key(parent, order_key))
        return None if value is None else decode_dentry(value)

    def place(self, ino: int) -> tuple[int, bytes] | None:
        """Returns (parent ino, order key) of an ino; None if it was removed."""
        value = self.reader.get(Table.PARENTS, ino_key(ino))
        return None if value is None else split_dentry_key(value)

    def inode(self, ino: int) -> Stored | None:
        """Returns the dentry of an ino; None if it was replaced or removed."""
        place = self.place(ino)
        stored = None if place is None else self.dentry(*place)
        return stored if stored is not None and stored.inode.ino == ino else None

    def root(self) -> Inode:
        stored = self.inode(ROOT_INO)
        assert stored is not None, "a store always has a root"
        return stored.inode

    def raw_children(
        self, parent: int, after: bytes, below: bytes | None, limit: int, limit_bytes: int = 1 << 62
    ) -> list[tuple[bytes, bytes]]:
        """Returns (full key, value) of dentries with `after` < order key < `below` (None: all)."""
        prefix = ino_key(parent)
        return self.reader.scan(
            Table.DENTRIES,
            prefix + after,
            prefix + (ORDER_END if below is None else below),
            limit,
            limit_bytes,
        )

    def children(
        self, parent: int, after: bytes, below: bytes | None, limit: int
    ) -> list[tuple[bytes, Stored]]:
        """Returns (order key, record) pairs in order."""
        found = self.raw_children(parent, after, below, limit)
        return [(key[8:], decode_dentry(value)) for key, value in found]

    def known_directories(self, after: int, limit: int) -> list[int]:
        """Returns the next directories with an ino above `after` that were listed, or of which a
        name is stored; in order."""
        rows = self.reader.scan(Table.DIRECTORIES, ino_key(after), ABOVE_ALL, limit)
        listed = (int.from_bytes(key, "big") for key, _ in rows)
        return sorted({*listed, *self._parents(after, limit)})[:limit]

    def _parents(self, after: int, limit: int) -> list[int]:
        found: list[int] = []
        while len(found) < limit:
            start = ino_key(found[-1] if found else after) + ORDER_END
            rows = self.reader.scan(Table.DENTRIES, start, ABOVE_ALL, 1)
            if not rows:
                break
            found.append(split_dentry_key(rows[0][0])[0])
        return found

    def feed(self, root: int) -> FeedRecord | None:
        """Returns what is kept of the reports about a source."""
        value = self.reader.get(Table.META, feed_key(root))
        return None if value is None else decode_feed(value)

    def directory(self, ino: int) -> DirectoryState | None:
        value = self.reader.get(Table.DIRECTORIES, ino_key(ino))
        return None if value is None else decode_directory(value)

    def unchecked(self, limit: int) -> list[tuple[int, bytes]]:
        """Returns (directory, name) of names that events reported."""
        found = self.reader.scan(Table.UNCHECKED, b"", ABOVE_ALL, limit)
        return [split_dentry_key(key) for key, _ in found]

    def mounts(self) -> list[tuple[int, MountRecord]]:
        """Returns (root ino, record) of each source."""
        found = self.reader.scan(Table.MOUNTS, b"", ABOVE_ALL, 1 << 20)
        return [(int.from_bytes(key, "big"), decode_mount(value)) for key, value in found]

    def mount(self, root: int) -> MountRecord | None:
        value = self.reader.get(Table.MOUNTS, ino_key(root))
        return None if value is None else decode_mount(value)

    def held_below(self, parent: int) -> dict[bytes, int]:
        """Returns order key -> ino of a directory's held children. They are few."""
        prefix = ino_key(parent)
        found = self.reader.scan(Table.HELD, prefix, prefix + ORDER_END, MAX_HELD)
        return {key[8:]: int.from_bytes(value, "big") for key, value in found}

    def is_held(self, parent: int, order_key: bytes) -> bool:
        return self.reader.get(Table.HELD, dentry_key(parent, order_key)) is not None

    def held(self) -> list[tuple[int, bytes, int]]:
        """Returns (parent ino, order key, ino) of every held dentry."""
        found = self.reader.scan(Table.HELD, b"", ABOVE_ALL, MAX_HELD)
        return [(*split_dentry_key(key), int.from_bytes(value, "big")) for key, value in found]

    def policies(self) -> dict[bytes, Policy]:
        """Returns all policies by path."""
        found = self.reader.scan(Table.POLICIES, b"", ABOVE_ALL, MAX_POLICIES)
        return dict(decode_policy(value) for _, value in found)

    def source_of(self, directory: int) -> tuple[int, str]:
        """Returns (root ino, UFS key) of the mount that holds a directory; the key is "" outside
        all sources. Raises Stale if the ino was removed."""
        at = directory
        while (record := self.mount(at)) is None and at != ROOT_INO:
            above = self.place(at)
            if above is None:
                raise Stale(f"inode {directory} is gone")
            at = above[0]
        return at, "" if record is None else record.source.key

    def events_after(self, seq: int, limit: int) -> list[tuple[int, list[tuple[int, bytes]]]]:
        found = self.reader.scan(Table.EVENTS, ino_key(seq), ABOVE_ALL, limit)
        return [(int.from_bytes(key, "big"), decode_event(value)) for key, value in found]

    def orphans(self, limit: int) -> list[int]:
        """Returns removed directories whose children are not all deleted."""
        found = self.reader.scan(Table.ORPHANS, b"", ABOVE_ALL, limit)
        return [int.from_bytes(key, "big") for key, _ in found]
