"""Checks of what was loaded: whether it is still cached, and its bytes are right. Owned by the
loop; disks are read by threads. Nothing is fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from cachefs.core.jobs import TaskFile
from cachefs.core.pages import PageRange, split
from worker.cache.load_requests import pages_of
from worker.fill.transfer import PIECE_PAGES
from worker.store.cached_file import bad_pages
from worker.store.directory import TierDirectory
from worker.tier.catalog import Catalog
from worker.tier.context import TierContext
from worker.tier.damaged import drop_damaged
from worker.tier.disk import TierDisk

READ_LIMIT_S: Final = 30.0  # for some pages
READERS: Final = 2  # of the tier's threads at once


class Checks:
    """The checks of one tier."""

    def __init__(self, context: TierContext, disk: TierDisk, catalog: Catalog) -> None:
        self._context = context
        self._disk = disk
        self._catalog = catalog
        self._readers = asyncio.Semaphore(READERS)

    async def missing(self, files: Sequence[TaskFile]) -> list[int]:
        """The places of those that are not complete. Raises OSError."""
        missing: list[int] = []
        quiet: list[int] = []
        for place, file in enumerate(files):
            key = file.origin.content.key
            if file.origin.size == 0:
                continue
            if self._catalog.is_absent(key):
                missing.append(place)
            elif self._catalog.is_live(key):
                if not await self._is_here(file):
                    missing.append(place)
            else:
                quiet.append(place)
        if quiet:
            asked = [files[place] for place in quiet]
            found = await self._disk.call(_look_at, self._disk.directory, asked)
            for place, complete in zip(quiet, found, strict=True):
                if complete is False or (
                    complete is None and not await self._is_here(files[place])
                ):
                    missing.append(place)
        return sorted(missing)

    async def _is_here(self, file: TaskFile) -> bool:
        """Returns whether a file is complete as an open would find it: what is doubtful is
        verified."""
        entry = await self._catalog.open(file.origin, file.origin.content.key)
        try:
            if entry.uncommitted:
                await entry.next_commit(asyncio.get_running_loop())
            pages = pages_of(entry.size, file.block)
            is_kept = entry.recorded and not (entry.detached or entry.lacks_records(*pages))
            return is_kept and not any(entry.pages.missing(*pages))
        finally:
            self._catalog.leave(entry)

    async def wrong(self, files: Sequence[TaskFile]) -> list[int]:
        """Returns those that are missing, after every page was read. What has damaged pages is
        dropped. Raises OSError."""
        missing = await self.missing(files)
        gone = set(missing)
        for place, file in enumerate(files):
            if place not in gone and file.origin.size and not await self._is_right(file):
                missing.append(place)
        return sorted(missing)

    async def _is_right(self, file: TaskFile) -> bool:
        key = file.origin.content.key
        size_bytes = file.origin.size
        for pages in split(*pages_of(size_bytes, file.block), PIECE_PAGES):
            async with self._readers:
                right = await self._disk.call(
                    _are_right, self._disk.directory, key, size_bytes, pages, limit_s=READ_LIMIT_S
                )
            if right:
                continue
            if right is False:
                self._context.counters.bad_pages += 1
                await drop_damaged(self._catalog, key)
            return False
        return True


# ---- in threads ----


def _look_at(tier: TierDirectory, files: Sequence[TaskFile]) -> list[bool | None]:
    """Returns whether each is complete; None: it is doubtful. Raises OSError."""
    keys = [file.origin.content.key for file in files]
    found: list[bool | None] = []
    for file, key, record in zip(files, keys, tier.index.get_all(keys), strict=True):
        size_bytes = file.origin.size
        if record is None or record.size != size_bytes:
            found.append(False)
        elif not tier.header.trusts(record.epoch):
            found.append(None)
        else:
            complete = record.complete or _has_block(tier, key, file)
            found.append(complete and tier.has_file(key.hex(), size_bytes))
    return found


def _has_block(tier: TierDirectory, key: bytes, file: TaskFile) -> bool:
    if file.block < 0:
        return False
    first, end = pages_of(file.origin.size, file.block)
    wanted = (1 << end) - (1 << first)
    return tier.index.bits(key, file.origin.size) & wanted == wanted


def _are_right(tier: TierDirectory, key: bytes, size_bytes: int, pages: PageRange) -> bool | None:
    """Returns None where not all of these pages are cached (any more). Raises OSError."""
    sums = tier.index.sums(key, size_bytes, *pages)
    if len(sums) < pages[1] - pages[0]:
        return None
    bad = bad_pages(tier, key, size_bytes, sums)
    return None if bad is None else not bad
