"""Fills: transfers claimed pages from their source into the cache file, or into a segment when the
cache refuses them. Owned by the loop; threads move the bytes (`worker.fill.transfer`).

A piece is a page range of one content in flight. If room can be reserved at once, its first
transfer starts at once, and if that completes the range no task is made. Else a task reserves room
and runs transfers until the range is whole. After a cut body it continues with the first incomplete
page: no byte of a whole page is requested twice. Waiters wait for pages, never for the task:
cancelling them leaves it running. Each page's future is resolved in every case.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Hashable
from typing import Final

from cachefs.core.errors import (
    CacheFSError,
    Interrupted,
    NoSpace,
    NotFound,
    Stale,
    lacks_descriptors,
)
from cachefs.core.pages import range_bytes
from worker.fill.attempts import Attempts
from worker.fill.changed_files import ChangedFiles
from worker.fill.downloads import MissingPart
from worker.fill.fetch import FailedAttempt, Piece, path_of
from worker.fill.segment import MEMORY_IS_FULL, Segment, no_file
from worker.fill.segment_fills import SegmentFills
from worker.fill.segments import Segments
from worker.fill.small.reads import SmallFile
from worker.fill.source import NotHere, Purpose
from worker.fill.stalls import Stalls
from worker.fill.supply import Supply
from worker.fill.transfer import CallInLoop, DiskFault, Transfer, make_cache_file
from worker.runtime.threads import Done
from worker.store.filesystem import allocated_bytes
from worker.tier.admission import Admission
from worker.tier.catalog import Catalog
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk
from worker.tier.entry import Entry
from worker.tier.ledger import allocation

log = logging.getLogger(__name__)

WHOLE_WAIT_S: Final = 0.25  # for room for a whole small file; then it is read in pieces
BACKGROUND_SHARE: Final = 0.75  # of the load threads: the rest is for waiting readers


class Filler:
    """The fills of one tier. `claim` starts a piece."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        supply: Supply,
        catalog: Catalog,
        space: Admission,
        segments: Segments,
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._supply = supply
        self._catalog = catalog
        self._space = space
        self._segments = segments
        self._loop = asyncio.get_running_loop()
        self._background = 0
        self._pieces: set[Piece] = set()
        self._changed = ChangedFiles(context, catalog)
        self._stalls = Stalls(context, supply)
        self._attempts = Attempts(context, supply, self._stalls)
        self._past = SegmentFills(context, disk, supply, segments, self._stalls, self._attempts)
        self._running = self._stalls.running
        self._aborted = False
        # Called when a piece ends with a readable last page
        self.on_piece_end: Callable[[Entry], None] = lambda entry: None

    def expect_downloads(self) -> None:
        """Prepares for downloads of large files, which are likely to follow soon."""
        self._supply.downloads.expect()

    @property
    def serves_small(self) -> bool:
        """Returns whether the loop has read small files recently."""
        return self._supply.small.serves

    @property
    def background_room(self) -> bool:
        """True if a piece may start that no reader waits for."""
        return self._background < max(1, int(self._context.config.load_threads * BACKGROUND_SHARE))

    def claim(
        self,
        entry: Entry,
        first: int,
        end: int,
        *,
        background: bool = False,
        cache_only: bool = False,
        whole: bool = False,
        past: bool = False,
        room_bytes: int = 0,
        transit: Segment | None = None,
        purpose: Purpose = Purpose.READ,
        ended: Callable[[Piece, CacheFSError | None], None] | None = None,
    ) -> None:
        """Starts a fill of the pages [first, end) of one block, of which none is cached or claimed.
        `room_bytes` are reserved for them already (0: none yet). `past`: bypass the tier's disk.
        `transit`: the segment to fill, in place of the cache. A `READ` becomes what
        `purpose_of_read` returns."""
        piece = Piece(entry, first, end)
        piece.background, piece.cache_only, piece.whole = background, cache_only, whole
        piece.room_bytes, piece.past = room_bytes, past
        piece.segment, piece.transit = transit, transit is not None
        epoch = None
        if purpose is Purpose.READ:
            purpose, epoch = self.purpose_of_read(piece)
        piece.purpose = purpose
        piece.ended = ended
        entry.claim(first, end, self._loop, epoch)
        self.start(piece)

    def purpose_of_read(self, piece: Piece) -> tuple[Purpose, int | None]:
        """See `Supply`."""
        return self._supply.purpose_of_read(piece)

    def start(self, piece: Piece) -> None:
        """Starts the fill of a piece whose pages are claimed, or of a part."""
        self._pieces.add(piece)
        piece.entry.busy_pieces += 1
        self._background += piece.background
        self._context.counters.fills_in_flight += 1
        piece.is_counted = True
        piece.started_s = self._context.monotonic()
        if not self._begin_at_once(piece):
            self._context.tasks.start(self._bring(piece))

    def _begin_at_once(self, piece: Piece) -> bool:
        """Starts the first transfer into the cache or the segment of a transit, if no wait is
        needed."""
        if self._aborted:
            return False
        if not piece.transit and not (piece.cacheable and self._reserved_nowait(piece)):
            return False
        transfer = self._first_transfer(piece, piece.first)
        transfer.limit_s = self._context.config.origin_deadline_s
        self._stalls.began(transfer, piece)
        done = functools.partial(self._begun, piece, transfer)
        in_thread = functools.partial(self._run_in_thread, piece, transfer, done)
        start = self._starts_small if piece.is_small else self._starts_download
        if piece.purpose is not Purpose.SERVE or not start(piece, transfer, done, in_thread):
            in_thread()
        return True

    def _first_transfer(self, piece: Piece, first: int) -> Transfer:
        if piece.transit and piece.segment is not None:
            return self._past.transfer(piece, piece.segment, first)
        return self._cache_transfer(piece, first)

    def _run_in_thread(self, piece: Piece, transfer: Transfer, done: Done) -> None:
        """Runs the piece's first transfer."""
        run: Callable[[Transfer], None] = functools.partial(self._run_into_cache, piece)
        if piece.transit and piece.segment is not None:
            run = functools.partial(self._past.run, piece, piece.segment)
        self._supply.submit(piece, run, transfer, done=done)

    def _starts_small(
        self, piece: Piece, transfer: Transfer, done: Done, in_thread: Callable[[], None]
    ) -> bool:
        store = functools.partial(self._store_small, piece.entry, transfer)
        if piece.transit and piece.segment is not None:
            store = functools.partial(self._past.store, piece.segment, transfer)
        return self._supply.small.start(SmallFile(piece.entry.origin, store, done, in_thread))

    def _starts_download(
        self, piece: Piece, transfer: Transfer, done: Done, in_thread: Callable[[], None]
    ) -> bool:
        open_file = functools.partial(self._open_file, piece.entry, transfer)
        allocated: Callable[[int], None] = functools.partial(self._measured, piece)
        if piece.transit and piece.segment is not None:
            open_file = functools.partial(self._past.open_file, piece.segment, transfer)
            allocated = _ignore
        origin, quiet = piece.entry.origin, piece.is_for_nobody
        return self._supply.downloads.start(
            MissingPart(origin, transfer, open_file, quiet, allocated, done, in_thread)
        )

    def _begun(
        self, piece: Piece, transfer: Transfer, _: object, error: BaseException | None
    ) -> None:
        self._stalls.ended(transfer)
        if self._aborted:
            self._end(piece, Interrupted("the worker is closing"))
        elif error is not None:
            self._context.tasks.start(self._bring(piece, FailedAttempt(transfer, error)))
        else:
            if piece.transit and piece.segment is not None:
                self._past.finish(piece, piece.segment)
            else:
                self._finish_cached(piece)
            self._end(piece, None)

    async def _bring(self, piece: Piece, begun: FailedAttempt | None = None) -> None:
        if self._aborted:
            return self._end(piece, Interrupted("the worker is closing"))
        entry = piece.entry
        error: CacheFSError | None = None
        try:
            await self._into_cache_or_segments(piece, begun)
        except (Stale, NotFound) as err:
            error = await self._changed.changed(entry, err)
            self._segments.drop_content([entry.key])
        except NotHere:
            pass  # each waiting reader now sends its request to all sources
        except CacheFSError as err:  # without room, a background fill ends without an error
            error = None if piece.background and isinstance(err, NoSpace) else err
        except Exception as err:  # its traceback is logged; no reader sends the request again
            error = CacheFSError(f"internal error: {type(err).__name__}", path=path_of(entry))
            raise
        finally:
            if not piece.unsettled:
                error = None  # the fill was given up: no reader waits
            if error is not None and not (piece.whole and isinstance(error, NoSpace)):
                self._stalls.failed(entry, error)
            self._end(piece, error)

    def _end(self, piece: Piece, error: CacheFSError | None) -> None:
        entry = piece.entry
        self._pieces.discard(piece)
        piece.settle_all(error)
        if error is None and piece.is_counted:  # else it was given up
            self._count_time(piece)
        self._uncount(piece)
        if piece.room_bytes:
            self._space.release(piece.room_bytes, piece.entry)
        entry.busy_pieces -= 1
        if entry.unrecorded:  # the piece ended early
            self._catalog.record(entry)
        if self.is_here(entry, piece.end - 1, past=piece.past):
            # Else the fill failed or room is short: no read-ahead now.
            self.on_piece_end(entry)
        piece.tell_ended(error)
        self._catalog.retire_if_unused(entry)

    def _uncount(self, piece: Piece) -> None:
        """Removes the piece from the fills in flight. Idempotent."""
        if piece.is_counted:
            piece.is_counted = False
            self._background -= piece.background
            self._context.counters.fills_in_flight -= 1

    def _count_time(self, piece: Piece) -> None:
        now = self._context.monotonic()
        took_s = now - piece.started_s
        self._context.counters.fill_s.observe(took_s)
        self._context.slowest.note(took_s, lambda: path_of(piece.entry), piece.size_bytes, now)

    def is_here(self, entry: Entry, page: int, *, past: bool = False) -> bool:
        """Returns whether the page can be read, from the cache file (unless `past`) or a
        segment."""
        if not past and entry.pages.has(page):
            return True
        return self._segments.find(entry.key, page) is not None

    def leave_tier(self) -> None:
        """Settles all pieces that use a disk that hangs: readers start others that bypass it, and
        loads end."""
        for piece in [*self._pieces]:
            if not piece.past:
                piece.settle_all()
                self._uncount(piece)
                piece.tell_ended()
        self._stalls.leave_tier()
        self._supply.downloads.end_processes()
        self._segments.leave_tier()

    def return_to_tier(self) -> None:
        """Counts no thread as stuck at the disk, which answers again."""
        self._supply.count_out(0)

    def look(self) -> None:
        """Ends stalled transfers and drops idle segments. Called a few times a second."""
        self._supply.small.look()
        self._supply.downloads.look()
        self.give_up_stalled()
        self._segments.drop_idle()

    def give_up_stalled(self, now: float | None = None) -> None:
        """Cuts stalled transfers (`worker.fill.stalls`). Their pieces release shared resources,
        except room that a thread is writing to."""
        for transfer, piece in self._stalls.cut(now):
            self._uncount(piece)
            if piece.room_bytes and not (transfer.at_disk & 1 or transfer.is_downloading):
                self._space.release(piece.room_bytes, piece.entry)
                piece.room_bytes = 0
            if piece.segment is not None:
                self._segments.given_up(piece.segment)

    def disk_writes(self) -> list[Hashable]:
        """Returns a unique key for each disk operation in progress."""
        return self._stalls.disk_writes() + self._supply.downloads.disk_writes()

    async def _into_cache_or_segments(self, piece: Piece, begun: FailedAttempt | None) -> None:
        entry, first = piece.entry, piece.first
        if begun is None:
            self._stalls.check(entry.origin)
        if piece.transit and piece.segment is not None:
            return await self._past.fill_transit(piece, piece.segment, begun)
        if begun is not None or (piece.cacheable and await self._reserved(piece)):
            try:
                await self._into_cache(piece, begun)
                return
            except DiskFault as fault:
                self._catalog.disk_fault(fault.error)
                first = max(entry.pages.run_end(piece.first), piece.first)
                self._space.release(piece.room_bytes, piece.entry)
                piece.room_bytes = 0
        entry.raise_failed()
        while first < piece.end and not piece.cache_only and piece.unsettled:
            first = await self._into_segment(piece, first)

    async def _reserved(self, piece: Piece) -> bool:
        if piece.room_bytes:
            return True
        if await self._space.reserve(piece.need_bytes, piece.entry):
            piece.room_bytes = piece.need_bytes
        return bool(piece.room_bytes) or not piece.need_bytes

    def _reserved_nowait(self, piece: Piece) -> bool:
        if piece.room_bytes:
            return True
        if self._space.reserve_nowait(piece.need_bytes, piece.entry):
            piece.room_bytes = piece.need_bytes
        return bool(piece.room_bytes)

    # ---- into the cache ----

    async def _into_cache(self, piece: Piece, begun: FailedAttempt | None) -> None:
        try:
            await self._attempts.run(
                piece,
                piece.first,
                piece.end,
                functools.partial(self._cache_transfer, piece),
                functools.partial(self._run_into_cache, piece),
                begun,
            )
        except BaseException:
            if self._correct_allocation(piece):
                self._catalog.correct(piece.entry)
            raise
        self._finish_cached(piece)

    def _cache_transfer(self, piece: Piece, first: int) -> Transfer:
        def on_page(call: CallInLoop, page: int, checksum: int) -> None:
            if page == piece.end - 1:
                # Reported with the end of the transfer: one wake-up less.
                piece.last = page, checksum
            else:
                call(self._cached_page, piece, page, checksum)

        wake = self._disk.wake.call
        return Transfer(piece.entry.origin, first, piece.end, 0, on_page, wake)

    def _make_file(self, entry: Entry, transfer: Transfer) -> None:
        """Creates the cache file. Raises DiskFault, or the error of an aborted transfer."""
        transfer.raise_if_aborted()
        transfer.at_disk += 1
        make_cache_file(entry, self._disk.directory)
        transfer.at_disk += 1

    def _run_into_cache(self, piece: Piece, transfer: Transfer) -> None:
        """Runs a transfer into the cache file, in a thread."""
        entry = piece.entry
        self._stalls.check(entry.origin)  # more requests may hang since the claim
        self._make_file(entry, transfer)
        try:
            transfer.run(self._supply.source, entry.fd, piece.purpose)
        finally:
            # Not in the loop: there this call would release the GIL and wait to get it back.
            if piece.is_all or not self._disk.directory.reopens_at_once:
                _measure(entry, transfer)

    def _store_small(self, entry: Entry, transfer: Transfer, body: memoryview) -> None:
        """Writes all of a small file: in a thread, or in the loop if the tier is in memory."""
        self._make_file(entry, transfer)
        try:
            transfer.store(entry.fd, body)
        finally:
            _measure(entry, transfer)

    def _open_file(self, entry: Entry, transfer: Transfer) -> int:
        """Returns the cache file for a download: in a thread, or in the loop if the tier is in
        memory."""
        self._make_file(entry, transfer)
        return entry.fd

    def _measured(self, piece: Piece, allocated_bytes: int) -> None:
        """Records what the download process has measured."""
        if piece.is_all or not self._disk.directory.reopens_at_once:
            piece.entry.measured_bytes = allocated_bytes

    def _cached_page(self, piece: Piece, page: int, checksum: int) -> None:
        self._have_page(piece, page, checksum)  # recorded with the others of its piece
        piece.settle(page)

    def _have_page(self, piece: Piece, page: int, checksum: int) -> None:
        entry = piece.entry
        entry.pages.add(page)
        if not entry.detached:
            entry.unrecorded[page] = checksum
        self._context.arrivals.came(entry.origin)
        size_bytes = min(allocation(range_bytes(entry.size, page, page + 1)), piece.room_bytes)
        piece.room_bytes -= size_bytes
        self._contents.use_reserved(size_bytes)
        self._catalog.grow(entry, size_bytes)

    def _finish_cached(self, piece: Piece) -> None:
        entry = piece.entry
        if piece.last is not None:
            self._have_page(piece, *piece.last)
        self._correct_allocation(piece)
        self._catalog.record(entry)
        if self._disk.health.well():
            log.info("the cache disk takes writes again")
        piece.settle(piece.end - 1)

    def _correct_allocation(self, piece: Piece) -> bool:
        """Replaces the counted allocation by the measured one, once no other piece writes the file.
        Returns whether it changed."""
        entry = piece.entry
        if entry.busy_pieces > 1:
            return False
        real_bytes = entry.measured_bytes
        if entry.fd >= 0 and self._disk.directory.reopens_at_once and not piece.is_all:
            real_bytes = allocated_bytes(entry.fd)  # now: other pieces may have ended since
        if real_bytes in (-1, entry.allocated_bytes):
            return False
        self._catalog.grow(entry, real_bytes - entry.allocated_bytes)
        return True

    # ---- past the cache ----

    async def _into_segment(self, piece: Piece, first: int) -> int:
        """Fills a segment with pages from `first` on. Returns the first page that is left."""
        entry = piece.entry
        wait_s = self._context.config.origin_deadline_s
        if piece.background or piece.whole:
            wait_s = WHOLE_WAIT_S if piece.whole else 0.0
        segment = await self._segments.make(
            entry.key,
            entry.size,
            (first, piece.end),
            wait_s=wait_s,
            whole=piece.whole,
            in_memory=piece.past or not self._disk.health.writable(self._context.monotonic()),
            span=piece.span,
            is_needed=lambda: bool(piece.unsettled),
        )
        piece.segment = segment
        try:
            await self._past.fill(piece, segment)
        except DiskFault as fault:
            if segment.in_memory or lacks_descriptors(fault.error):
                raise no_file(fault, MEMORY_IS_FULL) from fault
            self._catalog.disk_fault(fault.error)
            return segment.ready_end
        finally:
            self._segments.filled(segment)
        # After a segment that was cut short, the waiting reader requests the rest: else the last
        # page would wait for as many reservations as there are pages before it.
        return piece.end

    def abort(self) -> None:
        """Ends the requests in flight: their threads stop at the next chunk. Later results never
        enter the cache."""
        self._aborted = True
        for transfer in self._running:
            transfer.abort()


def _ignore(allocated_bytes: int) -> None:
    pass


def _measure(entry: Entry, transfer: Transfer) -> None:
    transfer.at_disk += 1
    entry.measured_bytes = allocated_bytes(entry.fd)
    transfer.at_disk += 1
