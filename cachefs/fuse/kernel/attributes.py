"""Inodes in the kernel's format: entries, attributes, directory entries. Pure.

The nonce of a content is its generation. The kernel compares the low 32 bits: a nodeid of another
generation is another inode to it, and it drops all state of the old one.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from cachefs.core import messages as m
from cachefs.core.model import Inode, Kind
from cachefs.fuse.attributes import PREFERRED_IO_BYTES, Defaults, blocks
from cachefs.fuse.directories import Entry
from cachefs.fuse.kernel import codec

_NS: Final = 10**9
_SECONDS_MASK: Final = (1 << 64) - 1  # times before 1970 are two's complement
_NO_ATTRIBUTES: Final[tuple[int, ...]] = (0,) * 16
_DOTS: Final = frozenset((b".", b".."))
_NO_ENTRY: Final = bytes(codec.ENTRY_OUT.size)  # nodeid 0: the kernel uses only the name


def time_out(valid_for_s: float) -> tuple[int, int]:
    """Returns (seconds, nanoseconds)."""
    seconds = int(valid_for_s)
    return seconds, int((valid_for_s - seconds) * _NS)


class Attributes:
    """The attributes of one mount's inodes. `current` returns the nodeid to which an ino's name
    leads. `generations`: send them to the kernel. It must not change while the mount lives."""

    def __init__(
        self, defaults: Defaults, current: Callable[[int], int], *, generations: bool = True
    ) -> None:
        self._defaults = defaults
        self.current = current
        self.generation_bits = (1 << 64) - 1 if generations else 0

    def entry_reply(self, unique: int, found: m.Found) -> bytes:
        """Returns the reply to LOOKUP. A nodeid of 0 makes the kernel cache a missing name."""
        inode, valid_for_s = found.inode, found.valid_for_s
        if inode is None and valid_for_s <= 0:
            return codec.error_reply(unique, errno.ENOENT)
        seconds, ns = time_out(valid_for_s)
        nodeid = generation = 0
        attributes = _NO_ATTRIBUTES
        if inode is not None:
            nodeid, generation = self.identity(inode)
            attributes = self._attr(inode)
        return codec.ENTRY_REPLY.pack(
            codec.ENTRY_REPLY.size, 0, unique,
            nodeid, generation, seconds, seconds, ns, ns, *attributes,
        )  # fmt: skip

    def attr_reply(self, unique: int, found: m.Found) -> bytes:
        assert found.inode is not None
        seconds, ns = time_out(found.valid_for_s)
        attributes = self._attr(found.inode)
        return codec.ATTR_REPLY.pack(codec.ATTR_REPLY.size, 0, unique, seconds, ns, 0, *attributes)

    def dirent(self, entry: Entry) -> bytes:
        inode = entry.inode
        kind = self._defaults.mode(inode) >> codec.TYPE_SHIFT
        return codec.dirent(inode.ino, entry.cookie, kind, entry.name)

    def direntplus(self, entry: Entry) -> bytes:
        name, inode, valid_for_s, _ = entry
        if name in _DOTS:
            return _NO_ENTRY + self.dirent(entry)
        seconds, ns = time_out(valid_for_s)
        nodeid, generation = self.identity(inode)
        head = codec.ENTRY_OUT.pack(
            nodeid, generation, seconds, seconds, ns, ns, *self._attr(inode)
        )
        return head + self.dirent(entry)

    def identity(self, inode: Inode) -> tuple[int, int]:
        """Returns (nodeid, generation). Only files have incarnations."""
        nodeid = self.current(inode.ino) if inode.kind is Kind.FILE else inode.ino
        return nodeid, inode.nonce & self.generation_bits

    def _attr(self, inode: Inode) -> tuple[int, ...]:
        seconds, ns = divmod(inode.mtime_ns, _NS)
        seconds &= _SECONDS_MASK
        uid, gid = self._defaults.owner(inode)
        return (
            inode.ino, inode.size, blocks(inode), seconds, seconds, seconds, ns, ns, ns,
            self._defaults.mode(inode), 1, uid, gid, 0, PREFERRED_IO_BYTES, 0,
        )  # fmt: skip
