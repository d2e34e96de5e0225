"""Opens of files in one tier: hits, misses, and what the client gets. Owned by the loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from cachefs.core.model import PAGE_BYTES, Origin
from worker.cache.handles import Handle
from worker.fill.transfer import DiskFault, make_cache_file
from worker.tier.ledger import allocation

if TYPE_CHECKING:
    from worker.cache.reads import ReadService
    from worker.tier.admission import Admission
    from worker.tier.catalog import Catalog
    from worker.tier.context import TierContext
    from worker.tier.disk import TierDisk
    from worker.tier.entry import Entry
    from worker.tier.maintenance import Housekeeping
    from worker.tier.probe import TierWatch


class OpenFile(msgspec.Struct, frozen=True):
    """`fd` is the receiver's to close. The file is complete where the handle has no entry."""

    handle: Handle
    fd: int | None


@dataclass(eq=False)
class TierOpens:
    """See the module."""

    _context: TierContext
    _disk: TierDisk
    _catalog: Catalog
    _space: Admission
    _provider: ReadService
    _housekeeping: Housekeeping
    _watch: TierWatch

    async def open(self, origin: Origin, *, past_tier: bool) -> OpenFile:
        """See `Cache.open`."""
        key = origin.content.key
        if origin.size == 0:
            return OpenFile(Handle(0), None)
        if past_tier:
            self._watch.suspect()
        elif self._may_be_published(key) and (fd := await self._published(origin)) is not None:
            self._hit(origin, key)
            return OpenFile(Handle(origin.size), fd)
        entry = await self._catalog.open(origin, key)
        try:
            if past_tier:
                return self._open_past(entry)
            return await self._open_entry(entry)
        finally:
            self._catalog.leave(entry)

    def _may_be_published(self, key: bytes) -> bool:
        return self._catalog.live(key) is None and not self._catalog.is_absent(key)

    async def _published(self, origin: Origin) -> int | None:
        if not self._disk.health.in_service:
            return None
        name, size = origin.content.name, origin.size
        try:
            if self._disk.directory.in_memory:
                return self._disk.directory.open_published(name, size)
            return await self._disk.call(
                self._disk.directory.open_published, name, size, discard=self._close_if_open
            )
        except OSError as err:
            self._catalog.disk_fault(err)
            return None

    def _close_if_open(self, fd: int | None) -> None:
        if fd is not None:
            self._disk.close(fd)

    async def _open_entry(self, entry: Entry) -> OpenFile:
        if entry.complete and (fd := await self._provider.grant_whole(entry)) is not None:
            self._hit(entry.origin, entry.key)
            return OpenFile(Handle(entry.size), fd)
        self._miss(entry)
        if entry.hold is not None:
            self._housekeeping.read(entry.key)
        if entry.small:
            fd = await self._provider.small(entry)
            if fd is not None:
                return OpenFile(Handle(entry.size), fd)
        else:
            await self._make_file(entry)
        return await self._open_partial(entry)

    async def _open_partial(self, entry: Entry) -> OpenFile:
        fd = None
        if entry.fd >= 0 and self._disk.health.in_service:
            try:
                fd = await self._disk.reopen(entry.fd)
            except OSError as err:
                self._catalog.disk_fault(err)
        entry.users += 1
        return OpenFile(Handle(entry.size, entry, has_file=fd is not None), fd)

    def _open_past(self, entry: Entry) -> OpenFile:
        self._miss(entry)
        handle = Handle(entry.size, entry)
        handle.past_tier = True
        entry.users += 1
        return OpenFile(handle, None)

    async def _make_file(self, entry: Entry) -> None:
        """Gives a big file that the cache would take its sparse cache file from the start."""
        if (
            entry.fd >= 0
            or entry.detached
            or not self._space.may_fit(allocation(PAGE_BYTES), entry)
        ):
            return
        entry.users += 1  # for the thread, which continues when this is cancelled
        making = self._disk.threads.run(make_cache_file, entry, self._disk.directory)

        def made(future: asyncio.Future[None]) -> None:
            fault = future.exception() if not future.cancelled() else None
            if isinstance(fault, DiskFault):
                self._catalog.disk_fault(fault.error)
            self._catalog.leave(entry)

        making.add_done_callback(made)
        await self._disk.unless_left(making)

    # ---- small files ----

    def begin_small(self, origin: Origin) -> Entry | None:
        """Starts to fill a small file of which nothing is cached. Returns its entry, held for the
        caller: also that of a file which is being filled, or was a moment ago. None: call
        `open`."""
        entry = self._catalog.open_nowait(origin, origin.content.key)
        if entry is None:
            return None
        if entry.complete:
            self._hit(origin, entry.key)
            return entry
        self._provider.claim_small(entry)
        if not entry.inflight:
            self._catalog.leave(entry)
            return None
        self._miss(entry)
        return entry

    def filled_nowait(self, entry: Entry) -> OpenFile | None:
        """TierOpens a small file that was filled. None: call `filled_later`."""
        fd = self._provider.grant_nowait(entry)
        return OpenFile(Handle(entry.size), fd) if fd is not None else None

    async def filled_later(self, entry: Entry, *, whole: bool) -> OpenFile:
        """TierOpens a small file that was filled, perhaps past the cache, or in pieces."""
        fd = await self._provider.grant_whole(entry) if whole else None
        if fd is not None:
            return OpenFile(Handle(entry.size), fd)
        return await self._open_partial(entry)

    def leave(self, entry: Entry) -> None:
        """Ends the caller's use of an entry that `begin_small` returned."""
        self._catalog.leave(entry)

    # ---- counts ----

    def _miss(self, entry: Entry) -> None:
        self._context.counters.misses += 1
        self._context.paths.missed(entry.origin)

    def _hit(self, origin: Origin, key: bytes) -> None:
        self._context.counters.hits += 1
        self._context.paths.hit(origin)
        self._housekeeping.read(key)
