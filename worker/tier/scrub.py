"""The scrubber: reads complete files slowly, compares every page with its recorded checksum, and
drops a file with a wrong page, so that its next open fetches it again.

It bypasses the page cache where the file system permits, and holds a file open for one page at a
time: an eviction must not find it busy. Owned by the loop; the tier's threads read the disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cachefs.core.pages import page_count, range_bytes
from cachefs.core.tiers import SCRUB_BYTES_PER_S
from worker.store import on_disk
from worker.store.cached_file import opened
from worker.store.directory import TierDirectory
from worker.store.records import FileRecord
from worker.tier.catalog import Catalog
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.damaged import drop_damaged
from worker.tier.disk import TierDisk

log = logging.getLogger(__name__)

BATCH_FILES: Final = 64
PASS_S: Final = 24 * 3600.0  # from the beginning of one pass to that of the next, at least
FIRST_S: Final = 60.0  # after the start, which has other things to do
IDLE_S: Final = 5.0  # while there is nothing to do, or the tier is out of service
READ_LIMIT_S: Final = 30.0  # for a page


def scrub_rate(asked_bytes_per_s: int, *, in_memory: bool) -> int:
    """Returns the rate in bytes per second: the configured one; below 0: none in memory, a low one
    on disks."""
    if asked_bytes_per_s >= 0:
        return asked_bytes_per_s
    return 0 if in_memory else SCRUB_BYTES_PER_S


class Scrubber:
    """Over one tier, `bytes_per_s` at most. `run` is the one task; its steps can be called
    alone."""

    def __init__(
        self,
        context: TierContext,
        disk: TierDisk,
        contents: Contents,
        catalog: Catalog,
        bytes_per_s: int,
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._catalog = catalog
        self._bytes_per_s = bytes_per_s
        self._after = b""

    async def run(self) -> None:
        """Runs until cancelled."""
        clock = self._context.clocks.monotonic
        await asyncio.sleep(FIRST_S)
        while True:
            since_s = clock()
            while await self.step():
                await asyncio.sleep(0)
            await asyncio.sleep(max(IDLE_S, PASS_S - (clock() - since_s)))

    async def step(self) -> bool:
        """Some files more; False at the end of a pass."""
        if not self._contents.order_known or not self._disk.health.in_service:
            await asyncio.sleep(IDLE_S)
            return True
        try:
            batch = await self._disk.call(self._disk.directory.index.scan, self._after, BATCH_FILES)
            for key, record in batch:
                if record.complete and not self._catalog.is_live(key):
                    await self.check(key, record)
                self._after = key
        except OSError as err:
            self._catalog.disk_fault(err)
            return True
        if len(batch) < BATCH_FILES:
            self._after = b""
        return bool(self._after)

    async def check(self, key: bytes, record: FileRecord) -> int:
        """Reads a file; one with wrong pages is dropped. How many those are: it stops at the
        first. Raises OSError when the index cannot be read, or the disk hangs."""
        sums_of, pages = self._disk.directory.index.sums, page_count(record.size)
        sums = await self._disk.call(sums_of, key, record.size, 0, pages)
        for page, checksum in sums.items():
            length = range_bytes(record.size, page, page + 1)
            call = (_is_right, self._disk.directory, key.hex(), page, length, checksum)
            right = await self._disk.call(*call, limit_s=READ_LIMIT_S)
            if right is None:
                return 0  # it was removed in between
            self._context.counters.scrubbed_bytes += length
            if not right:
                await self._drop(key, page)
                return 1
            await asyncio.sleep(length / self._bytes_per_s)
        return 0

    async def _drop(self, key: bytes, page: int) -> None:
        log.warning("%s: page %d is damaged; dropped, to be fetched again", key.hex(), page)
        self._context.counters.bad_pages += 1
        await drop_damaged(self._catalog, key)


def _is_right(tier: TierDirectory, name: str, page: int, length: int, checksum: int) -> bool | None:
    """Returns whether a page is right; None for a file that was or is being removed. A page that
    cannot be read is wrong."""
    with opened(tier, name) as fd:
        if fd is None:
            return None
        try:
            return on_disk.page_matches(fd, page, length, checksum)
        except OSError as err:
            log.warning("%s: page %d cannot be read: %s", name, page, err.strerror)
            return False
