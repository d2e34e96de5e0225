"""Maintenance of a tier: learns the eviction order after a start, sweeps files without a record,
syncs data to the disk, keeps last uses. Owned by the loop; threads read the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from worker.runtime.memory import KNOWN_BYTES, LIVE_BYTES
from worker.store import filesystem, trees
from worker.store.cached_file import opened
from worker.store.changes import DropFile, HoldFile, TouchFile
from worker.store.holds import Hold
from worker.store.index import Change, WritesLost
from worker.store.records import HELD_READ, FileRecord

if TYPE_CHECKING:
    from worker.store.directory import TierDirectory
    from worker.store.writer import Writer
    from worker.tier.admission import Admission
    from worker.tier.catalog import Catalog
    from worker.tier.contents import Contents
    from worker.tier.context import TierContext
    from worker.tier.disk import TierDisk
    from worker.tier.lost_writes import LostWrites
    from worker.tier.unlinked import UnlinkedOpenFiles

log = logging.getLogger(__name__)

SCAN_FILES: Final = 20_000  # of one call of a thread
LOAD_FILES: Final = 2_000  # into the order in one step of the loop
TICK_S: Final = 1.0
RETRY_S: Final = 5.0
KEEP_INDEX_S: Final = 30.0
MOST_TOUCHED: Final = 100_000  # last uses kept between two writes; more are forgotten
TOUCHES_PER_WRITE: Final = 2_000


class Housekeeping:
    """`run` is the one task; its steps can be called alone."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        catalog: Catalog,
        space: Admission,
        leftovers: UnlinkedOpenFiles,
        lost_writes: LostWrites,
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._catalog = catalog
        self._space = space
        self._leftovers = leftovers
        self._lost_writes = lost_writes
        self._touched: dict[bytes, int] = {}
        self._released: list[bytes] = []  # held until they were read, and read by now
        self._commits_at_sync = -1 if self._disk.directory.has_unsynced else 0
        self._failed_commits_at_sync = 0
        self._scratch_fills_at_sync = 0
        self._other_owners = False  # they are not applied to all contents yet
        self._synced_at_s = self._index_kept_at_s = self._context.monotonic()

    def read(self, key: bytes) -> None:
        """A cached file is used now, by a reader: that is what it was held for."""
        order = self._contents.order
        if order.held_count:
            until_s, though_read = order.held(key)
            if until_s and not though_read:
                self._release(key)
        self.touch(key)

    def _release(self, key: bytes) -> None:
        self._contents.release(key, self._context.wall_s())
        entry = self._catalog.live(key)
        if entry is not None:
            entry.hold = None
        self._released.append(key)
        if len(self._released) >= TOUCHES_PER_WRITE:
            self.write_released()

    def write_released(self) -> None:
        """Submits whose holds were ended since the last time."""
        released, self._released = self._released, []
        order = self._contents.order  # which knows better of what is held again by now
        changes = [HoldFile(key, 0) for key in released if not order.held(key)[0]]
        if changes:
            self._disk.writer.submit(changes, _ignore)

    def touch(self, key: bytes) -> None:
        """A cached file was used now."""
        now_s = self._context.wall_s()
        self._contents.use(key, now_s)
        if len(self._touched) < MOST_TOUCHED:
            self._touched[key] = now_s

    async def run(self) -> None:
        """Runs until cancelled."""
        await self.keep_index_in_memory()
        await self._until_done(self.load_order)
        await self._until_done(self.sweep)
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        """A disk that fails may be well again later: evictions need the order."""
        while True:
            try:
                return await step()
            except OSError as err:
                self._catalog.disk_fault(err)
            await asyncio.sleep(RETRY_S)

    async def tick(self) -> None:
        """Does what is due now."""
        self._leftovers.check()
        await self._space.shrink()
        count_memory(self._context, self._disk, self._contents, self._catalog)
        self.write_released()
        if self._other_owners:
            await self.ownership_changed()
        now = self._context.monotonic()
        failed = self._disk.writer.failed_commits != self._failed_commits_at_sync
        if failed or now - self._synced_at_s >= self._context.config.sync_interval_s:
            self._synced_at_s = now
            self.write_touches()
            await self.sync()
        await self._lost_writes.try_again()
        await self.measure_overhead()
        if now - self._index_kept_at_s >= KEEP_INDEX_S:
            await self.keep_index_in_memory()

    async def keep_index_in_memory(self) -> None:
        """Keeps what the index has by now in memory, up to a share of the memory budget."""
        self._index_kept_at_s = self._context.monotonic()
        if self._disk.directory.in_memory:
            return
        most_bytes = self._context.memory.index_limit_bytes
        try:
            await self._disk.threads.run(self._disk.directory.index.keep_in_memory, most_bytes)
        except OSError as err:
            self._catalog.disk_fault(err)

    async def measure_overhead(self) -> None:
        try:
            overhead = await self._disk.threads.run(self._disk.directory.overhead_bytes)
        except OSError as err:
            return self._catalog.disk_fault(err)
        self._contents.set_overhead(overhead)

    # ---- start ----

    async def load_order(self) -> None:
        """Loads the eviction order of contents of an earlier process; evictions wait for it.
        Empties the trash first: links in it would keep the bytes of evicted files."""
        await self._disk.threads.run(self._disk.directory.empty_trash)
        found: list[tuple[int, bytes]] = []
        held: dict[bytes, Hold] = {}
        async for batch in self.records():
            found += [(record.last_use_s, key) for key, record in batch]
            held.update(
                (key, Hold(record.held_until_s, bool(record.flags & HELD_READ)))
                for key, record in batch
                if record.held_until_s
            )
        await self._disk.threads.run(found.sort)
        while found:
            for _ in range(min(LOAD_FILES, len(found))):
                last_use_s, key = found.pop()
                self._contents.load(key, last_use_s, held.pop(key, None))
            await asyncio.sleep(0)
        await self._hold_for_views()
        await self.ask_owners()
        self._contents.order_known = True
        self._space.order_loaded.set()

    async def _hold_for_views(self) -> None:
        """Holds the contents of views, and removes trees without a record. Raises OSError."""
        directory = self._disk.directory
        batches = trees.contents(directory.index)
        async with self._contents.trees_change:
            await self._disk.threads.run(trees.remove_unrecorded, directory)
            while (keys := await self._disk.threads.run(next, batches, None)) is not None:
                self._contents.hold_for_view(keys)

    async def records(self) -> AsyncIterator[list[tuple[bytes, FileRecord]]]:
        """Yields the records of all cached contents, in batches. Raises OSError."""
        index, after = self._disk.directory.index, b""
        while True:
            batch = await self._disk.threads.run(index.scan, after, SCAN_FILES)
            yield batch
            if len(batch) < SCAN_FILES:
                return
            after = batch[-1][0]

    async def ownership_changed(self) -> None:
        """Applies a change of ownership; again at the next tick if the disk fails."""
        self._other_owners = False
        try:
            await self.ask_owners()
        except OSError as err:
            self._other_owners = True
            self._catalog.disk_fault(err)

    async def ask_owners(self) -> None:
        """Applies a change of ownership: contents that this node does not own are evicted first
        from now on."""
        if self._contents.is_owned is None:
            return
        async for batch in self.records():
            for start in range(0, len(batch), LOAD_FILES):
                for key, record in batch[start : start + LOAD_FILES]:
                    self._contents.set_owned(key, record.size)
                await asyncio.sleep(0)

    async def sweep(self) -> None:
        """Removes cache files without a record, corrects the accounts of partial files."""
        for fan in await self._disk.threads.run(self._disk.directory.fans):
            names = await self._disk.threads.run(self._disk.directory.names, fan)
            for start in range(0, len(names), SCAN_FILES):
                await self._sweep_some(names[start : start + SCAN_FILES])

    async def _sweep_some(self, names: Sequence[str]) -> None:
        doubtful = await self._disk.threads.run(_without_record, self._disk.directory, names)
        keys = [bytes.fromhex(name) for name in doubtful]
        keys = [key for key in keys if not self._catalog.is_live(key)]
        if not keys:
            return
        with self._catalog.removing(keys):
            grown = await self._disk.threads.run(
                _settle, self._disk.directory, self._disk.writer, keys
            )
        self._contents.grow_cached(grown)

    # ---- now and then ----

    def write_touches(self) -> None:
        """Submits the last uses since the last time."""
        touched, self._touched = self._touched, {}
        changes: list[Change] = [TouchFile(key, use_s) for key, use_s in touched.items()]
        for start in range(0, len(changes), TOUCHES_PER_WRITE):
            self._disk.writer.submit(changes[start : start + TOUCHES_PER_WRITE], _ignore)

    async def sync(self) -> None:
        """Syncs everything recorded so far to the disk, and marks it in the header: it needs no
        verification after a crash of the machine. Also syncs the scratch area, as nothing else
        reports lost bytes there."""
        commits = self._disk.writer.commits, self._disk.writer.failed_commits
        fills, fills_before = self._context.counters.scratch_fills, self._scratch_fills_at_sync
        nothing_recorded = commits == (self._commits_at_sync, self._failed_commits_at_sync)
        if self._disk.health.lost or (nothing_recorded and fills == fills_before):
            return
        self._scratch_fills_at_sync = fills
        epoch = self._disk.directory.header.epoch
        self._disk.epoch = epoch + 1  # see `records.next_start` and `records.failed`
        await self._commit_queued()
        failed = self._disk.writer.failed_commits != self._failed_commits_at_sync
        self._commits_at_sync, self._failed_commits_at_sync = (
            commits[0],
            self._disk.writer.failed_commits,
        )
        try:
            await self._disk.threads.run(self._disk.directory.sync, epoch)
        except WritesLost as err:
            self._catalog.disk_fault(err)
            await self._lost_writes.withdraw(err, index_failed=failed)
        except OSError as err:  # the header, on a full disk: it is written by the next sync
            self._catalog.disk_fault(err)
            self._commits_at_sync = -1
        else:
            self._disk.health.synced()

    async def _commit_queued(self) -> None:
        """Waits until the records that are queued are committed. A commit that a full disk refuses
        loses nothing: its files are not recorded."""
        try:
            await self._disk.threads.run(self._disk.writer.write, [])
        except OSError as err:
            self._catalog.disk_fault(err)


def _ignore(error: OSError | None) -> None:
    """Lost last uses cost nothing but a worse eviction order."""


def _without_record(tier: TierDirectory, names: Sequence[str]) -> list[str]:
    """Files without a record, and partial ones whose accounts are wrong (a crash in a fill)."""
    return [name for name in names if _is_doubtful(tier, name)]


def _is_doubtful(tier: TierDirectory, name: str) -> bool:
    record = tier.index.get(bytes.fromhex(name))
    return record is None or (not record.complete and _real_bytes(tier, name, record) >= 0)


def _real_bytes(tier: TierDirectory, name: str, record: FileRecord) -> int:
    """Returns the file's allocation; -1: as recorded."""
    with opened(tier, name) as fd:
        if fd is None:
            return -1
        real = filesystem.allocated_bytes(fd)
    return real if real != record.allocated_bytes else -1


def _settle(tier: TierDirectory, writer: Writer, keys: Sequence[bytes]) -> int:
    """Unlinks files without a record and corrects the records of others. Returns the growth of the
    accounted bytes. No such file is opened during the call."""
    grown = 0
    changes: list[Change] = []
    for key in keys:
        record = tier.index.get(key)
        if record is None:
            tier.unpublish(key.hex())
            tier.unlink(key.hex())
            changes.append(DropFile(key))
        elif (real := _real_bytes(tier, key.hex(), record)) >= 0:
            changes.append(TouchFile(key, 0, real))
            grown += real - record.allocated_bytes
    writer.write(changes)
    return grown


def count_memory(
    context: TierContext, disk: TierDisk, contents: Contents, catalog: Catalog
) -> None:
    """Reports the tier's metadata, and its bytes if it is in memory, to the memory budget."""
    ledger = contents.ledger
    counted_bytes = len(contents.order) * KNOWN_BYTES + len(catalog) * LIVE_BYTES
    metadata_bytes = counted_bytes + disk.directory.index.resident_bytes
    tier_bytes = ledger.used_bytes + ledger.reserved_bytes if disk.directory.in_memory else 0
    context.count_memory(metadata_bytes, tier_bytes)
