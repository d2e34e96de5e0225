"""Fills for the readers of open files, and descriptors for what can be read. Owned by the loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError, NoSpace, lacks_descriptors
from cachefs.core.messages import COPY_BYTES, Ensured
from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import PageMap, PageRange, page_count, page_span, split
from worker.cache.crowd import Crowd
from worker.cache.readahead import FIRST_WINDOW_BYTES, MOST_WINDOW_BYTES
from worker.fill.range_fill import Limits, RangeFill
from worker.fill.segment import NoRoomForAll
from worker.fill.source import NotHere, Purpose
from worker.fill.transfer import PIECE_PAGES
from worker.store.filesystem import reopen
from worker.tier.entry import Ahead
from worker.tier.ledger import allocation

if TYPE_CHECKING:
    from worker.cache.handles import Handle
    from worker.fill.fill import Filler
    from worker.fill.segments import Segments
    from worker.tier.admission import Admission
    from worker.tier.catalog import Catalog
    from worker.tier.context import TierContext
    from worker.tier.disk import TierDisk
    from worker.tier.entry import Entry

GRANT_BYTES: Final = 8 << 20  # beyond what was requested: the reader sends another request for more
ATTEMPTS: Final = 64  # of one wait: each ends with a page, an error, or lost room
LOOK_S: Final = 0.25  # between looks at a fill that a peer waits for
FETCH_PIECES: Final = 4  # of one file at a time in the background
# Pieces ahead of a reader in flight at once. All in flight share the line: with the whole window in
# flight they would end together, and the line would stand still while the reader catches up.
AHEAD_PIECES: Final = 4


class ReadService:
    """The common part of `open` and `ensure`: fills pages, and waits for them."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        catalog: Catalog,
        space: Admission,
        segments: Segments,
        filler: Filler,
    ) -> None:
        self._context = context
        self._disk = disk
        self._catalog = catalog
        self._space = space
        self._segments = segments
        self._filler = filler
        self._crowd = Crowd(segments, filler)
        filler.on_piece_end = self._bring_ahead

    # ---- reads ----

    async def ensure(
        self, handle: Handle, offset: int, size_bytes: int
    ) -> tuple[Ensured, int | None]:
        """See `Cache.ensure`; the handle has an entry and `offset` is within the file."""
        entry = handle.entry
        assert entry is not None
        size_bytes = max(1, min(size_bytes, entry.size - offset, GRANT_BYTES))
        page = offset // PAGE_BYTES
        known = self._filler.is_here(entry, page, past=self._goes_past(handle))
        if self._admits(entry):
            window_bytes = self._window_bytes(MOST_WINDOW_BYTES)
            return await self._read_pages(handle, offset, size_bytes, window_bytes, known=known)
        with self._segments.waits(handle):
            if self._segments.are_crowded and not known and page not in entry.inflight:
                return await self._crowd.read(handle, offset, size_bytes)
            readers = self._segments.reader_count
            window_bytes = self._window_bytes(self._segments.window_bytes(readers))
            return await self._read_pages(handle, offset, size_bytes, window_bytes, known=known)

    def beyond(self, handle: Handle, offset: int, size_bytes: int) -> Ensured:
        """Returns the answer of `ensure` where nothing needs to be fetched: of a whole file, or
        behind its end."""
        end = max(offset, min(offset + size_bytes + GRANT_BYTES, handle.size))
        return Ensured(offset, end, complete=handle.entry is None or handle.entry.complete)

    async def _read_pages(
        self, handle: Handle, offset: int, size_bytes: int, window_bytes: int, *, known: bool
    ) -> tuple[Ensured, int | None]:
        """Reads by whole pages, and fetches up to `window_bytes` ahead. `known`: the first page is
        here."""
        entry = handle.entry
        assert entry is not None
        first, end = page_span(offset, size_bytes)
        ahead = self._ahead(handle, entry, offset, size_bytes, window_bytes)
        ensured, fd = await self._ensure(handle, (first, end), ahead, offset, size_bytes)
        if known:
            self._context.counters.hit_bytes += min(size_bytes, ensured.end - offset)
        handle.readahead.granted(offset, ensured.end)
        self._complete_behind(entry)
        return ensured, fd

    def _ahead(
        self, handle: Handle, entry: Entry, offset: int, size_bytes: int, window_bytes: int
    ) -> Ahead:
        """Returns the pages to fetch beside those of a read."""
        end = offset + size_bytes
        ahead_end = handle.readahead.plan(offset, size_bytes, window_bytes)
        below = handle.downward.plan(offset, size_bytes, window_bytes) if ahead_end <= end else None
        if below is None:
            return Ahead(page_count(end), page_count(min(ahead_end, entry.size)))
        below_end = page_count(min(below.end, entry.size))
        return Ahead(below.start // PAGE_BYTES, below_end, below.downwards)

    async def _ensure(
        self, handle: Handle, pages: PageRange, ahead: Ahead, offset: int, size_bytes: int
    ) -> tuple[Ensured, int | None]:
        entry = handle.entry
        assert entry is not None
        for _ in range(ATTEMPTS):
            past = self._goes_past(handle)
            self._bring(entry, *pages, ahead, past=past)
            await self._wait(entry, pages[0], handle)
            try:
                return await self._grant(handle, offset, size_bytes)
            except OSError as err:
                if handle.past_tier or lacks_descriptors(err):
                    raise
                self._catalog.disk_fault(err)
                handle.past_tier = True
        raise NoSpace("there is not enough scratch room to read this file")

    def _goes_past(self, handle: Handle) -> bool:
        """Returns whether the handle's reader is given nothing of the tier's disk."""
        return handle.past_tier or not self._disk.health.in_service

    def ended(self, handle: Handle) -> None:
        """Forgets a handle: it takes no share of the scratch area any more."""
        self._segments.readers.ended(handle)

    def _admits(self, entry: Entry) -> bool:
        """Returns whether the cache takes more of the file."""
        return not entry.detached and self._space.may_fit(allocation(FIRST_WINDOW_BYTES), entry)

    def _window_bytes(self, most_bytes: int) -> int:
        """Returns how far ahead of a reader to fetch: as far as the cache or else the scratch area
        (`most_bytes`), and memory, have room."""
        streams = self._context.counters.fills_in_flight // AHEAD_PIECES
        return self._context.memory.window(most_bytes, streams)

    def _bring(self, entry: Entry, first: int, end: int, ahead: Ahead, *, past: bool) -> None:
        """Claims what is missing of [first, end), and keeps pieces of `ahead` in flight."""
        if entry.failed is not None:
            return
        for piece_first, piece_end in self._missing(entry, first, end, past=past):
            # The reader waits for the first page only. Were the rest waited for as well, its room
            # would be kept from others, and from that page, until it was read.
            self._filler.claim(
                entry, piece_first, piece_end, past=past, background=piece_first > first
            )
        if ahead.end > ahead.first:
            entry.ahead = ahead
            self._bring_ahead(entry)

    def _missing(
        self, entry: Entry, first: int, end: int, *, past: bool = False
    ) -> Iterator[PageRange]:
        """Yields the parts of [first, end) that are neither readable nor in flight, in pieces.
        `past`: nothing of the tier is readable."""
        pages = entry.pages if not past else PageMap(entry.size)
        here = entry.inflight_bits | self._segments.bits(entry.key, first, end)
        for run_first, run_end in pages.missing(first, end, here):
            yield from split(run_first, run_end, self._piece_pages(entry))

    def _bring_ahead(self, entry: Entry) -> None:
        """Starts the next pieces that read-ahead wants; called again when a piece ends."""
        first, end, downwards = entry.ahead
        if first >= end or entry.failed is not None or not entry.users:
            return
        past = not self._disk.health.in_service
        pieces = [*self._missing(entry, first, end, past=past)]
        for piece_first, piece_end in reversed(pieces) if downwards else pieces:
            if (
                entry.busy_pieces >= AHEAD_PIECES
                or not self._filler.background_room
                or self._context.memory.under_pressure
            ):
                return
            self._filler.claim(entry, piece_first, piece_end, background=True, past=past)

    def _piece_pages(self, entry: Entry) -> int:
        left_bytes = min(entry.size, PIECE_PAGES * PAGE_BYTES)
        most = PIECE_PAGES
        if entry.detached or not self._space.may_fit(allocation(left_bytes), entry):
            most = self._segments.piece_pages(self._segments.reader_count)
        return self._context.memory.piece(most * PAGE_BYTES, PAGE_BYTES) // PAGE_BYTES

    async def _wait(self, entry: Entry, page: int, handle: Handle) -> None:
        """Waits until the page is readable. Raises the error of its fill, but for one that wanted
        room for all of the file. Cancelled: the fill continues."""
        for _ in range(ATTEMPTS):
            past = self._goes_past(handle)
            if self._filler.is_here(entry, page, past=past):
                return
            future = entry.inflight.get(page)
            if future is None:
                entry.raise_failed()
                self._filler.claim(entry, page, page + 1, past=past)
                future = entry.inflight[page]
            with contextlib.suppress(NoRoomForAll):
                await asyncio.shield(future)
        raise NoSpace("there is not enough scratch room to read this file")

    async def _grant(
        self, handle: Handle, offset: int, size_bytes: int
    ) -> tuple[Ensured, int | None]:
        """Returns what the reader reads from. Raises OSError when the disk fails, or hangs."""
        entry = handle.entry
        assert entry is not None
        most = min(entry.size, offset + size_bytes + GRANT_BYTES)
        page = offset // PAGE_BYTES
        run_end = entry.pages.run_end(page)
        if run_end > page and not self._goes_past(handle):
            ensured_end = min(most, run_end * PAGE_BYTES)
            if handle.has_file:
                return Ensured(offset, ensured_end, complete=entry.complete), None
            fd = await self._disk.reopen(entry.fd)
            return Ensured(offset, ensured_end, segment=True), fd
        segment = self._segments.find(entry.key, page)
        assert segment is not None  # `_wait` returned in this very step of the loop
        ensured_end = min(most, segment.ready_end * PAGE_BYTES)
        self._segments.reads(handle)
        keep = self._segments.kept()
        if segment.area.copied and handle.takes_bytes:
            ensured_end = min(ensured_end, offset + COPY_BYTES)
            is_sequential = handle.readahead.sequential or offset == segment.start
            data = self._segments.copy(segment, offset, ensured_end, is_sequential=is_sequential)
            return Ensured(offset, ensured_end, keep=keep, data=data), None
        fd = await self._segments.grant(segment)
        return Ensured(offset, ensured_end, base=segment.start, segment=True, keep=keep), fd

    def _complete_behind(self, entry: Entry) -> None:
        """A file of which more than half was touched is completed."""
        if (
            not entry.completing
            and not entry.complete
            and self._disk.health.in_service
            and not self._context.memory.under_pressure
            and 2 * entry.pages.present_count > entry.page_count
            and self._filler.background_room
        ):
            entry.completing = True
            entry.users += 1  # now: the handle may be released before the task begins
            self._context.tasks.start(self._complete(entry))

    async def _complete(self, entry: Entry) -> None:
        """Fills the rest of the file, one piece at a time, as long as the cache has room. Then ends
        a use of the entry."""
        limits = Limits(1, functools.partial(self._completes, entry), ends_on_refusal=True)
        try:
            await RangeFill(self._filler, entry, limits).run(0, entry.page_count)
        except CacheFSError:
            return  # logged by the fill; readers get the error of their own fills
        finally:
            entry.completing = False
            self._catalog.leave(entry)

    def _completes(self, entry: Entry) -> bool:
        is_wanted = entry.failed is None and not entry.detached
        return is_wanted and self._filler.background_room

    # ---- whole files ----

    async def small(self, entry: Entry) -> int | None:
        """Fills a whole small file. Returns a descriptor of all of it; None when there is not even
        scratch room for it in one piece, or the disk failed. Raises the error of the fill."""
        self.claim_small(entry)
        try:
            await self._wait_whole(entry)
        except NoSpace:
            return None
        return await self.grant_whole(entry)

    async def pages(self, entry: Entry, first: int, end: int, epoch: int) -> None:
        """Fills the pages [first, end) for a peer and waits for them; they may be in segments.
        Raises the error of the fill. A page for which readers here wait for peers is waited for
        only by a peer with the same view, see `Purpose`: else this raises NotHere, for the first
        page. Cancelled: the fill continues."""
        past = not self._disk.health.in_service
        if entry.small and end - first == entry.page_count:
            self.claim_small(entry, Purpose.SERVE)
        elif entry.failed is None:
            for run in [*self._missing(entry, first, end, past=past)]:
                self._filler.claim(entry, *run, past=past, purpose=Purpose.SERVE)
        for page in range(first, end):
            if not await self._came_by(entry, page, epoch):
                if page > first:
                    return
                raise NotHere("it is on its way here from another worker")
            if entry.failed is not None and not self._filler.is_here(entry, page, past=past):
                entry.raise_failed()

    async def _came_by(self, entry: Entry, page: int, epoch: int) -> bool:
        """Waits for the fill of a page, if there is one. Returns False if readers here wait for
        peers by another view, also where they only begin to (`Piece.ask_peers`). Raises the error
        of the fill."""
        future = entry.inflight.get(page)
        while entry.asked_in.get(page, epoch) == epoch:
            if future is None:
                return True
            if future.done():
                future.result()
                return True
            await asyncio.wait([future], timeout=LOOK_S)
        return False

    def claim_small(self, entry: Entry, purpose: Purpose = Purpose.READ) -> None:
        """Starts to fill the missing pages of a small file."""
        count, past = entry.page_count, not self._disk.health.in_service
        if (past or not entry.pages.complete) and entry.failed is None:
            pages = entry.pages if not past else PageMap(entry.size)
            here = entry.inflight_bits | self._segments.bits(entry.key, 0, count)
            for first, end in pages.missing(0, count, here):
                whole = end - first == count
                self._filler.claim(entry, first, end, whole=whole, past=past, purpose=purpose)

    def grant_nowait(self, entry: Entry) -> int | None:
        """Returns a descriptor as `grant_whole` does; None where that has to wait."""
        if not (
            entry.complete and self._disk.health.in_service and self._disk.directory.reopens_at_once
        ):
            return None
        try:
            return reopen(entry.fd)
        except OSError as err:
            self._catalog.disk_fault(err)
            return None

    async def grant_whole(self, entry: Entry) -> int | None:
        """Returns a descriptor of all of a file; None when it is not in one piece, or the disk
        failed."""
        count = entry.page_count
        try:
            if entry.complete and self._disk.health.in_service:
                return await self._disk.reopen(entry.fd)
            segment = self._segments.find(entry.key, 0)
            if segment is None or segment.first > 0 or segment.ready_end < count:
                return None
            return await self._segments.grant(segment)
        except OSError as err:
            self._catalog.disk_fault(err)
            return None

    async def _wait_whole(self, entry: Entry) -> None:
        """Waits as `_wait`, but not for pages that are in pieces of segments."""
        for page in range(entry.page_count):
            future = entry.inflight.get(page)
            if future is not None:
                await asyncio.shield(future)
            elif not entry.pages.has(page):
                entry.raise_failed()
