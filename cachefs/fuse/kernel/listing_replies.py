"""The replies to READDIRPLUS, which `find` waits for: a whole reply is encoded in one loop. Pure.

A record is fuse_entry_out, fuse_dirent and the padded name. One struct per length of a name packs
all of it. Parts that many rows share are packed once: the validity, and the mode with the owner.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final
from zlib import crc32

from cachefs.core.model import MAX_NAME_BYTES, Inode, Kind
from cachefs.fuse.attributes import BLOCK_BYTES, PREFERRED_IO_BYTES, Defaults
from cachefs.fuse.directories import HASH_BITS, Entries
from cachefs.fuse.kernel import codec
from cachefs.fuse.kernel.attributes import Attributes, time_out

MAX_OWNERS: Final = 4096  # combinations of mode and owner that are kept packed
_NS: Final = 10**9
_SECONDS_MASK: Final = (1 << 64) - 1
_FILE: Final = Kind.FILE
_FIXED_BYTES: Final = codec.ENTRY_OUT.size + codec.DIRENT.size
_VALIDITY: Final = struct.Struct("<QQII")  # of the name, of the attributes, nanoseconds of both
_OWNER: Final = struct.Struct("<IIIIIII")  # mode nlink uid gid rdev blksize flags
_NO_VALIDITY: Final = bytes(_VALIDITY.size)


def _record(name_bytes: int) -> struct.Struct:
    """Returns the struct of a record: nodeid generation, validity, ino size blocks, the times,
    owner, ino cookie namelen type, name."""
    padded = name_bytes + -name_bytes % codec.NAME_ALIGNMENT
    return struct.Struct(f"<QQ24sQQQQQQIII28sQQII{padded}s")


_RECORDS: Final = tuple(_record(length) for length in range(MAX_NAME_BYTES + 1))
assert _RECORDS[3].size == _FIXED_BYTES + codec.NAME_ALIGNMENT


class ListingReplies:
    """The replies of one mount. `has_moved`: some file has a nodeid other than its ino."""

    def __init__(
        self, attributes: Attributes, defaults: Defaults, has_moved: Callable[[], bool]
    ) -> None:
        self._attributes = attributes
        self._defaults = defaults
        self._has_moved = has_moved
        self._owners: dict[tuple[Kind, int, int, int], tuple[bytes, int]] = {}

    def names(self, entries: Entries, room: int) -> bytes:
        """Returns as many entries without attributes as fit into `room` bytes."""
        parts: list[bytes] = []
        for entry in entries:
            record = self._attributes.dirent(entry)
            room -= len(record)
            if room < 0:
                break
            parts.append(record)
        return b"".join(parts)

    def plus(self, entries: Entries, room: int) -> bytes:
        """Returns as many entries with their attributes as fit into `room` bytes."""
        parts: list[bytes] = []
        for dot in entries.dots:
            record = self._attributes.direntplus(dot)
            room -= len(record)
            if room < 0:
                return b"".join(parts)
            parts.append(record)
        parts += self._rows(entries, room)
        return b"".join(parts)

    def _rows(self, entries: Entries, room: int) -> list[bytes]:
        seconds, ns = time_out(entries.valid_for_s)
        valid = _VALIDITY.pack(seconds, seconds, ns, ns)
        names, inodes, outdated = entries.page.names, entries.page.inodes, entries.find_outdated()
        owners, generation_bits = self._owners, self._attributes.generation_bits
        has_moved, current = self._has_moved(), self._attributes.current
        parts: list[bytes] = []
        cookie = entries.ordinal << HASH_BITS
        for number in range(entries.place, len(names)):
            name, inode = names[number], inodes[number]
            record = _RECORDS[len(name)]
            room -= record.size
            if room < 0:
                break
            ino, size, kind = inode.ino, inode.size, inode.kind
            key = kind, inode.mode, inode.uid, inode.gid
            owner, type_of = owners.get(key) or self._owner(key, inode)
            at_s, at_ns = divmod(inode.mtime_ns, _NS)
            at_s &= _SECONDS_MASK
            parts.append(
                record.pack(
                    current(ino) if has_moved and kind is _FILE else ino,
                    inode.nonce & generation_bits,
                    valid if outdated is None or not outdated(name) else _NO_VALIDITY,
                    ino, size, -(-size // BLOCK_BYTES), at_s, at_s, at_s, at_ns, at_ns, at_ns,
                    owner, ino, cookie | crc32(name), len(name), type_of, name,
                )
            )  # fmt: skip
            cookie += 1 << HASH_BITS
        return parts

    def _owner(self, key: tuple[Kind, int, int, int], inode: Inode) -> tuple[bytes, int]:
        """Returns the packed mode and owner, and the type of the directory entry."""
        if len(self._owners) >= MAX_OWNERS:
            self._owners.clear()
        mode = self._defaults.mode(inode)
        uid, gid = self._defaults.owner(inode)
        packed = _OWNER.pack(mode, 1, uid, gid, 0, PREFERRED_IO_BYTES, 0)
        self._owners[key] = packed, mode >> codec.TYPE_SHIFT
        return self._owners[key]
