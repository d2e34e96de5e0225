"""A segment: bytes of a file in an unlinked file of the scratch area, or in memory.
`worker.fill.segments` owns all segments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from cachefs.core.errors import CacheFSError, NoSpace, lacks_descriptors
from cachefs.core.pages import ByteRange, PageRange
from worker.fill.transfer import DiskFault
from worker.runtime.process_limits import too_many_open_files
from worker.store.directory import TierDirectory
from worker.tier.ledger import allocation

MEMORY_IS_FULL: Final = "the cache disk fails, and memory for it is used up"


@dataclass(frozen=True, slots=True)
class Area:
    """The place and use of a segment. `whole`: the kernel reads all of a small file from it.
    `copied`: in memory because the scratch area is full; its bytes are copied to clients.
    `transit`: prefetched for an announced order, see `worker.fill.transit`."""

    in_memory: bool = False
    whole: bool = False
    copied: bool = False
    transit: bool = False


class Segment:
    """The bytes [start, stop) of a file, which lie in the pages [first, end). `ready_end`: pages
    [first, ready_end) are written. `fd` is -1 until its file is made; its byte 0 is `start`."""

    __slots__ = (
        "allocated_bytes", "area", "checksums", "demanded", "dropped", "end", "fd", "filling",
        "first", "granted", "has_place", "key", "lent", "ready_end", "start", "stop", "used_at_s",
        "wanted_until_s",
    )  # fmt: skip

    def __init__(
        self, key: bytes, span: ByteRange, pages: PageRange, now: float, area: Area
    ) -> None:
        self.key = key
        self.start, self.stop = span
        self.first, self.end = pages
        self.ready_end = self.first
        self.allocated_bytes = allocation(self.stop - self.start)
        self.checksums: list[int] = []  # of the pages that are written
        self.used_at_s = now  # made, filled or copied
        self.fd = -1
        self.filling = True
        self.demanded = False  # a reader waits for it: it stays until the reader has it
        self.has_place = False  # among the `MOST_FILLING`
        self.granted = False
        self.wanted_until_s = 0.0  # a reader that has a copy requests the next one by then
        self.lent = False  # a client has a descriptor
        self.dropped = False
        self.area = area

    @property
    def in_memory(self) -> bool:
        return self.area.in_memory

    @property
    def is_whole(self) -> bool:
        """Returns whether all of its pages are written."""
        return self.ready_end == self.end

    @property
    def span(self) -> ByteRange:
        return self.start, self.stop


def make_file(segment: Segment, tier: TierDirectory) -> None:
    """Creates the segment's file, in a thread, before the first byte. Raises DiskFault."""
    if segment.fd >= 0:
        return
    size_bytes = segment.stop - segment.start
    make = memory_file if segment.in_memory else tier.scratch_file
    try:
        segment.fd = make(size_bytes)
    except OSError as err:
        raise DiskFault(err) from err


def memory_file(size_bytes: int) -> int:
    """Returns a descriptor of a new file in memory of that size, in place of a scratch file. Raises
    OSError. The descriptor is opened a second time: the kernel grants no lease on the one that
    `memfd_create` returns, so `is_unused` would report a lent file as used forever."""
    made = os.memfd_create("segment", os.MFD_CLOEXEC)
    try:
        os.ftruncate(made, size_bytes)
        return os.open(f"/proc/self/fd/{made}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(made)


def no_file(fault: DiskFault, cause: str) -> CacheFSError:
    """Returns the error of a read for which no segment can be made or written. `cause`: unless
    descriptors are lacking."""
    if lacks_descriptors(fault.error):
        return too_many_open_files()
    return NoSpace(cause)


class NoRoomForAll(NoSpace):
    """There is no room for all of a small file at once. Its pages may find some."""


def no_room(*, in_memory: bool, whole: bool = False) -> NoSpace:
    """Returns the error of a segment for which there is no room."""
    kind = NoRoomForAll if whole else NoSpace
    if in_memory:
        return kind(
            "the cache disk fails, and memory for what is read past it is used up",
            remedy="give a larger --memory-limit, or see to the disk",
        )
    return kind(
        "the scratch area of the cache is full",
        remedy="give a larger --cache-size, or read fewer large files at a time",
    )
