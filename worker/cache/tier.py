"""One tier of a node's cache, from its start to its end: its directory, threads, accounts, reads
and fills. All methods belong to the event loop in which `Tier.start` ran. Bytes never pass through
here: callers get descriptors and read themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cachefs.core.errors import BadConfig, Unavailable
from cachefs.core.messages import Ensured
from cachefs.core.model import SMALL_FILE_BYTES, ContentId, NamespaceId, Origin
from cachefs.core.services import MetadataService
from cachefs.core.tiers import MEMORY, TierSpec
from worker.cache.grants import TierView
from worker.cache.handles import Handle
from worker.cache.loads import TierLoading
from worker.cache.opens import TierOpens
from worker.cache.peer_reads import TierServing
from worker.cache.policies import Expirer
from worker.cache.promises import Promises
from worker.cache.reads import ReadService
from worker.cache.sampling import Sampling
from worker.cache.status import TierStatus
from worker.cache.tier_choice import Held, Room
from worker.cache.tier_views import TierViews
from worker.fill.fill import Filler
from worker.fill.segments import Segments
from worker.fill.source import Source
from worker.fill.supply import Supply, make_supply
from worker.runtime.clocks import Clocks
from worker.runtime.process_limits import allow_many_descriptors
from worker.runtime.threads import LoopCallbackQueue, Threads
from worker.store.filesystem import directory_identity
from worker.store.holds import Hold
from worker.store.records import FileRecord
from worker.tier.admission import Admission
from worker.tier.catalog import Catalog
from worker.tier.config import WorkerConfig
from worker.tier.contents import Contents, NodeParts, new_contents
from worker.tier.context import TierContext
from worker.tier.demotion import Copy
from worker.tier.disk import TierDisk, take_directory
from worker.tier.eviction_order import EvictionOrder
from worker.tier.freed_counts import FreedCounts
from worker.tier.ledger import allocation
from worker.tier.lost_writes import LostWrites
from worker.tier.maintenance import Housekeeping
from worker.tier.permission import EvictionPermission
from worker.tier.probe import TierWatch
from worker.tier.scrub import Scrubber, scrub_rate
from worker.tier.unlinked import UnlinkedOpenFiles

log = logging.getLogger(__name__)

CLOSE_WAIT_S: Final = 7.0  # for threads in a request: one that reads another tier gives up after 5
HANGING_WAIT_S: Final = 0.5  # the same, while the disk hangs
CLOSE_LIMIT_S: Final = 60.0  # for all, the last commit included


@dataclass(frozen=True, slots=True)
class TierSetting:
    """The common setting of a node's tiers. `metadata` raises NotFound for a namespace that is not
    attached. `config` holds everything but directories and sizes."""

    config: WorkerConfig
    metadata: Callable[[NamespaceId], MetadataService]
    clocks: Clocks
    source: Source
    shared: NodeParts


class Tier:
    """See the module. Made by `start`, ended by `close`. `index`: its place, the fastest first.
    `number` differs from that of every other tier of the process. `users`: handles, and calls that
    may open one. `identity`: (st_dev, st_ino) of its directory."""

    def __init__(
        self,
        index: int,
        number: int,
        spec: TierSpec,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        supply: Supply,
        on_change: Callable[[], None],
    ) -> None:
        self.index = index
        self.number = number
        self.spec = spec
        self.identity = 0, 0
        self.users = 0
        self.context = context
        self.disk = disk
        self.contents = contents
        self._on_change = on_change
        self._supply = supply
        self._leftovers = UnlinkedOpenFiles(context, disk, contents)
        self._catalog = catalog = Catalog(context, disk, contents, self._leftovers)
        self._permission = EvictionPermission(context, contents)
        self._space = Admission(context, disk, contents, catalog, self._permission, self._leftovers)
        self._segments = Segments(context, disk, contents)
        self._filler = Filler(context, disk, contents, supply, catalog, self._space, self._segments)
        self._promises = Promises(context, contents, catalog)
        self._make_upkeep()
        self._make_services()
        self._closed = False

    def _make_upkeep(self) -> None:
        """Creates what runs until the tier's end."""
        context, disk, contents, catalog = self.context, self.disk, self.contents, self._catalog
        self._watch = TierWatch(context, disk, contents, self._filler, self._service_changed)
        self.housekeeping = Housekeeping(
            context,
            disk,
            contents,
            catalog,
            self._space,
            self._leftovers,
            LostWrites(context, disk, contents, catalog, self._watch),
        )
        self.expirer = Expirer(
            context, disk, contents, catalog, self._permission, self._segments, self.housekeeping
        )

    def _make_services(self) -> None:
        """Creates what answers the cache's requests."""
        context, disk, contents, catalog = self.context, self.disk, self.contents, self._catalog
        self._provider = reads = ReadService(
            context, disk, catalog, self._space, self._segments, self._filler
        )
        self._status = TierStatus(context, disk, contents, catalog, self._segments, self._leftovers)
        self.opens = TierOpens(
            context, disk, catalog, self._space, reads, self.housekeeping, self._watch
        )
        self.loading = TierLoading(
            context,
            disk,
            contents,
            catalog,
            self._permission,
            self._space,
            self.housekeeping,
            self._filler,
            self._segments,
        )
        self.views = TierViews(context, disk, contents, catalog)
        self.serving = TierServing(
            context,
            disk,
            contents,
            catalog,
            self._segments,
            reads,
            self._filler,
            self.housekeeping,
        )

    @classmethod
    async def start(
        cls,
        index: int,
        number: int,
        spec: TierSpec,
        setting: TierSetting,
        source: Source,
        on_change: Callable[[], None],
    ) -> Tier:
        """Takes the directory over, without reading its data. Calls `on_change` whenever the tier
        leaves service, returns, or loses writes. Raises InUse (naming the owner), AccessDenied,
        BadConfig, NoSpace; Unavailable when the disk does not answer."""
        config = dataclasses.replace(
            setting.config,
            cache_dir=spec.path,
            limit_bytes=spec.limit_bytes,
            scrub_bytes_per_s=spec.scrub_bytes_per_s,
        )
        allow_many_descriptors()
        wake = LoopCallbackQueue(asyncio.get_running_loop())
        threads = Threads("disk", config.disk_threads, wake)
        disk = TierDisk(await take_directory(threads, spec.path), threads, wake)
        shared = setting.shared
        context = TierContext(
            config, setting.clocks, setting.metadata, shared.memory, shared.arrivals
        )
        contents = new_contents(config, disk.directory, setting.clocks, shared)
        in_memory = disk.directory.in_memory
        supply = make_supply(config, source, wake, in_memory=in_memory)
        tier = cls(index, number, spec, context, disk, contents, supply, on_change)
        try:
            await tier._begin()
        except BaseException:
            await tier.close()
            raise
        return tier

    async def _begin(self) -> None:
        """Checks the directory and starts the tasks that run until the end."""
        spec = self.spec
        await self.housekeeping.measure_overhead()
        for owner in (self._watch, self.housekeeping, self.expirer, Sampling(self.context)):
            self.context.tasks.start(owner.run())
        rate = scrub_rate(
            self.context.config.scrub_bytes_per_s, in_memory=self.disk.directory.in_memory
        )
        if rate:
            self.context.tasks.start(
                Scrubber(self.context, self.disk, self.contents, self._catalog, rate).run()
            )
        if spec.kind == MEMORY and not self.disk.directory.in_memory:
            raise BadConfig(
                f"a mem tier is to be on a tmpfs, and this is on {self.disk.directory.kind or '?'}",
                remedy="give a directory below /dev/shm, or write ssd: for a disk",
                path=spec.path,
            )
        identity = await self.disk.threads.run(directory_identity, spec.path)
        self.identity = identity or (0, 0)

    def _service_changed(self, in_service: bool) -> None:
        if not in_service:
            self._catalog.leave_tier()
        self._on_change()

    # ---- its state ----

    @property
    def in_service(self) -> bool:
        return self.disk.health.in_service

    @property
    def order(self) -> EvictionOrder:
        """The contents that have a record, once `order_known`."""
        return self.contents.order

    @property
    def order_known(self) -> bool:
        return self.contents.order_known

    @property
    def idle_after_s(self) -> float:
        return self.context.config.idle_after_s

    def view(self) -> TierView:
        losses = self.disk.health.losses
        return TierView(
            self.index, self.disk.directory.pub_fd, self.in_service, self.number, losses
        )

    @property
    def is_used(self) -> bool:
        """True if a handle of the tier is open, or a call waits for one."""
        return self.users > 0 or len(self._catalog) > 0

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keeps the tier from being closed while another one takes its place."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status`; see docs/operations.md."""
        return self._status.tree()

    # ---- reads ----

    async def ensure(
        self, handle: Handle, offset: int, size: int, *, past_tier: bool, takes_bytes: bool
    ) -> tuple[Ensured, int | None]:
        """See `Cache.ensure`."""
        entry = handle.entry
        if entry is None or offset >= handle.size:
            return self._provider.beyond(handle, offset, size), None
        if past_tier:
            handle.past_tier = True
            self._watch.suspect()
        handle.takes_bytes = takes_bytes
        entry.users += 1  # the handle may be released meanwhile
        try:
            return await self._provider.ensure(handle, offset, size)
        finally:
            self._catalog.leave(entry)

    def release(self, handle: Handle) -> None:
        """Ends a handle that `opens` made."""
        if handle.entry is not None:
            self._provider.ended(handle)
            self._catalog.leave(handle.entry)

    def used(self, names: Sequence[str], hit_bytes: int) -> None:
        """Counts published files that clients opened without a request. Names that mean nothing
        here are ignored."""
        counters = self.context.counters
        counters.hits += len(names)
        counters.hit_bytes += max(0, hit_bytes)
        self.context.paths.used(names)
        for name in names:
            if self.has_name(name):
                self.housekeeping.read(bytes.fromhex(name))

    # ---- contents ----

    def is_live(self, key: bytes) -> bool:
        """Returns whether a content is open here, or being filled."""
        entry = self._catalog.live(key)
        return entry is not None and not entry.detached

    def may_have(self, key: bytes) -> bool:
        """False: the tier surely has nothing of that content."""
        return not self._catalog.is_absent(key)

    def has_name(self, name: str) -> bool:
        """Returns whether the content of that name has a record; False for what is no name."""
        try:
            return bytes.fromhex(name) in self.contents.order
        except ValueError:
            return False

    async def held(self, key: bytes, size: int, *, for_load: bool = False) -> Held | None:
        """Returns what the index has; None for nothing, or where the disk gives no answer."""
        try:
            record: FileRecord | None = await self.disk.call(self.disk.directory.index.get, key)
        except OSError as err:
            self._catalog.disk_fault(err)
            return None
        if record is None:
            return None
        missing_bytes = max(0, allocation(size) - record.allocated_bytes)
        takes_more = self._makes_room(_Wanted(key, size), for_load=for_load)(missing_bytes)
        return Held(self.index, record.complete, record.allocated_bytes, takes_more)

    async def record(self, key: bytes) -> FileRecord | None:
        """Returns the record; None where there is none, or the disk gives no answer."""
        try:
            return await self.disk.call(self.disk.directory.index.get, key)
        except OSError:
            return None

    async def hold_of(self, key: bytes) -> Hold | None:
        """Returns how long a content is held here. Raises OSError."""
        until_s, though_read = self.contents.order.held(key)
        record = await self.disk.call(self.disk.directory.index.get, key) if until_s else None
        return Hold(record.held_until_s, though_read) if record and record.held_until_s else None

    async def hold(self, key: bytes, hold: Hold) -> None:
        """Holds a content that has no hold here. Raises OSError."""
        if not self.contents.is_held(key):
            await self._catalog.hold([(key, hold)])

    async def cached_bytes(self, content: ContentId) -> int:
        """Returns how many of a file's bytes are cached; 0 while the disk gives no answer."""
        key = content.key
        entry = self._catalog.live(key)
        if entry is not None and entry.looking is None:
            return entry.pages.present_bytes
        if self._catalog.is_absent(key):
            return 0
        try:
            return await self.disk.call(self.disk.directory.index.recorded_bytes, key)
        except OSError as err:
            self._catalog.disk_fault(err)
            return 0

    async def free(self, contents: Iterable[ContentId]) -> FreedCounts:
        """See `Cache.free`."""
        keys = [*dict.fromkeys(content.key for content in contents)]
        try:
            counts = await self._catalog.drop(keys)
        except OSError as err:
            self._catalog.disk_fault(err)
            raise Unavailable(f"the cache disk failed: {err.strerror or err}") from err
        self._segments.drop_content(keys)
        return counts

    async def at_disk(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function in a thread of the disk's. Errors are logged."""
        try:
            await self.disk.call(function, *args)
        except OSError as err:
            log.warning("the cache directory: %s", err.strerror or err)

    # ---- room ----

    def room(self, origin: Origin | None = None, *, for_load: bool = False) -> Room:
        """Returns the room that a new content finds: what this node owns may take the place of what
        it does not, and a load that of everything that may leave at all."""
        ledger = self.contents.ledger
        wanted = _Wanted(origin.content.key, origin.size) if origin is not None else None
        return Room(
            in_service=self.disk.health.in_service,
            writable=self.disk.health.writable(self.context.monotonic()),
            limit_bytes=ledger.limit_bytes - ledger.headroom_bytes - ledger.scratch_floor_bytes,
            free_bytes=ledger.free_for_files - self._promises.total_bytes(),
            makes_room=self._makes_room(wanted, for_load=for_load),
        )

    def _makes_room(self, wanted: _Wanted | None, *, for_load: bool) -> Callable[[int], bool]:
        if for_load:
            return self._space.may_fit_load
        return functools.partial(self._space.may_fit, entry=wanted)

    def promise(self, origin: Origin) -> None:
        """Keeps the room of a large content that is placed here from other new contents."""
        self._promises.add(origin.content.key, origin.size)

    @property
    def takes_more(self) -> bool:
        """True if the tier surely takes a small file more."""
        return self.order_known and self._space.may_fit(SMALL_FILE_BYTES)

    async def make_room_from_idle(self, size_bytes: int, idle_s: float) -> None:
        """Evicts what was not used for `idle_s` until a content of that size fits."""
        await self._unless_left(self._space.make_room_from_idle(allocation(size_bytes), idle_s))

    async def let_go(self, key: bytes) -> None:
        """Evicts a content that another tier has."""
        await self._unless_left(self._space.let_go([key]))

    async def _unless_left(self, work: Coroutine[Any, Any, object]) -> None:
        """Waits for work at the disk as long as that answers. The work continues in any case."""
        await self.disk.unless_left(self.context.tasks.start(work), None)

    def excess_bytes(self, excess: Callable[[int, int, float, float], int]) -> int:
        """Returns what `excess(used, limit, high, low)` makes of the bytes that are used now."""
        limit_bytes = self.room().limit_bytes
        used_bytes = limit_bytes - self.contents.ledger.free_for_files
        return excess(used_bytes, limit_bytes, self.spec.high, self.spec.low)

    def make_room_ahead(self, size_bytes: int) -> asyncio.Task[None]:
        """Evicts `size_bytes` before a fill needs the room."""
        return self.context.tasks.start(self._space.make_room_ahead(size_bytes))

    def copy_before_eviction(self, copy: Copy) -> None:
        """Calls `copy(keys, need_bytes)` from now on with contents that are about to be evicted."""
        self._space.demotion.copy_below = copy

    # ---- the end ----

    async def close(self) -> None:
        """Ends all fills, commits what is complete, gives the directory back. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._filler.abort()
        self._supply.end_reads()
        self._catalog.freeze()
        self._segments.freeze()
        await self.context.tasks.close()
        self.housekeeping.write_touches()
        self.housekeeping.write_released()
        closer = Threads("closer", 1, self.disk.wake)
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                closed = await closer.run(self._close_all)
        except TimeoutError:
            closed = False
        finally:
            closer.close(0.0)
        if not closed:
            # A thread in a request may still write to a descriptor: those stay open until the
            # process ends, so that none of them is reused for another file.
            log.warning("closed with requests in flight")

    def _close_all(self) -> bool:
        """Returns False when some thread has not ended. Blocks: the disk may hang."""
        answers = self.disk.health.in_service
        wait_s = CLOSE_WAIT_S if answers else HANGING_WAIT_S
        until_s = time.monotonic() + wait_s  # all of them end at the same time
        ended = self._supply.close(wait_s)
        ended &= self.disk.closers.close(until_s - time.monotonic())
        # Before the writer: calls wait there for their commits.
        ended &= self.disk.threads.close(wait_s)
        committed = self.disk.writer.close(None if answers else wait_s)
        ended &= self._watch.close(wait_s)
        if ended and committed:
            self._catalog.close()
            self._leftovers.close()
            self._segments.close()
        if committed:
            self.disk.directory.close(in_use=not ended)
        return ended and committed


class _Wanted(NamedTuple):
    """A content that is not here yet (`worker.tier.admission.SpaceRequest`)."""

    key: bytes
    size: int
