"""The node's worker: the cache of one tier, as the node socket and loads use it.

All methods belong to the event loop in which `Worker.start` ran. Bytes never pass through here:
callers get descriptors and read themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cachefs.core.errors import ProtocolError, Unavailable
from cachefs.core.messages import Ensured
from cachefs.core.model import PAGE_BYTES, SMALL_FILE_BYTES, ContentId, NamespaceId, Origin
from cachefs.core.services import MetadataService
from worker.cache.grants import FetchResult, Grant, TierView
from worker.cache.handles import Handle
from worker.cache.loads import TierLoading
from worker.cache.peer_reads import Serving
from worker.cache.policies import Expirer
from worker.cache.reads import GRANT_BYTES, Provider
from worker.cache.sampling import Sampling
from worker.cache.small_open import Opening, check_nonce
from worker.cache.status import status
from worker.fill.fill import Filler
from worker.fill.listeners import Listeners
from worker.fill.segments import Segments
from worker.fill.source import ConnectorFor, OriginSource, Source
from worker.fill.supply import Supply, make_supply
from worker.fill.transfer import DiskFault, make_cache_file
from worker.runtime.clocks import Clocks
from worker.runtime.machine import allow_many_descriptors, available_memory
from worker.runtime.memory import MemoryBudget, budget
from worker.runtime.threads import Threads, Wake
from worker.tier.admission import Space
from worker.tier.catalog import Catalog, FreedCounts
from worker.tier.config import WorkerConfig
from worker.tier.disk import Parts, Shared, make_parts, take_tier
from worker.tier.entry import Entry
from worker.tier.ledger import allocation
from worker.tier.lost_writes import LostWrites
from worker.tier.maintenance import Housekeeping
from worker.tier.probe import TierWatch
from worker.tier.scrub import Scrubber, scrub_rate
from worker.tier.tier import Inside
from worker.tier.unlinked import Leftovers

__all__ = ["Clocks", "FetchResult", "FreedCounts", "Grant", "Worker", "WorkerConfig"]

log = logging.getLogger(__name__)

CLOSE_WAIT_S: Final = 7.0  # for threads in a request: one that reads another tier gives up after 5
HANGING_WAIT_S: Final = 0.5  # the same, while the disk hangs
CLOSE_LIMIT_S: Final = 60.0  # for all, the last commit included


class Worker:
    """See the module. Made by `start`, ended by `close`."""

    def __init__(self, parts: Parts, supply: Supply) -> None:
        self._parts = parts
        self._supply = supply
        self._leftovers = Leftovers(parts)
        self._catalog = Catalog(parts, self._leftovers)
        self._space = Space(parts, self._catalog, self._leftovers)
        self._segments = Segments(parts)
        self._filler = Filler(parts, supply, self._catalog, self._space, self._segments)
        self._provider = Provider(parts, self._catalog, self._space, self._segments, self._filler)
        self._watch = TierWatch(parts, self._filler)
        self._watch.on_change = self._tier_changed
        lost_writes = LostWrites(parts, self._catalog, self._watch)
        self.housekeeping = Housekeeping(
            parts, self._catalog, self._space, self._leftovers, lost_writes
        )
        self.on_tiers: Callable[[], None] = lambda: None
        self.inside = Inside(parts, self._catalog, self._space, self.housekeeping, self._watch)
        self.loading = TierLoading(self.inside, self._filler)
        self.serving = Serving(parts, self._catalog, self._segments, self._provider, self._filler)
        self.expirer = Expirer(parts, self._catalog, self._segments, self.housekeeping)
        parts.touch = self.housekeeping.touch
        parts.read = self.housekeeping.read
        parts.filled = self.expirer.filled
        self._handles: dict[int, Handle] = {}
        self._next_handle = itertools.count(1)
        self._listeners = Listeners()
        self._filler.on_bytes = self._listeners.heard
        self._closed = False
        self.arrivals = parts.arrivals

    @classmethod
    async def start(
        cls,
        config: WorkerConfig,
        metadata: Callable[[NamespaceId], MetadataService],
        connector_for: ConnectorFor,
        clocks: Clocks | None = None,
        source: Source | None = None,
        shared: Shared | None = None,
    ) -> Worker:
        """Takes the cache directory over, without reading its data. `metadata` raises NotFound for
        a namespace that is not attached. `source`: where bytes come from (None: the origin, by
        `connector_for`). Raises InUse (naming the owner), AccessDenied, BadConfig, NoSpace;
        Unavailable when its disk does not answer."""
        if shared is None:
            shared = Shared(MemoryBudget(budget(config.memory_limit_bytes, available_memory())))
        allow_many_descriptors()
        wake = Wake(asyncio.get_running_loop())
        disk = Threads("disk", config.disk_threads, wake)
        tier = await take_tier(disk, config.cache_dir)
        parts = make_parts(config, clocks or Clocks(), tier, disk, wake, metadata, shared)
        origin = source or OriginSource(connector_for)
        supply = make_supply(config, origin, wake, in_memory=tier.in_memory)
        worker = cls(parts, supply)
        await worker.housekeeping.measure_overhead()
        worker._begin()
        return worker

    def _begin(self) -> None:
        """What goes on until the end."""
        parts = self._parts
        sampling = Sampling(parts)
        for owner in (self._watch, self.housekeeping, self.expirer, sampling):
            parts.tasks.start(owner.run())
        rate = scrub_rate(parts.config.scrub_bytes_per_s, in_memory=parts.tier.in_memory)
        if rate:
            parts.tasks.start(Scrubber(self.inside, rate).run())

    def tiers(self) -> list[TierView]:
        """Its one tier; see `worker.cache.grants.Cache`."""
        health = self._parts.health
        return [
            TierView(0, self._parts.tier.pub_fd, health.in_service, losses=health.losses),
        ]

    # ---- reads ----

    async def open(
        self, namespace: NamespaceId, ino: int, *, past_tier: bool = False, nonce: int = 0
    ) -> Grant:
        """Opens a file; small ones wait until they are whole. `past_tier`: the caller cannot read
        from the tier's disk, give it nothing of it. `nonce`: see `Open`. Raises Stale,
        IsADirectory, and what the origin answers. Cancelled: nothing stays open, the fill goes on
        for others."""
        origin = await self._parts.metadata(namespace).locate(ino)
        check_nonce(origin, nonce)
        key = origin.content.key
        if origin.size == 0:
            return Grant(self._new_handle(Handle(0)), 0, True, None)
        if past_tier:
            self._watch.suspect()
        elif self._may_be_published(key) and (fd := await self._published(origin)) is not None:
            self._hit(origin, key)
            return self._grant_whole(origin.size, fd)
        entry = await self._catalog.open(origin, key)
        try:
            if past_tier:
                return self._grant_past(entry)
            return await self._open_entry(entry)
        finally:
            self._catalog.leave(entry)

    def open_soon(
        self,
        namespace: NamespaceId,
        ino: int,
        ready: Callable[[Opening], None],
        *,
        nonce: int = 0,
    ) -> Opening | None:
        """As `open`, for a small file of which nothing is cached, or that is just being fetched, or
        was a moment ago: `ready` is called, in the loop and not before this returns, once `opened`
        has a result. None: call `open`. Raises what the namespace answers."""
        origin = self._parts.metadata(namespace).locate_nowait(ino)
        if origin is None or not 0 < origin.size <= SMALL_FILE_BYTES:
            return None
        check_nonce(origin, nonce)
        entry = self._catalog.open_nowait(origin, origin.content.key)
        if entry is None:
            return None
        if entry.complete:
            self._hit(origin, entry.key)
            return Opening(self._catalog, entry, ready)
        self._provider.claim_small(entry)
        if not entry.inflight:
            self._catalog.leave(entry)
            return None
        self._miss(entry)
        return Opening(self._catalog, entry, ready)

    def opened(self, opening: Opening) -> Grant | None:
        """The result of an opening that is ready, to be taken once. None: call `opened_later`.
        Raises the error of the fill."""
        if opening.error is not None:
            opening.taken()
            raise opening.error
        entry = opening.entry
        fd = self._provider.grant_nowait(entry)
        if fd is None:
            return None
        opening.taken()
        return self._grant_whole(entry.size, fd)

    async def opened_later(self, opening: Opening) -> Grant:
        """The same where it takes waiting: the file is not in one piece of the cache. The caller
        calls `opening.taken` after it."""
        entry = opening.entry
        fd = await self._provider.grant_whole(entry) if opening.whole else None
        if fd is not None:
            return self._grant_whole(entry.size, fd)
        return await self._grant_partial(entry)

    def _may_be_published(self, key: bytes) -> bool:
        return self._catalog.live(key) is None and not self._catalog.is_absent(key)

    async def _published(self, origin: Origin) -> int | None:
        parts = self._parts
        if not parts.health.in_service:
            return None
        name, size = origin.content.name, origin.size
        try:
            if parts.tier.in_memory:
                return parts.tier.open_published(name, size)
            return await parts.ask_disk(
                parts.tier.open_published, name, size, discard=self._close_if_open
            )
        except OSError as err:
            self._catalog.disk_fault(err)
            return None

    async def _open_entry(self, entry: Entry) -> Grant:
        if entry.complete and (fd := await self._provider.grant_whole(entry)) is not None:
            self._hit(entry.origin, entry.key)
            return self._grant_whole(entry.size, fd)
        self._miss(entry)
        if entry.hold is not None:
            self.housekeeping.read(entry.key)
        if entry.small:
            fd = await self._provider.small(entry)
            if fd is not None:
                return self._grant_whole(entry.size, fd)
        else:
            await self._make_file(entry)
        return await self._grant_partial(entry)

    def _grant_whole(self, size: int, fd: int) -> Grant:
        return Grant(self._new_handle(Handle(size)), size, True, fd)

    async def _grant_partial(self, entry: Entry) -> Grant:
        fd = None
        if entry.fd >= 0 and self._parts.health.in_service:
            try:
                fd = await self._parts.reopen(entry.fd)
            except OSError as err:
                self._catalog.disk_fault(err)
        handle = Handle(entry.size, entry, has_file=fd is not None)
        return Grant(self._stream(handle, entry), entry.size, False, fd)

    def _grant_past(self, entry: Entry) -> Grant:
        self._miss(entry)
        handle = Handle(entry.size, entry)
        handle.past_tier = True
        return Grant(self._stream(handle, entry), entry.size, False, None)

    def _stream(self, handle: Handle, entry: Entry) -> int:
        entry.users += 1
        return self._new_handle(handle)

    async def _make_file(self, entry: Entry) -> None:
        """A big file that the cache would take has its sparse cache file from the start."""
        if (
            entry.fd >= 0
            or entry.detached
            or not self._space.may_fit(allocation(PAGE_BYTES), entry)
        ):
            return
        entry.users += 1  # for the thread, which goes on when we are cancelled
        making = self._parts.disk.run(make_cache_file, entry, self._parts.tier)

        def made(future: asyncio.Future[None]) -> None:
            fault = future.exception() if not future.cancelled() else None
            if isinstance(fault, DiskFault):
                self._catalog.disk_fault(fault.error)
            self._catalog.leave(entry)

        making.add_done_callback(made)
        await self._parts.unless_left(making)

    def _new_handle(self, handle: Handle) -> int:
        number = next(self._next_handle)
        self._handles[number] = handle
        return number

    def _miss(self, entry: Entry) -> None:
        self._parts.counters.misses += 1
        self._parts.paths.missed(entry.origin)

    def _hit(self, origin: Origin, key: bytes) -> None:
        self._parts.counters.hits += 1
        self._parts.paths.hit(origin)
        self.housekeeping.read(key)

    async def ensure(
        self,
        handle: int,
        offset: int,
        size: int,
        *,
        past_tier: bool = False,
        takes_bytes: bool = False,
    ) -> tuple[Ensured, int | None]:
        """Makes bytes from `offset` on readable, `size` (8 MiB at most) unless readers crowd
        the room, and says from what: see `Ensured`. A descriptor is the receiver's to close. Raises
        the error of the fill, Stale, NoSpace; ProtocolError for an unknown handle. `past_tier` as
        in `open`; `takes_bytes` as in the message `Ensure`. Cancelled: the fill goes on."""
        if (known := self._handles.get(handle)) is None or offset < 0:
            raise ProtocolError(f"no handle {handle}, or an offset below 0")
        entry = known.entry
        if entry is None or offset >= known.size:
            end = max(offset, min(offset + size + GRANT_BYTES, known.size))
            return Ensured(offset, end, complete=entry is None or entry.complete), None
        if past_tier:
            known.past_tier = True
            self._watch.suspect()
        known.takes_bytes = takes_bytes
        return await self._provider.ensure(known, offset, size)

    def origin_of(self, handle: int) -> Origin | None:
        """See `Cache`."""
        known = self._handles.get(handle)
        return known.entry.origin if known is not None and known.entry is not None else None

    def release(self, handle: int) -> bool:
        """Ends a handle. Unknown ones are ignored: False."""
        known = self._handles.pop(handle, None)
        if known is not None and known.entry is not None:
            self._provider.ended(known)
            self._catalog.leave(known.entry)
        return known is not None

    def used(self, names: Sequence[str], hit_bytes: int) -> None:
        """Clients opened these published files without asking. Names that mean nothing here are
        ignored."""
        self._parts.counters.hits += len(names)
        self._parts.paths.used(names)
        self._parts.counters.hit_bytes += max(0, hit_bytes)
        for name in names:
            try:
                key = bytes.fromhex(name)
            except ValueError:
                continue
            if key in self._parts.order:
                self.housekeeping.read(key)

    # ---- operators ----

    async def fetch(
        self,
        namespace: NamespaceId,
        ino: int,
        *,
        on_bytes: Callable[[int], None] | None = None,
    ) -> FetchResult:
        """Makes a file complete and published here. `on_bytes` hears of bytes from the origin as
        requests end. Raises NoSpace when the cache does not take it, Stale, and what the origin
        answers. Cancelled: pieces in flight go on."""
        origin = await self._parts.metadata(namespace).locate(ino)
        if origin.size == 0 or await self._is_published(origin, key := origin.content.key):
            return FetchResult(origin.size, 0)
        fetched = [0]

        def heard(size: int) -> None:
            fetched[0] += size
            if on_bytes is not None:
                on_bytes(size)

        entry = await self._catalog.open(origin, key)
        try:
            with self._listeners.hearing(key, heard):
                await self._provider.whole(entry)
        finally:
            self._catalog.leave(entry)
        return FetchResult(origin.size, fetched[0])

    async def _is_published(self, origin: Origin, key: bytes) -> bool:
        if not self._may_be_published(key):
            return False
        fd = await self._published(origin)
        self._close_if_open(fd)
        return fd is not None

    def _close_if_open(self, fd: int | None) -> None:
        if fd is not None:
            self._parts.close(fd)

    async def cached_bytes(self, content: ContentId) -> int:
        """How many of a file's bytes are cached; 0 while the disk does not answer."""
        key = content.key
        entry = self._catalog.live(key)
        if entry is not None and entry.looking is None:
            return entry.pages.present_bytes
        if self._catalog.is_absent(key):
            return 0
        try:
            return await self._parts.ask_disk(self._parts.tier.index.recorded_bytes, key)
        except OSError as err:
            self._catalog.disk_fault(err)
            return 0

    async def free(self, contents: Iterable[ContentId]) -> FreedCounts:
        """Drops the cached bytes of these files. Those that are open read on from unlinked files
        (`busy_files`). Raises Unavailable when the index cannot be written."""
        keys = [*dict.fromkeys(content.key for content in contents)]
        try:
            counts = await self._catalog.drop(keys)
        except OSError as err:
            self._catalog.disk_fault(err)
            raise Unavailable(f"the cache disk failed: {err.strerror or err}") from err
        self._segments.drop_content(keys)
        return counts

    def _tier_changed(self, in_service: bool) -> None:
        if not in_service:
            self._catalog.leave_tier()
        self.on_tiers()

    def status(self) -> dict[str, Any]:
        """Plain values for `cachefs status`; see docs/operations.md."""
        return status(self._parts, self._catalog, self._segments, self._leftovers)

    async def at_disk(self, function: Callable[..., Any], *args: Any) -> None:
        """Does something in the cache directory that nobody depends on; not when its disk hangs."""
        try:
            await self._parts.ask_disk(function, *args)
        except OSError as err:
            log.warning("the cache directory: %s", err.strerror or err)

    # ---- the end ----

    async def close(self) -> None:
        """Ends all fills, commits what is complete, gives the directory back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        parts = self._parts
        self._filler.abort()
        self._supply.small.close()  # before the threads that it leaves files to
        self._catalog.freeze()
        self._segments.freeze()
        await parts.tasks.close()
        self.housekeeping.write_touches()
        self.housekeeping.write_released()
        closer = Threads("closer", 1, parts.wake)
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                closed = await closer.run(self._close_all)
        except TimeoutError:
            closed = False
        finally:
            closer.close(0.0)
        if not closed:
            # A thread in a request may still write to a descriptor: those stay open until the
            # process ends, so that none of them comes to mean another file.
            log.warning("closed with requests in flight")

    def _close_all(self) -> bool:
        """In a thread of its own: the disk may hang. False when some thread has not ended."""
        parts = self._parts
        answers = parts.health.in_service
        wait_s = CLOSE_WAIT_S if answers else HANGING_WAIT_S
        until_s = time.monotonic() + wait_s  # all of them end at the same time
        ended = self._supply.close(wait_s)
        ended &= parts.closers.close(until_s - time.monotonic())
        ended &= parts.disk.close(wait_s)  # before the writer: calls wait there for their commits
        committed = parts.writer.close(None if answers else wait_s)
        ended &= self._watch.close(wait_s)
        if ended and committed:
            self._catalog.close()
            self._leftovers.close()
            self._segments.close()
        if committed:
            parts.tier.close(in_use=not ended)
        return ended and committed
