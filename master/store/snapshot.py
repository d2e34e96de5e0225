"""Typed reads of the namespace in one snapshot (or in a transaction that sees its own writes)."""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import Stale
from cachefs.core.model import ROOT_INO, Inode
from cachefs.core.policies import Policy
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
    decode_meta,
    decode_mount,
    decode_policy,
    dentry_key,
    ino_key,
    split_dentry_key,
)
from master.store.base import Reader, Table

ABOVE_ALL: Final = b"\xff" * 9
MAX_POLICIES: Final = 10_000
MAX_HELD: Final = 1 << 20  # above what a mount table can have


class Names:
    """Reads over a `Reader`; lives as long as it does."""

    __slots__ = ("reader",)

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def meta(self) -> Meta | None:
        """None in a store that was never initialised. Raises BadConfig for another format."""
        value = self.reader.get(Table.META, META_KEY)
        return None if value is None else decode_meta(value)

    def child(self, parent: int, name: bytes) -> Stored | None:
        """The name as it is stored; a directory wins over a file."""
        key = ino_key(parent) + name
        value = self.reader.get(Table.DENTRIES, key + b"/")
        if value is None:
            value = self.reader.get(Table.DENTRIES, key) if name else None
        return None if value is None else decode_dentry(value)

    def dentry(self, parent: int, order_key: bytes) -> Stored | None:
        value = self.reader.get(Table.DENTRIES, dentry_key(parent, order_key))
        return None if value is None else decode_dentry(value)

    def place(self, ino: int) -> tuple[int, bytes] | None:
        """(parent ino, order key) of an ino; None when it is gone."""
        value = self.reader.get(Table.PARENTS, ino_key(ino))
        return None if value is None else split_dentry_key(value)

    def inode(self, ino: int) -> Stored | None:
        """By ino; None when it was replaced or is gone."""
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
        """Dentries (full key, value) with `after` < order key < `below` (None: to the end)."""
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
        """(order key, record) in order."""
        found = self.raw_children(parent, after, below, limit)
        return [(key[8:], decode_dentry(value)) for key, value in found]

    def directory(self, ino: int) -> DirectoryState | None:
        value = self.reader.get(Table.DIRECTORIES, ino_key(ino))
        return None if value is None else decode_directory(value)

    def mounts(self) -> list[tuple[int, MountRecord]]:
        """(root ino, record)."""
        found = self.reader.scan(Table.MOUNTS, b"", ABOVE_ALL, 1 << 20)
        return [(int.from_bytes(key, "big"), decode_mount(value)) for key, value in found]

    def mount(self, root: int) -> MountRecord | None:
        value = self.reader.get(Table.MOUNTS, ino_key(root))
        return None if value is None else decode_mount(value)

    def held_below(self, parent: int) -> dict[bytes, int]:
        """Order key -> ino of a directory's held children; there are few."""
        prefix = ino_key(parent)
        found = self.reader.scan(Table.HELD, prefix, prefix + ORDER_END, MAX_HELD)
        return {key[8:]: int.from_bytes(value, "big") for key, value in found}

    def is_held(self, parent: int, order_key: bytes) -> bool:
        return self.reader.get(Table.HELD, dentry_key(parent, order_key)) is not None

    def held(self) -> list[tuple[int, bytes, int]]:
        """Every held dentry: (parent ino, order key, ino)."""
        found = self.reader.scan(Table.HELD, b"", ABOVE_ALL, MAX_HELD)
        return [(*split_dentry_key(key), int.from_bytes(value, "big")) for key, value in found]

    def policies(self) -> dict[bytes, Policy]:
        """All, by path."""
        found = self.reader.scan(Table.POLICIES, b"", ABOVE_ALL, MAX_POLICIES)
        return dict(decode_policy(value) for _, value in found)

    def source_of(self, directory: int) -> tuple[int, str]:
        """(root ino, UFS key) of the mount that a directory lies in; the key is "" where no source
        is. Raises Stale when the ino is gone."""
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
        """Removed directories whose children are still to be deleted."""
        found = self.reader.scan(Table.ORPHANS, b"", ABOVE_ALL, limit)
        return [int.from_bytes(key, "big") for key, _ in found]
