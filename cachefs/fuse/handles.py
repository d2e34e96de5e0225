"""The open file table: the kernel's file handles. The only I/O is closing descriptors.

A handle is `complete` (its descriptor has every byte) or partial: it reads the ranges in `present`
from its descriptor, and from `segments` the bytes that the cache did not admit. The last user of a
descriptor closes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from cachefs.core.errors import NotFound
from cachefs.core.messages import MOST_KEPT
from cachefs.core.model import Inode, NamespaceId
from cachefs.core.owned_fd import OwnedFd
from cachefs.fuse.intervals import Intervals


class Descriptor:
    """A descriptor that closes once it is dropped and has no users. `owner`: of `fd`, if it is not
    this object alone."""

    __slots__ = ("_dropped", "_owner", "_users", "fd", "flags", "tier")

    def __init__(self, fd: int, flags: int, tier: int = 0, owner: OwnedFd | None = None) -> None:
        self.fd = fd
        self._owner = owner
        self.flags = flags  # how it is read, see `cachefs.fuse.pread`
        self.tier = tier  # of the node, whose disk it is read from
        self._users = 0
        self._dropped = False

    def __enter__(self) -> int:
        self._users += 1
        return self.fd

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        self._close_if_unused()

    def drop(self) -> None:
        """Gives up ownership: the last user closes the descriptor. Idempotent."""
        self._dropped = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._dropped and not self._users and self.fd >= 0:
            fd, self.fd = self.fd, -1
            if self._owner is None:
                os.close(fd)
            else:
                self._owner.close()


@dataclass(eq=False, slots=True)
class Segment:
    """Bytes [start, end) of the file, at `offset - base` of a separate descriptor. `once`: the
    handle drops the segment after a read to its end."""

    start: int
    end: int
    base: int
    descriptor: Descriptor
    once: bool = False


class FileHandle:
    """An open file. `server_handle` belongs to the connection's `epoch`; 0: none is needed. A
    handle of epoch 0 that is not complete must be opened at the server before a read: a predecessor
    opened it, or it now bypasses its tier."""

    __slots__ = (
        "complete",
        "descriptor",
        "epoch",
        "ino",
        "inode",
        "keep",
        "namespace",
        "nonce",
        "past_tier",
        "pid",
        "present",
        "segments",
        "server_handle",
        "size",
        "tier",
        "warm",
        "was_read",
    )

    def __init__(self, ino: int, size: int, pid: int, nonce: int = 0) -> None:
        self.ino = ino
        self.inode: Inode | None = None  # as it was opened; a predecessor's may lack attributes
        self.nonce = nonce  # of the opened content; 0: not known
        self.namespace = NamespaceId(b"")  # in which the server knows `ino`
        self.size = size
        self.pid = pid  # of the opener; its signals interrupt reads
        self.complete = size == 0
        self.warm = False  # opened without a request: its reads count as hits
        self.descriptor: Descriptor | None = None
        self.present: Intervals | None = None
        self.segments: list[Segment] = []
        self.keep = MOST_KEPT  # maximum of segments, from the server's last reply
        self.was_read = False  # since the last tick of `SegmentReclaimer`
        self.past_tier = False  # the tier's disk did not respond: the server must bypass it
        self.tier = 0  # in which the server has the file
        self.server_handle = 0
        self.epoch = 0

    @classmethod
    def of(cls, inode: Inode, size: int, pid: int) -> FileHandle:
        """Returns a handle of an inode. `size` -1: the server has not confirmed it yet."""
        handle = cls(inode.ino, size, pid, inode.nonce)
        handle.inode = inode
        return handle

    def use_complete(self, descriptor: Descriptor | None) -> None:
        """Reads every byte from `descriptor` from now on (None: from the present one)."""
        if descriptor is not None:
            self._replace(descriptor)
        assert self.descriptor is not None
        self.complete = True
        self.present = None
        self._drop_segments(0)

    def use_partial(self, descriptor: Descriptor | None, server_handle: int, epoch: int) -> None:
        """Reads granted ranges from `descriptor` (None: the cache did not admit the file)."""
        if descriptor is not None:
            self._replace(descriptor)
        self.present = Intervals()
        self.server_handle = server_handle
        self.epoch = epoch

    def reads_from(self, tier: int) -> bool:
        """Returns whether the cache file or a segment of this handle is in that tier."""
        own = [self.descriptor] if self.descriptor is not None else []
        return any(one.tier == tier for one in (*own, *(part.descriptor for part in self.segments)))

    def go_past_tier(self) -> None:
        """Stops reading from the cache file: reads bypass the tier from now on."""
        self.past_tier = True
        self.complete = self.warm = False
        self.present = Intervals()
        self._drop_segments(0)
        if not self.server_handle:
            self.epoch = 0  # the next read opens it at the server

    def add_segment(self, segment: Segment, keep: int) -> None:
        """Adds a segment and keeps the most recent `keep` segments from now on."""
        self.keep = max(1, keep)
        self.segments.append(segment)
        self._drop_segments(self.keep)

    def was_read_to(self, end: int) -> None:
        """Drops the read-once segments that end at `end` or before."""
        for segment in [*self.segments]:
            if segment.once and segment.end <= end:
                self.segments.remove(segment)
                segment.descriptor.drop()

    def give_back(self) -> None:
        """Drops all segments. Reads of their bytes send requests to the server again."""
        self._drop_segments(0)

    def source(self, position: int) -> tuple[Descriptor, int, int] | None:
        """Returns (descriptor, base, end) of the bytes readable at `position` now, or None."""
        if self.complete and self.descriptor is not None:
            return self.descriptor, 0, self.size
        if self.present is not None and self.descriptor is not None:
            end = self.present.end_of(position)
            if end > position:
                return self.descriptor, 0, end
        for segment in reversed(self.segments):
            if segment.start <= position < segment.end:
                self.was_read = True
                return segment.descriptor, segment.base, segment.end
        return None

    def close(self) -> None:
        """Drops every descriptor. Idempotent."""
        if self.descriptor is not None:
            self.descriptor.drop()
        self._drop_segments(0)

    def _replace(self, descriptor: Descriptor) -> None:
        if self.descriptor is not None:
            self.descriptor.drop()
        self.descriptor = descriptor

    def _drop_segments(self, keep: int) -> None:
        while len(self.segments) > keep:
            self.segments.pop(0).descriptor.drop()


class HandleTable:
    """File handles by number, with a count of open handles per ino and the inode of its first."""

    def __init__(self) -> None:
        self._handles: dict[int, FileHandle] = {}
        self._opens: dict[int, int] = {}
        self._inodes: dict[int, Inode] = {}  # of open inos
        self._last = 0

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[FileHandle]:
        return iter(self._handles.values())

    def add(self, handle: FileHandle, fh: int = 0) -> int:
        """Adds a handle. Returns its number: `fh`, or the next one if `fh` is 0."""
        if not fh:
            self._last += 1
            fh = self._last
        self._handles[fh] = handle
        if handle.inode is not None and handle.ino not in self._opens:
            self._inodes[handle.ino] = handle.inode
        self._opens[handle.ino] = self._opens.get(handle.ino, 0) + 1
        return fh

    def get(self, fh: int) -> FileHandle:
        """Returns a handle. Raises NotFound for a number that is not open."""
        handle = self._handles.get(fh)
        if handle is None:
            raise NotFound(f"file handle {fh} is not open")
        return handle

    def remove(self, fh: int) -> FileHandle:
        """Removes and returns a handle, which the caller closes. Raises NotFound."""
        handle = self.get(fh)
        del self._handles[fh]
        left = self._opens[handle.ino] - 1
        if left:
            self._opens[handle.ino] = left
        else:
            del self._opens[handle.ino]
            self._inodes.pop(handle.ino, None)
        return handle

    def is_open(self, ino: int) -> bool:
        return ino in self._opens

    def inode(self, ino: int) -> Inode | None:
        """Returns the inode of an open ino, as its first open handle has it."""
        return self._inodes.get(ino)

    def check_invariants(self) -> None:
        counts: dict[int, int] = {}
        for handle in self._handles.values():
            counts[handle.ino] = counts.get(handle.ino, 0) + 1
            assert handle.complete or handle.present is not None or not handle.epoch
        assert counts == self._opens
        assert self._inodes.keys() <= self._opens.keys()
