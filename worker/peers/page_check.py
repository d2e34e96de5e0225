"""Compares cached pages with their checksums, for callers that must not have the bytes."""

from __future__ import annotations

import os

import xxhash

from cachefs.core.model import PAGE_BYTES
from worker.cache.peer_reads import Pages
from worker.runtime.threads import Threads


async def wrong_pages(pages: Pages, threads: Threads) -> list[int]:
    """Returns the numbers of the pages whose bytes differ from their checksums, or cannot be read.
    Closes the pages."""
    return await threads.run(_compare, pages)


def _compare(pages: Pages) -> list[int]:
    """Compares in a thread; closes the pages."""
    try:
        sums = enumerate(pages.checksums)
        return [pages.first + n for n, wanted in sums if _sum_of(pages, n) != wanted]
    finally:
        pages.close()


def _sum_of(pages: Pages, n: int) -> int | None:
    """Returns the checksum of a page's bytes on disk; None if the page cannot be read."""
    start = n * PAGE_BYTES
    length = min(PAGE_BYTES, pages.size_bytes - start)
    try:
        data = os.pread(pages.fd, length, pages.offset + start)
    except OSError:
        return None
    return xxhash.xxh3_64_intdigest(data) if len(data) == length else None
