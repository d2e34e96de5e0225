"""Segments: what the cache refused, in small unlinked files of the scratch area. Owned by the loop.

A segment holds the pages [first, end) of one content and never changes once a page is written.
Concurrent readers share it. Clients get read-only descriptors of their own; a segment's bytes stay
accounted until the kernel says that nobody has it. Least recently used ones that nobody has open go
when room is needed. While the tier's disk fails or hangs, segments are kept in memory, in a share
of the memory limit.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cachefs.core.errors import NoSpace
from cachefs.core.model import PAGE_BYTES
from worker.parts import Parts
from worker.state.accounting import allocation
from worker.state.pages import PageRange, range_bytes
from worker.store.filesystem import is_unused
from worker.transfer import PIECE_PAGES

POLL_S: Final = 0.05  # clients that close a segment tell nobody
FRESH_S: Final = 5.0  # how long what was fetched and not yet read is kept for its reader
MOST_SEGMENTS: Final = 2048  # one descriptor each


class Segment:
    """`ready_end`: pages [first, ready_end) are written. `fd` is -1 until its file is made."""

    __slots__ = (
        "allocated_bytes", "checksums", "demanded", "dropped", "end", "fd", "file_bytes", "filling",
        "first", "granted", "in_memory", "key", "made_at_s", "ready_end",
    )  # fmt: skip

    def __init__(
        self, key: bytes, file_bytes: int, pages: PageRange, now: float, *, in_memory: bool
    ) -> None:
        self.key = key
        self.file_bytes = file_bytes  # of the whole file
        self.first, self.end = pages
        self.ready_end = self.first
        self.allocated_bytes = allocation(range_bytes(file_bytes, *pages))
        self.checksums: list[int] = []  # of the pages that are written
        self.made_at_s = now
        self.fd = -1
        self.filling = True
        self.demanded = False  # somebody waits for it: it stays until that reader got it
        self.granted = False
        self.dropped = False
        self.in_memory = in_memory

    @property
    def base(self) -> int:
        """The offset in the file of the segment's byte 0."""
        return self.first * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class _Area:
    """Where a segment is to be, and whether it takes room of what others have not read yet."""

    gentle: bool
    in_memory: bool


class Segments:
    """All segments of a worker, least recently used first."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._order: collections.OrderedDict[int, Segment] = collections.OrderedDict()
        self._by_page: dict[tuple[bytes, int], Segment] = {}
        self._orphans: list[Segment] = []  # dropped while somebody had them
        self._frozen = False

    def __len__(self) -> int:
        return len(self._order)

    def find(self, key: bytes, page: int) -> Segment | None:
        """The segment that has that page now."""
        segment = self._by_page.get((key, page))
        if segment is None or page >= segment.ready_end:
            return None
        self._order.move_to_end(id(segment))
        return segment

    def bits(self, key: bytes, first: int, end: int) -> int:
        """Which pages of [first, end) some segment has or will have."""
        if not self._by_page:
            return 0
        return sum(1 << page for page in range(first, end) if (key, page) in self._by_page)

    async def grant(self, segment: Segment) -> int:
        """A descriptor for a client. Raises OSError."""
        segment.granted = True
        return await self._parts.reopen(segment.fd, in_memory=segment.in_memory)

    def piece_pages(self, readers: int) -> int:
        """How long segments may be when so many readers share the room. A reader keeps up to
        three, and one is on its way."""
        share = self._limit_bytes // (4 * max(1, readers))
        return max(1, min(PIECE_PAGES, share // PAGE_BYTES))

    def window_bytes(self, readers: int) -> int:
        """How far ahead of each of so many readers segments may be fetched."""
        return self._limit_bytes // (2 * max(1, readers))

    @property
    def _limit_bytes(self) -> int:
        """Of all segments that are made now."""
        parts = self._parts
        if parts.health.writable(parts.clocks.monotonic()):
            return parts.ledger.scratch_limit_bytes
        return parts.memory.segments_limit_bytes

    def leave_tier(self) -> None:
        """Its disk hangs: nobody is to find what lies there."""
        for segment in [*self._order.values()]:
            if not segment.in_memory:
                self.drop(segment)

    async def make(
        self,
        key: bytes,
        size_bytes: int,
        pages: PageRange,
        *,
        wait_s: float,
        whole: bool = False,
        in_memory: bool = False,
    ) -> Segment:
        """Room for a segment of a file of `size_bytes`, or of its first pages only when there is
        not enough (unless `whole`). With `wait_s` 0, for what nobody waits for, it takes nothing
        that was fetched for others and not read yet. Raises NoSpace after `wait_s`."""
        until = self._parts.clocks.monotonic() + wait_s
        while True:
            area = _Area(gentle=wait_s == 0, in_memory=in_memory)
            segment = self._try(key, size_bytes, pages, area, whole=whole)
            if segment is not None:
                segment.demanded = wait_s > 0
                return segment
            left_s = until - self._parts.clocks.monotonic()
            if left_s <= 0:
                raise _no_room(in_memory=in_memory)
            await self._parts.room_changed.wait(min(POLL_S, left_s))

    def _try(
        self, key: bytes, size_bytes: int, pages: PageRange, area: _Area, *, whole: bool
    ) -> Segment | None:
        first, end = pages
        while end > first:
            need_bytes = allocation(range_bytes(size_bytes, first, end))
            if self._room(need_bytes, area):
                return self._add(key, size_bytes, (first, end), area)
            if whole:
                return None
            end = first + (end - first) // 2
        return None

    def _room(self, need_bytes: int, area: _Area) -> bool:
        parts = self._parts
        take = parts.memory.take_segment if area.in_memory else parts.ledger.take_scratch
        if len(self._order) < MOST_SEGMENTS and take(need_bytes):
            return True
        self._let_go_orphans()
        self._drop_unused(need_bytes, area)
        return len(self._order) < MOST_SEGMENTS and take(need_bytes)

    def _free_bytes(self, area: _Area) -> int:
        memory = self._parts.memory
        if area.in_memory:
            return memory.segments_limit_bytes - memory.segments_bytes
        return self._parts.ledger.free_for_scratch

    def _add(self, key: bytes, size_bytes: int, pages: PageRange, area: _Area) -> Segment:
        now = self._parts.clocks.monotonic()
        segment = Segment(key, size_bytes, pages, now, in_memory=area.in_memory)
        self._order[id(segment)] = segment
        for page in range(*pages):
            self._by_page[key, page] = segment
        return segment

    def _drop_unused(self, need_bytes: int, area: _Area) -> None:
        fresh_after = self._parts.clocks.monotonic() - FRESH_S
        for segment in [*self._order.values()]:
            if need_bytes <= self._free_bytes(area) and len(self._order) < MOST_SEGMENTS:
                return
            if segment.in_memory != area.in_memory and len(self._order) < MOST_SEGMENTS:
                continue
            unread = not segment.granted and segment.made_at_s > fresh_after
            kept = unread and (area.gentle or segment.demanded)
            if not segment.filling and not kept and is_unused(segment.fd):
                self.drop(segment)

    def drop(self, segment: Segment) -> None:
        """Nobody finds it any more. Idempotent."""
        if segment.dropped:
            return
        segment.dropped = True
        del self._order[id(segment)]
        for page in range(segment.first, segment.end):
            if self._by_page.get((segment.key, page)) is segment:
                del self._by_page[segment.key, page]
        if not segment.filling:
            self._let_go(segment)

    def filled(self, segment: Segment) -> None:
        """Its transfer ended. What it did not get is nobody's; an empty one goes."""
        segment.filling = False
        for page in range(segment.ready_end, segment.end):
            if self._by_page.get((segment.key, page)) is segment:
                del self._by_page[segment.key, page]
        if segment.dropped:
            self._let_go(segment)
        elif segment.ready_end == segment.first:
            self.drop(segment)
        self._parts.room_changed.notify()

    def drop_content(self, keys: Iterable[bytes]) -> None:
        wanted = set(keys)
        for segment in [*self._order.values()]:
            if segment.key in wanted:
                self.drop(segment)

    def _let_go(self, segment: Segment) -> None:
        if self._frozen or (segment.fd >= 0 and not is_unused(segment.fd)):
            self._orphans.append(segment)
            return
        parts = self._parts
        fd, segment.fd = segment.fd, -1
        if fd >= 0 and (segment.in_memory or parts.tier.in_memory):
            os.close(fd)
        elif fd >= 0:
            # At most a few pages of an unlinked file: they are free in a moment, and so long their
            # room may be used twice.
            parts.close_later(fd)
        if segment.in_memory:
            parts.memory.segments_bytes -= segment.allocated_bytes
        else:
            parts.ledger.scratch_bytes -= segment.allocated_bytes
        parts.room_changed.notify()

    def _let_go_orphans(self) -> None:
        orphans, self._orphans = self._orphans, []
        for segment in orphans:
            self._let_go(segment)

    def freeze(self) -> None:
        """From now on no descriptor is closed but by `close`: threads of fills that were given up
        may still make a segment's file, and write to it."""
        self._frozen = True

    def close(self) -> None:
        for segment in [*self._order.values(), *self._orphans]:
            if segment.fd >= 0:
                os.close(segment.fd)
        self._order.clear()
        self._by_page.clear()
        self._orphans.clear()


def _no_room(*, in_memory: bool) -> NoSpace:
    if in_memory:
        return NoSpace(
            "the cache disk fails, and memory for what is read past it is used up",
            remedy="give a larger --memory-limit, or see to the disk",
        )
    return NoSpace(
        "the scratch area of the cache is full",
        remedy="give a larger --cache-size, or read fewer large files at a time",
    )


def memory_file(size_bytes: int) -> int:
    """A file in memory of that size, in place of a scratch file."""
    fd = os.memfd_create("segment", os.MFD_CLOEXEC)
    os.ftruncate(fd, size_bytes)
    return fd
