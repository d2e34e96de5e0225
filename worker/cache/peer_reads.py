"""Pages of one tier for peers, with the checksums that were taken when they were fetched. Owned by
the loop; bytes are read by the receiver of the descriptor.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import xxhash

from cachefs.core.errors import NoSpace
from cachefs.core.model import PAGE_BYTES, Origin
from cachefs.core.pages import PageRange, page_count, range_bytes
from worker.cache.reads import FETCH_PIECES, ReadService
from worker.fill.range_fill import Limits, RangeFill
from worker.fill.source import Purpose
from worker.store.cached_file import bad_pages, open_run
from worker.store.holdings import Holding, read_holdings
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.damaged import drop_damaged
from worker.tier.disk import TierDisk, no_answer

if TYPE_CHECKING:
    from worker.fill.fill import Filler
    from worker.fill.segment import Segment
    from worker.fill.segments import Segments
    from worker.store.directory import TierDirectory
    from worker.tier.catalog import Catalog
    from worker.tier.entry import Entry
    from worker.tier.maintenance import Housekeeping

log = logging.getLogger(__name__)

ATTEMPTS: Final = 8  # of one request: each ends with pages, an error, or pages that went again
MOST_DOUBTED: Final = 8  # pages looked at for one doubt


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages from `first` on, one for each checksum (xxh3_64), `size_bytes` in all. `fd` is
    read-only and the receiver's to close; its byte 0 is the file's byte `base`."""

    fd: int
    base: int
    first: int
    size_bytes: int
    checksums: Sequence[int]

    @property
    def offset(self) -> int:
        """The offset of the first page in `fd`."""
        return self.first * PAGE_BYTES - self.base

    def close(self) -> None:
        os.close(self.fd)


@dataclass(eq=False)
class TierServing:
    """Pages of one tier for peers, see `worker.cache.serving.CacheServing`."""

    _context: TierContext
    _disk: TierDisk
    _contents: Contents
    _catalog: Catalog
    _segments: Segments
    _provider: ReadService
    _filler: Filler
    _housekeeping: Housekeeping

    # ---- reads ----

    async def here(
        self, key: bytes, first: int, end: int, *, for_reader: bool = False
    ) -> Pages | None:
        """See `CacheServing`."""
        entry = self._catalog.live(key)
        if entry is not None and entry.looking is not None:
            await asyncio.shield(entry.looking)
        try:
            found = await (
                self._of_entry(entry, first, end) if entry else self._cold(key, first, end)
            )
        except OSError as err:
            self._catalog.disk_fault(err)
            return None
        if found is not None and key in self._contents.order:
            (self._housekeeping.read if for_reader else self._housekeeping.touch)(key)
        return found

    async def _of_entry(self, entry: Entry, first: int, end: int) -> Pages | None:
        stop = min(end, entry.pages.run_end(first))
        if stop > first and entry.fd >= 0 and self._disk.health.in_service:
            known = {**entry.committing, **entry.unrecorded}
            fresh = {page: known[page] for page in range(first, stop) if page in known}
            fd = await self._disk.reopen(entry.fd)
            return await self._with_checksums(fd, entry.key, entry.size, (first, stop), fresh)
        return await self._of_segment(entry.key, first, end)

    async def _with_checksums(
        self,
        fd: int,
        key: bytes,
        size_bytes: int,
        pages: PageRange,
        fresh: dict[int, int | None],
    ) -> Pages:
        length = range_bytes(size_bytes, *pages)
        known = [sum for page in range(*pages) if (sum := fresh.get(page)) is not None]
        if len(known) == pages[1] - pages[0]:
            return Pages(fd, 0, pages[0], length, known)
        try:
            if not self._disk.health.in_service:
                raise no_answer()  # before there is a descriptor that would not be closed
            sums = await self._disk.call(
                _checksums, self._disk.directory, os.dup(fd), key, size_bytes, pages
            )
        except BaseException:
            self._disk.close(fd)
            raise
        both = [fresh.get(page) or sums[page] for page in range(*pages)]
        return Pages(fd, 0, pages[0], length, both)

    async def _of_segment(self, key: bytes, first: int, end: int) -> Pages | None:
        segment = self._segments.find(key, first)
        if segment is None:
            return None
        stop = min(end, segment.ready_end)
        sums = segment.checksums[first - segment.first : stop - segment.first]
        size_bytes = min(stop * PAGE_BYTES, segment.stop) - first * PAGE_BYTES
        fd = await self._segments.grant(segment, to_reader=False)
        return Pages(fd, segment.start, first, size_bytes, sums)

    async def _cold(self, key: bytes, first: int, end: int) -> Pages | None:
        """Returns pages of a content that is not live."""
        on_disk = not self._catalog.is_live(key) and not self._catalog.is_absent(key)
        if on_disk and self._disk.health.in_service:
            found = await self._disk.call(
                _recorded, self._disk.directory, key, first, end, discard=_discard
            )
            if found is not None:
                return found
        return await self._of_segment(key, first, end)

    async def bits(self, key: bytes) -> int | None:
        """Returns the bitmap of the cached pages; None where the disk gives no answer."""
        entry = self._catalog.live(key)
        if entry is not None and entry.looking is None:
            return entry.pages.bits
        if self._catalog.is_absent(key):
            return 0
        try:
            return await self._disk.call(_recorded_bits, self._disk.directory, key)
        except OSError as err:
            self._catalog.disk_fault(err)
            return None

    async def holdings(self, after: bytes, limit: int) -> tuple[Holding, ...]:
        """See `CacheServing`."""
        return await self._disk.call(read_holdings, self._disk.directory.index, after, limit)

    def replicas(self, key: bytes) -> int:
        """Returns how many nodes own a content, as far as the tier knows."""
        return self._contents.rules.replicas(key)

    # ---- fills ----

    async def provide(self, origin: Origin, first: int, end: int, epoch: int) -> Pages:
        """See `CacheServing`."""
        entry = await self._catalog.open(origin, origin.content.key)
        try:
            end = min(end, entry.page_count)
            for _ in range(ATTEMPTS):
                await self._provider.pages(entry, first, end, epoch)
                found = await self._of_entry(entry, first, end)
                if found is not None:
                    return found
        except OSError as err:
            self._catalog.disk_fault(err)
        finally:
            self._catalog.leave(entry)
        raise NoSpace("there is not enough scratch room to serve this file")

    async def bring(self, origin: Origin, first: int, end: int, *, peers_only: bool) -> int:
        """See `CacheServing`."""
        entry = await self._catalog.open(origin, origin.content.key)
        try:
            end = min(end, entry.page_count)
            purpose = Purpose.MIGRATE if peers_only else Purpose.READ
            limits = Limits(FETCH_PIECES, functools.partial(_may_continue, entry), purpose)
            await RangeFill(self._filler, entry, limits).run(first, end)
            return (entry.pages.bits >> first & (1 << end - first) - 1).bit_count()
        finally:
            self._catalog.leave(entry)

    # ---- doubts ----

    async def doubt(self, key: bytes, pages: Sequence[int]) -> bool:
        """See `CacheServing`."""
        pages = pages[:MOST_DOUBTED]
        self._doubt_segments(key, pages)
        try:
            bad = await self._disk.call(_bad_pages, self._disk.directory, key, pages)
            if not bad:
                return False
            log.warning("%s: %d pages are damaged, a peer found; dropped", key.hex(), len(bad))
            self._context.counters.bad_pages += len(bad)
            await drop_damaged(self._catalog, key)
        except OSError as err:
            self._catalog.disk_fault(err)
            return False
        return True

    def _doubt_segments(self, key: bytes, pages: Iterable[int]) -> None:
        """Drops the segments of these pages without a check: they are cheap to fetch again."""
        for page in pages:
            segment: Segment | None = self._segments.find(key, page)
            if segment is not None:
                self._segments.drop(segment)


def _may_continue(entry: Entry) -> bool:
    """Returns True. Raises the error of the file."""
    entry.raise_failed()
    return True


def with_replicas(
    holdings: Iterable[Holding], replicas_of: Callable[[bytes], int]
) -> tuple[Holding, ...]:
    """Returns the same holdings, with the number of owners where it is known."""
    return tuple(
        dataclasses.replace(one, replicas=count) if (count := replicas_of(one.key)) > 1 else one
        for one in holdings
    )


# ---- in threads ----


def _checksums(
    tier: TierDirectory, fd: int, key: bytes, size_bytes: int, pages: PageRange
) -> dict[int, int]:
    """Returns the checksums of all these pages: from the index, or computed where the record is not
    committed yet. Closes `fd`. Raises OSError."""
    try:
        sums = tier.index.sums(key, size_bytes, *pages)
        for page in range(*pages):
            if page not in sums:
                length = range_bytes(size_bytes, page, page + 1)
                sums[page] = xxhash.xxh3_64_intdigest(os.pread(fd, length, page * PAGE_BYTES))
        return sums
    finally:
        os.close(fd)


def _recorded(tier: TierDirectory, key: bytes, first: int, end: int) -> Pages | None:
    """Raises OSError."""
    record = tier.index.get(key)
    if record is None or first >= page_count(record.size):
        return None
    run = open_run(tier, key, record, first, end)
    if run is None:
        return None
    size_bytes = range_bytes(record.size, first, first + len(run.sums))
    return Pages(run.fd, 0, first, size_bytes, run.sums)


def _recorded_bits(tier: TierDirectory, key: bytes) -> int:
    record = tier.index.get(key)
    return tier.index.bits(key, record.size) if record is not None else 0


def _bad_pages(tier: TierDirectory, key: bytes, pages: Sequence[int]) -> list[int]:
    """Returns the pages whose bytes differ from their recorded checksums. Raises OSError."""
    record = tier.index.get(key)
    if record is None or not pages:
        return []
    sums = tier.index.sums(key, record.size, min(pages), max(pages) + 1)
    wanted = {page: sums[page] for page in pages if page in sums}
    return bad_pages(tier, key, record.size, wanted) or []


def _discard(found: Pages | None) -> None:
    if found is not None:
        found.close()
