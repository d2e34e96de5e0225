"""Loads into one tier (see `worker.cache.loading.CacheLoading`). Owned by the loop.

A small file of which nothing is cached takes one request, one new file and a part of one commit,
and no task. Files that may be cached are looked up, and held, many in one call. Everything else is
loaded piece by piece, by a task for each load.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Final

from cachefs.core.errors import CacheFSError, Unavailable
from cachefs.core.jobs import Room, TaskFile
from cachefs.core.model import Origin
from cachefs.core.pages import range_bytes
from connectors.fetch.request import AT_ONCE
from worker.cache.load_requests import (
    PIECES,
    Load,
    Loaded,
    Missing,
    PrefetchResult,
    pages_of,
)
from worker.cache.shortage import room
from worker.cache.verify import Checks
from worker.fill.fetch import Piece
from worker.fill.fill import Filler
from worker.fill.range_fill import Limits, RangeFill
from worker.fill.segments import Segments
from worker.fill.transfer import PIECE_PAGES
from worker.fill.transit import Ticket
from worker.tier.admission import Admission, NoRoom
from worker.tier.catalog import Catalog
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk, no_answer
from worker.tier.entry import Entry
from worker.tier.ledger import allocation
from worker.tier.maintenance import Housekeeping
from worker.tier.over_quota import OverQuota
from worker.tier.permission import EvictionPermission

ATTEMPTS: Final = 8  # of one block: each ends with more of it, or with an error
FEW: Final = 4  # blocks of which a part was here, at once
FREE_PLACES: Final = 16  # that files ahead leave to opens


class TierLoading:
    """See the module."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        catalog: Catalog,
        permission: EvictionPermission,
        space: Admission,
        housekeeping: Housekeeping,
        filler: Filler,
        segments: Segments,
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._catalog = catalog
        self._permission = permission
        self._space = space
        self._housekeeping = housekeeping
        self._filler = filler
        self._segments = segments
        self.checks = Checks(context, disk, catalog)
        self._loop = asyncio.get_running_loop()
        self._known: list[Load] = []  # to be looked up together
        self._few = asyncio.Semaphore(FEW)
        self._tickets: set[Ticket] = set()  # of files on their way into the cache

    def expect_downloads(self) -> None:
        """See `CacheLoading`."""
        self._filler.expect_downloads()

    def load(self, load: Load) -> None:
        """See `CacheLoading`."""
        origin = load.origin
        if origin.size == 0:
            return load.ended(Loaded(0, None))
        first, end = load.pages
        key = origin.content.key
        if first == 0 and end - first <= PIECE_PAGES:
            entry = self._catalog.open_nowait(origin, key)
            if entry is not None:
                if end == entry.page_count and self._begin_at_once(entry, load):
                    return
                self._catalog.leave(entry)
        if not self._catalog.is_live(key) and not self._catalog.is_absent(key):
            return self._look_soon(load)
        self._context.tasks.start(self._load(load))

    def cached_bytes(self, file: TaskFile) -> int:
        """See `CacheLoading`."""
        entry = self._catalog.live(file.origin.content.key)
        return 0 if entry is None else entry.pages.bytes_in(*pages_of(entry.size, file.block))

    def bring_ahead(
        self,
        origin: Origin,
        ended: Callable[[bool], None],
        ticket: Ticket | None,
    ) -> PrefetchResult:
        """See `CacheLoading`."""
        if self._context.memory.under_pressure:
            return PrefetchResult.REFUSED
        entry = self._catalog.open_nowait(origin, origin.content.key)
        if entry is None:
            return PrefetchResult.HERE
        if ticket is not None and self._segments.expect(entry.key, ticket):
            self._catalog.leave(entry)
            return PrefetchResult.IN_TRANSIT
        is_begun = entry.pages.bits or entry.inflight or entry.failed is not None
        if is_begun or self._segments.bits(entry.key, 0, entry.page_count):  # of a reader
            self._catalog.leave(entry)
            return PrefetchResult.HERE
        need_bytes = allocation(entry.size)
        from_floor = ticket is not None and self._segments.lends_floor
        has_room = not entry.detached and self._space.reserve_nowait(
            need_bytes, entry, from_floor=from_floor
        )
        if not has_room and (entry.detached or not self._space.may_fit(need_bytes, entry)):
            return self._bring_in_transit(entry, ended, ticket)
        if ticket is not None:
            self._tickets.add(ticket)
        self._filler.claim(
            entry,
            0,
            entry.page_count,
            background=True,
            cache_only=True,
            room_bytes=need_bytes if has_room else 0,
            ended=functools.partial(self._came_ahead, ended, ticket),
        )
        return PrefetchResult.BEGUN

    def _bring_in_transit(
        self, entry: Entry, ended: Callable[[bool], None], ticket: Ticket | None
    ) -> PrefetchResult:
        segment = None
        if ticket is not None and not entry.detached:
            segment = self._segments.make_transit(entry.key, entry.size, ticket)
        if segment is None:
            self._catalog.leave(entry)
            return PrefetchResult.REFUSED
        self._filler.claim(
            entry,
            0,
            entry.page_count,
            background=True,
            transit=segment,
            ended=functools.partial(self._came_ahead, ended, None),
        )
        return PrefetchResult.BEGUN

    def withdraw(self, key: bytes, ticket: Ticket, *, is_opened: bool) -> None:
        """See `CacheLoading`."""
        self._tickets.discard(ticket)
        self._segments.withdraw(key, ticket, is_opened=is_opened)

    def places_ahead(self) -> int:
        """See `CacheLoading`."""
        most = AT_ONCE if self._filler.serves_small else self._context.config.fetch_threads
        return most - FREE_PLACES - self._context.counters.fills_in_flight

    def _came_ahead(
        self,
        ended: Callable[[bool], None],
        ticket: Ticket | None,
        piece: Piece,
        error: CacheFSError | None,
    ) -> None:
        """Ends a prefetch. One that found no room after all continues in the transit window, if its
        order still waits for the open."""
        is_here = error is None and self._filler.is_here(piece.entry, piece.end - 1)
        is_awaited = ticket in self._tickets
        self._tickets -= {ticket}
        if not is_here and error is None and is_awaited:
            if self._bring_in_transit(piece.entry, ended, ticket) is PrefetchResult.REFUSED:
                ended(False)
            return
        self._catalog.leave(piece.entry)
        ended(is_here)

    async def room(self) -> Room:
        """See `CacheLoading`."""
        return await room(
            self._context,
            self._disk,
            self._contents,
            self._catalog,
            self._permission,
            self._housekeeping,
        )

    def capacity(self) -> int:
        """See `CacheLoading`."""
        ledger = self._contents.ledger
        kept_bytes = ledger.headroom_bytes + ledger.scratch_floor_bytes + ledger.overhead_bytes
        return max(0, ledger.limit_bytes - kept_bytes)

    # ---- in one request ----

    def _begin_at_once(self, entry: Entry, load: Load) -> bool:
        """Starts the load where nothing is cached or in flight, and there is room. Returns whether
        it did."""
        if entry.pages.bits or entry.inflight or entry.detached or entry.failed is not None:
            return False
        need_bytes = allocation(entry.size)
        if not self._space.reserve_nowait(need_bytes, entry):
            return False
        entry.hold_when_whole = load.hold
        self._filler.claim(
            entry,
            0,
            entry.page_count,
            background=True,
            cache_only=True,
            room_bytes=need_bytes,
            purpose=load.purpose,
            ended=functools.partial(self._came, load),
        )
        return True

    def _came(self, load: Load, piece: Piece, error: CacheFSError | None) -> None:
        entry = piece.entry
        if error is None and entry.pages.complete and entry.uncommitted:
            entry.on_commit.append(functools.partial(self._committed, load, piece))
            return load.came()
        entry.hold_when_whole = None
        self._catalog.leave(entry)
        if error is None:  # it was given up, by the cache or its disk
            self._context.tasks.start(self._load(load, piece.origin_bytes))
        else:
            load.ended(Loaded(piece.origin_bytes, error))

    def _committed(self, load: Load, piece: Piece) -> None:
        entry = piece.entry
        error = None if entry.published and not entry.detached else self._lost(entry)
        self._catalog.leave(entry)
        load.ended(Loaded(piece.origin_bytes, error))

    def _lost(self, entry: Entry) -> CacheFSError:
        """Returns why a file that was fetched is not cached."""
        if entry.failed is not None:
            return entry.failed
        if not self._disk.health.in_service:
            return Unavailable(f"{no_answer().strerror}: the file may not be cached")
        return Missing("it was dropped while it was loaded")

    # ---- what may be here ----

    def _look_soon(self, load: Load) -> None:
        if not self._known:
            self._loop.call_soon(self._look)
        self._known.append(load)
        load.came()  # most are complete, and make no request

    def _look(self) -> None:
        known, self._known = self._known, []
        self._context.tasks.start(self._look_up(known))

    async def _look_up(self, known: Sequence[Load]) -> None:
        files = [TaskFile(load.origin, load.block) for load in known]
        try:
            missing = set(await self.checks.missing(files))
        except OSError as err:
            self._catalog.disk_fault(err)
            missing = set(range(len(files)))
        await self._hold([load for place, load in enumerate(known) if place not in missing])
        for place in missing:
            self._context.tasks.start(self._load_late(known[place]))

    async def _hold(self, complete: Sequence[Load]) -> None:
        """They are here: durable, and held from now on."""
        wanted = [(load.origin.content.key, load.hold) for load in complete]
        holds = [(key, hold) for key, hold in wanted if hold is not None]
        error = None
        try:
            if holds:
                await self._catalog.hold(holds)
        except OSError as err:
            self._catalog.disk_fault(err)
            error = Unavailable(f"the cache disk failed: {err.strerror or err}")
        for load in complete:
            load.ended(Loaded(0, error))

    async def _load_late(self, load: Load) -> None:
        """Its place among the requests was given to others."""
        async with self._few:
            await self._load(load)

    # ---- piece by piece ----

    async def _load(self, load: Load, fetched_bytes: int = 0) -> None:
        error, fill = None, None
        try:
            entry = await self._catalog.open(load.origin, load.origin.content.key)
            try:
                check = functools.partial(self._check, entry)
                limits = Limits(PIECES, check, load.purpose, load.gate)
                fill = RangeFill(self._filler, entry, limits)
                await self._complete(entry, load, fill)
            finally:
                self._catalog.leave(entry)
        except CacheFSError as err:
            error = err
        except OSError as err:
            self._catalog.disk_fault(err)
            error = Unavailable(f"the cache disk failed: {err.strerror or err}")
        fetched_bytes += fill.origin_bytes if fill is not None else 0
        load.ended(Loaded(fetched_bytes, error))

    async def _complete(self, entry: Entry, load: Load, fill: RangeFill) -> None:
        """Returns once the block is recorded and held."""
        first, end = load.pages
        for _ in range(ATTEMPTS):
            self._check(entry)
            if not any(entry.pages.missing(first, end)):
                break
            await self._fill(entry, load, fill)
        else:
            raise Unavailable("it was given up again and again")
        load.came()
        if entry.lacks_records(first, end):
            self._catalog.record(entry)  # the index has refused some
        if entry.uncommitted:
            await entry.next_commit(self._loop)
        self._check(entry)
        if not entry.recorded or entry.lacks_records(first, end):
            raise self._lost(entry)
        if load.hold is not None:
            await self._catalog.hold([(entry.key, load.hold)])

    def _check(self, entry: Entry) -> bool:
        """Returns True. Raises if the file can no longer be cached."""
        if entry.failed is not None or entry.detached or not self._disk.health.in_service:
            raise self._lost(entry)
        return True

    async def _fill(self, entry: Entry, load: Load, fill: RangeFill) -> None:
        """Fills once what is missing of the block."""
        first, end = load.pages
        missing = entry.pages.missing(first, end, entry.inflight_bits)
        need_bytes = sum(allocation(range_bytes(entry.size, *run)) for run in missing)
        if need_bytes:
            await self._reserve(need_bytes, entry, load)
        fill.room_bytes = need_bytes
        try:
            await fill.run(first, end)
        finally:
            self._space.release(fill.room_bytes, entry)
            fill.room_bytes = 0

    async def _reserve(self, need_bytes: int, entry: Entry, load: Load) -> None:
        """Raises NoRoom, OverQuota, Unavailable."""
        if load.is_served:
            return await self._space.reserve_for_load(need_bytes, entry)
        if not await self._space.reserve(need_bytes, entry):
            if (full := self._space.full_quota(need_bytes, entry)) is not None:
                raise OverQuota(full)
            raise NoRoom("the cache has no room for the file", remedy="give a larger --cache-size")
