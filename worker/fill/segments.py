"""The segments: data that the cache refused, in small unlinked files of the scratch area. Owned by
the loop.

A segment holds the pages [first, end) of one content. A written page never changes, and concurrent
readers share it. Each client gets a read-only descriptor; the ledger counts a segment's bytes until
the kernel reports that no process has it open. When room is needed, the least recently used
segments without an open descriptor are dropped. While the tier's disk fails or hangs, segments are
in memory, within a share of the memory limit.

Fills wait for room in order, first come, first served. When the scratch area has had no room for
`COPY_AFTER_S`, the segment is made in memory, and the worker copies its bytes to clients instead of
lending a descriptor. Only the worker has such a segment open, so its room becomes free however long
clients keep lent ones.

What announced orders prefetch past a full cache is in `transit` (`worker.fill.transit`): each such
segment stays until its file was read. Where the scratch area has no room for it, it is in memory.

Where readers crowd the room (`worker.fill.shares`), a segment is a part: the bytes that one reader
requested, in memory. No other reader finds a part, and it is dropped as soon as its reader has it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final

from cachefs.core.messages import COPY_BYTES
from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import ByteRange, PageRange, page_count, page_span, range_bytes
from worker.fill.segment import Area, Segment, no_room
from worker.fill.segment_want import SegmentWant
from worker.fill.shares import ActiveReaders, is_crowded, piece_bytes, segments_kept
from worker.fill.transfer import PIECE_PAGES
from worker.fill.transit import Order, Ticket, Transit
from worker.store.filesystem import is_unused
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk
from worker.tier.ledger import allocation

POLL_S: Final = 0.05  # the worker is not notified when a client closes a segment
MOST_FILLING: Final = 64  # for readers, at once: more hold room and share bandwidth and CPU
SCAN_PAUSE_S: Final = 0.02  # after a scan of all segments that found none to drop
SWEEP_S: Final = 0.02  # between sweeps of dropped segments that clients had open
MOST_SWEEP_S: Final = 1.0  # the longest such pause, while clients keep them open
READER_WAIT_S: Final = 0.25  # a copied page is kept this long for a sequential reader
COPY_AFTER_S: Final = 0.1  # of waiting for room that can be lent
WHOLE_SHARE: Final = (
    2  # whole small files, which the kernel keeps open, take at most 1/2 of the room
)
FRESH_S: Final = 5.0  # unread data is kept this long for its reader
# In the scratch area, and as many in memory, with those that clients have: one descriptor each.
MOST_SEGMENTS: Final = 1024


class Segments:
    """The segments of a tier, least recently used first."""

    def __init__(self, context: TierContext, disk: TierDisk, contents: Contents) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._orders: dict[bool, Order] = {  # by `in_memory`
            False: collections.OrderedDict(),
            True: collections.OrderedDict(),
        }
        self.transit = Transit()
        self._by_page: dict[tuple[bytes, int], Segment] = {}
        self._orphans: list[Segment] = []  # dropped while clients had them open
        self._dropped_filling = 0  # dropped segments with a transfer in progress
        self._sweep_pause_s = 0.0  # 0.0: no sweep of the orphans is scheduled
        self._part_lent_at_s = float("-inf")
        self._frozen = False
        self._turn = asyncio.Lock()  # held by the fill that gets room next: room is given in order
        self._whole_turn = asyncio.Lock()
        self._whole_bytes = 0
        self._filling = 0
        self._scan_after_s = {False: float("-inf"), True: float("-inf")}  # by `in_memory`
        self.readers = ActiveReaders()

    def __len__(self) -> int:
        return sum(map(len, self._orders.values())) + len(self.transit)

    def _all(self) -> list[Segment]:
        orders = (*self._orders.values(), self.transit.segments)
        return [segment for order in orders for segment in order.values()]

    def _order_of(self, area: Area) -> Order:
        return self.transit.segments if area.transit else self._orders[area.in_memory]

    def find(self, key: bytes, page: int) -> Segment | None:
        """Returns the segment that has the page now, or None."""
        segment = self._by_page.get((key, page))
        if segment is None or page >= segment.ready_end:
            return None
        self._order_of(segment.area).move_to_end(id(segment))
        return segment

    def bits(self, key: bytes, first: int, end: int) -> int:
        """Returns the bitmap of the pages of [first, end) that a segment has or will have."""
        if not self._by_page:
            return 0
        return sum(1 << page for page in range(first, end) if (key, page) in self._by_page)

    async def grant(self, segment: Segment, *, to_reader: bool = True) -> int:
        """Returns a descriptor for a client. Raises OSError. `to_reader`: for one of this node,
        which ends the transit of a file that no other open is expected of."""
        segment.granted = segment.lent = True
        fd = await self._disk.reopen(segment.fd, in_memory=segment.in_memory)
        if to_reader and self.transit.read(segment):
            self.drop(segment)
        return fd

    def copy(self, segment: Segment, offset: int, end: int, *, is_sequential: bool) -> bytes:
        """Returns the bytes [offset, end) of the file, which are written, of a segment in memory.
        `is_sequential`: the reader will request what follows. Raises OSError."""
        segment.granted = True
        segment.used_at_s = self._context.monotonic()
        if is_sequential and end < segment.ready_end * PAGE_BYTES:
            segment.wanted_until_s = segment.used_at_s + READER_WAIT_S
        return os.pread(segment.fd, end - offset, offset - segment.start)

    def reads(self, reader: Hashable) -> None:
        """Counts a handle among those that share the room."""
        self.readers.asked(reader, self._context.monotonic())

    def waits(self, reader: Hashable) -> contextlib.AbstractContextManager[None]:
        """Counts a handle among those that share the room while it waits, and for a while after."""
        self._contents.want_floor()
        return self.readers.waiting(reader, self._context.clocks.monotonic)

    @property
    def are_crowded(self) -> bool:
        """True if each reader gets parts."""
        return is_crowded(self._limit_bytes, self.reader_count)

    @property
    def reader_count(self) -> int:
        return self.readers.count(self._context.monotonic())

    def piece_pages(self, readers: int) -> int:
        """Returns the largest segment, in pages, when `readers` share the room."""
        most_bytes = PIECE_PAGES * PAGE_BYTES
        length = piece_bytes(
            self._limit_bytes, readers, least_bytes=PAGE_BYTES, most_bytes=most_bytes
        )
        return length // PAGE_BYTES

    def window_bytes(self, readers: int) -> int:
        """Returns the bytes to prefetch for each of the `readers`."""
        return self._limit_bytes // (2 * readers)

    def kept(self) -> int:
        """Returns how many segments a client may keep for each handle now."""
        readers = self.reader_count
        return segments_kept(self._limit_bytes, readers, self.piece_pages(readers) * PAGE_BYTES)

    @property
    def _limit_bytes(self) -> int:
        """The bytes that new segments may take in all: beside a full cache less than their limit,
        as cached files take the room that is not reserved for segments."""
        if self._disk.health.writable(self._context.monotonic()):
            return max(
                PAGE_BYTES,
                self._contents.ledger.scratch_bytes + self._contents.ledger.free_for_scratch,
            )
        return self._context.memory.segments_limit_bytes

    @property
    def lends_floor(self) -> bool:
        """True if announced files may take the room that is kept for segments: no reader has needed
        it lately, and memory has as much room for files in transit."""
        floor_bytes = self._contents.ledger.scratch_floor_bytes
        memory_bytes = self._context.memory.segments_limit_bytes
        return self._contents.lends_floor and memory_bytes >= floor_bytes

    def leave_tier(self) -> None:
        """Drops all segments on a disk that hangs. Their fills leave their places to fills that
        bypass the disk."""
        for segment in [*self._orders[False].values(), *self.transit.segments.values()]:
            self.drop(segment)
            self._give_place_back(segment)

    async def make(
        self,
        key: bytes,
        size_bytes: int,
        pages: PageRange,
        *,
        wait_s: float,
        whole: bool = False,
        in_memory: bool = False,
        span: ByteRange | None = None,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> Segment:
        """Returns a segment of a file of `size_bytes` with room for its pages, or for the first
        ones only if there is not enough (unless `whole`). `wait_s` 0 is for fills without a waiting
        reader: they take no room of segments that readers wait for or have not read. Raises NoSpace
        after `wait_s`, which a `whole` segment counts from the call and others from their turn;
        also at its turn if it is no longer needed. `span`: those bytes of the pages, or the first
        `COPY_BYTES` of them, for one reader."""
        area = Area(in_memory=in_memory, whole=whole)
        now, gentle = self._context.monotonic(), wait_s == 0
        want = SegmentWant(key, size_bytes, pages, span, area, now, gentle, is_needed)
        turn = self._whole_turn if whole else self._turn
        if not gentle:
            async with turn:
                segment = await self._in_turn(want, wait_s)
                segment.demanded, segment.has_place = True, not whole
                self._filling += segment.has_place
                return segment
        found = None if turn.locked() else self._try(want, area)
        if found is None:
            raise no_room(in_memory=in_memory)
        return found

    def make_transit(self, key: bytes, size_bytes: int, ticket: Ticket) -> Segment | None:
        """Returns a segment for all of a small file, which an announced order wants; None if the
        transit window has no room for it now."""
        now, need_bytes = self._context.monotonic(), allocation(size_bytes)
        if not self._disk.health.writable(now):
            return None
        places = (True,) if self._contents.ledger.lent_floor_bytes else (False, True)
        areas = (Area(in_memory=one, whole=True, transit=True) for one in places)
        if not (area := next((a for a in areas if self._room(need_bytes, a, gentle=True)), None)):
            return None
        pages = (0, page_count(size_bytes))
        want = SegmentWant(key, size_bytes, pages, None, area, now, True, lambda: True)
        segment = self._add(want, (0, size_bytes), pages, area)
        self.transit.expect(segment, ticket)
        return segment

    def expect(self, key: bytes, ticket: Ticket) -> bool:
        """Adds another expected open of a file in transit. False: it is not in transit."""
        segment = self._by_page.get((key, 0))
        return segment is not None and self.transit.expect(segment, ticket)

    def withdraw(self, key: bytes, ticket: Ticket, *, is_opened: bool) -> None:
        """Ends the wait of an order for the open of a file. `is_opened`: a reader is opening it.
        Unknown ones are ignored."""
        segment = self._by_page.get((key, 0))
        now = self._context.monotonic()
        if segment is not None and self.transit.withdraw(segment, ticket, now, is_opened=is_opened):
            self.drop(segment)

    async def _in_turn(self, want: SegmentWant, wait_s: float) -> Segment:
        until = (want.since_s if want.area.whole else self._context.monotonic()) + wait_s
        while want.is_needed():
            now = self._context.monotonic()
            is_next = want.area.whole or self._filling < MOST_FILLING
            for area in self._areas(want, now) if is_next else ():
                segment = self._try(want, area)
                if segment is not None:
                    return segment
            self._contents.want_floor()
            if not is_next:
                until = now + wait_s  # the transfers in progress have their own deadlines
            elif now >= until:
                break
            await self._contents.room_changed.wait(POLL_S)
        raise no_room(in_memory=want.area.in_memory, whole=want.area.whole)

    def _areas(self, want: SegmentWant, now: float) -> Iterator[Area]:
        """Yields the areas to try. A part is copied only if no part could be lent for a while:
        copies are short, so a read needs more of them. Whole files are in memory where cached files
        take the room for segments: few are read, since others are in transit."""
        yield want.area
        if want.area.whole and self._contents.ledger.lent_floor_bytes:
            yield Area(in_memory=True, whole=True)
        since_s = want.since_s if want.span is None else max(want.since_s, self._part_lent_at_s)
        if not want.area.whole and now >= since_s + COPY_AFTER_S:
            yield Area(in_memory=True, copied=True)

    def _try(self, want: SegmentWant, area: Area) -> Segment | None:
        if want.span is not None:
            return self._try_part(want, want.span, area)
        first, end = want.pages
        while end > first:
            size_bytes = range_bytes(want.file_bytes, first, end)
            if self._room(allocation(size_bytes), area, gentle=want.gentle):
                start = first * PAGE_BYTES
                return self._add(want, (start, start + size_bytes), (first, end), area)
            if area.whole:
                return None
            end = first + (end - first) // 2
        return None

    def _try_part(self, want: SegmentWant, span: ByteRange, area: Area) -> Segment | None:
        start, stop = span
        if area.copied:
            stop = min(stop, start + COPY_BYTES)
        if not self._room(allocation(stop - start), area, gentle=want.gentle):
            return None
        segment = self._add(want, (start, stop), page_span(start, stop - start), area)
        if not area.copied:
            self._part_lent_at_s = segment.used_at_s
        return segment

    def _room(self, need_bytes: int, area: Area, *, gentle: bool) -> bool:
        if self._take(need_bytes, area):
            return True
        now = self._context.monotonic()
        if now < self._scan_after_s[area.in_memory]:
            return False
        self._let_go_orphans()
        self._drop_unused(need_bytes, area, gentle=gentle)
        if self._take(need_bytes, area):
            return True
        if not gentle:
            self._scan_after_s[area.in_memory] = now + SCAN_PAUSE_S
        return False

    def _take(self, need_bytes: int, area: Area) -> bool:
        if not self._has_room(need_bytes, area):
            return False
        if area.in_memory:
            return self._context.memory.take_segment(need_bytes, lent=not area.copied)
        return self._contents.take_scratch(need_bytes)

    def _has_room(self, need_bytes: int, area: Area) -> bool:
        lent = 0
        if area.in_memory and not area.copied:
            lent = len(self._orphans) + self._dropped_filling  # mostly parts
        if len(self._order_of(area)) + lent >= MOST_SEGMENTS:
            return False
        if area.in_memory:
            free_bytes = self._context.memory.free_for_segments(lent=not area.copied)
        else:
            free_bytes = self._contents.ledger.free_for_scratch
        if area.whole:
            free_bytes = min(free_bytes, self._free_for_whole(area))
        return need_bytes <= free_bytes

    def _free_for_whole(self, area: Area) -> int:
        """Returns the room for whole files: a quarter is left to pieces of large files."""
        limit_bytes, whole, transit = self._limit_bytes, self._whole_bytes, self.transit.bytes
        if area.in_memory and (area.transit or self._contents.ledger.lent_floor_bytes):
            limit_bytes = self._context.memory.segments_limit_bytes
            return limit_bytes // WHOLE_SHARE - self.transit.memory_bytes - whole
        free_bytes = limit_bytes // WHOLE_SHARE - (transit if area.transit else whole)
        return min(free_bytes, limit_bytes * 3 // 4 - whole - transit)

    def _add(self, want: SegmentWant, span: ByteRange, pages: PageRange, area: Area) -> Segment:
        segment = Segment(want.key, span, pages, self._context.monotonic(), area)
        self._order_of(area)[id(segment)] = segment
        for page in range(*pages) if want.span is None else ():
            self._by_page[want.key, page] = segment
        self._count_whole(segment, segment.allocated_bytes)
        return segment

    def _count_whole(self, segment: Segment, size_bytes: int) -> None:
        if segment.area.transit and segment.in_memory:
            self.transit.memory_bytes += size_bytes
        elif segment.area.transit:
            self.transit.bytes += size_bytes
        elif segment.area.whole:
            self._whole_bytes += size_bytes

    def _drop_unused(self, need_bytes: int, area: Area, *, gentle: bool) -> None:
        """Drops unused segments, the least recently used first, until there is room. Moves segments
        that clients have open to the end of the order, as used now."""
        now = self._context.monotonic()
        order = self._orders[area.in_memory]
        for segment in [*order.values()]:
            unread = not segment.granted and segment.used_at_s > now - FRESH_S
            if (
                segment.filling
                or segment.wanted_until_s > now
                or (unread and (gentle or segment.demanded))
            ):
                continue
            if segment.lent and not is_unused(segment.fd):
                order.move_to_end(id(segment))
                continue
            self.drop(segment)
            if self._has_room(need_bytes, area):
                return

    def drop_idle(self) -> None:
        """Drops unused segments in memory that were never lent: other tiers of this process share
        the same memory."""
        now = self._context.monotonic()
        for segment in self.transit.expired(now):
            self.drop(segment)
        before_s = now - FRESH_S
        for segment in [*self._orders[True].values()]:
            if not segment.lent and not segment.filling and segment.used_at_s < before_s:
                self.drop(segment)

    def drop(self, segment: Segment) -> None:
        """Removes the segment from the index, so that no read finds it. Idempotent."""
        if segment.dropped:
            return
        segment.dropped = True
        del self._order_of(segment.area)[id(segment)]
        for page in range(segment.first, segment.end):
            if self._by_page.get((segment.key, page)) is segment:
                del self._by_page[segment.key, page]
        if segment.filling:
            self._dropped_filling += 1
        else:
            self._let_go(segment)
        self.transit.lost(segment)

    def given_up(self, segment: Segment) -> None:
        """Gives the place of a segment whose transfer hangs to another fill, which may fetch its
        pages. The segment keeps its room and descriptor until `filled`, since the thread of the
        transfer may still write."""
        self._give_place_back(segment)
        segment.demanded = False
        self._forget_rest(segment)
        self._contents.room_changed.notify()

    def _forget_rest(self, segment: Segment) -> None:
        for page in range(segment.ready_end, segment.end):
            if self._by_page.get((segment.key, page)) is segment:
                del self._by_page[segment.key, page]

    def filled(self, segment: Segment) -> None:
        """Records the end of the segment's transfer. Releases the pages that it did not get, and
        drops an empty segment."""
        segment.filling = False
        segment.used_at_s = self._context.monotonic()  # its reader gets to it from now on
        self._context.counters.scratch_fills += not segment.in_memory
        self._give_place_back(segment)
        self._forget_rest(segment)
        if segment.dropped:
            self._dropped_filling -= 1
            self._let_go(segment)
        elif segment.ready_end == segment.first:
            self.drop(segment)
        self._contents.room_changed.notify()

    def _give_place_back(self, segment: Segment) -> None:
        """Lets another fill take the segment's place among the `MOST_FILLING`. Idempotent."""
        self._filling -= segment.has_place
        segment.has_place = False

    def drop_content(self, keys: Iterable[bytes]) -> None:
        wanted = set(keys)
        for segment in self._all():
            if segment.key in wanted:
                self.drop(segment)

    def _let_go(self, segment: Segment) -> None:
        if self._frozen or (segment.lent and segment.fd >= 0 and not is_unused(segment.fd)):
            self._orphans.append(segment)
            return self._sweep_later(SWEEP_S)
        fd, segment.fd = segment.fd, -1
        # In a thread: freeing a page of tmpfs can take milliseconds. Until then its room may be
        # used twice.
        if fd >= 0 and segment.in_memory:
            self._disk.close_memory(fd)
        elif fd >= 0:
            self._disk.close_later(fd)
        self._count_whole(segment, -segment.allocated_bytes)
        if segment.in_memory:
            self._context.memory.segments_bytes -= segment.allocated_bytes
        else:
            self._contents.free_scratch(segment.allocated_bytes)
        self._contents.room_changed.notify()

    def _let_go_orphans(self) -> None:
        orphans, self._orphans = self._orphans, []
        for segment in orphans:
            self._let_go(segment)

    def _sweep_later(self, pause_s: float) -> None:
        if not self._sweep_pause_s:
            self._sweep_pause_s = pause_s
            asyncio.get_running_loop().call_later(pause_s, self._sweep)

    def _sweep(self) -> None:
        """Releases dropped segments that clients have closed, and repeats while any are left. After
        a sweep that released none the next one is later."""
        pause_s, before = self._sweep_pause_s, len(self._orphans)
        self._let_go_orphans()
        self._sweep_pause_s = 0.0
        if self._orphans and not self._frozen:
            idle = len(self._orphans) == before
            self._sweep_later(min(2 * pause_s, MOST_SWEEP_S) if idle else SWEEP_S)

    def freeze(self) -> None:
        """Keeps all descriptors open until `close`: threads of abandoned fills may still make a
        segment's file and write to it."""
        self._frozen = True

    def close(self) -> None:
        for segment in [*self._all(), *self._orphans]:
            if segment.fd >= 0:
                os.close(segment.fd)
        for order in (*self._orders.values(), self.transit.segments):
            order.clear()
        self._by_page.clear()
        self._orphans.clear()
