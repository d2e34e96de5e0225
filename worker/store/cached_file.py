"""Pages of a cache file that are compared with the checksums in the index. Blocking: for threads of
the tier's disk. All functions raise OSError.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import xxhash

from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import page_count, range_bytes
from worker.store.directory import TierDirectory
from worker.store.records import FileRecord


class Run(NamedTuple):
    """Pages that are recorded, and their checksums from the first one on. `fd` is read-only and the
    receiver's to close."""

    fd: int
    size_bytes: int
    sums: list[int]


def open_now(tier: TierDirectory, name: str) -> int | None:
    """Opens a cache file for reading. None: there is none, or it is being removed."""
    try:
        return tier.open_file(name, os.O_RDONLY)
    except BlockingIOError:  # it is under a lease
        return None


@contextlib.contextmanager
def opened(tier: TierDirectory, name: str) -> Iterator[int | None]:
    """Yields what `open_now` returns, and closes it."""
    fd = open_now(tier, name)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def open_run(
    tier: TierDirectory, key: bytes, record: FileRecord, first: int, end: int
) -> Run | None:
    """Opens the recorded pages of [first, end) from `first` on. None: the first page is not
    recorded, or the file is not as its record says."""
    known = tier.index.sums(key, record.size, first, min(end, page_count(record.size)))
    sums: list[int] = []
    while (checksum := known.get(first + len(sums))) is not None:
        sums.append(checksum)
    fd = open_now(tier, key.hex()) if sums else None
    if fd is None:
        return None
    if os.fstat(fd).st_size == record.size:
        return Run(fd, record.size, sums)
    os.close(fd)
    return None


def bad_pages(
    tier: TierDirectory, key: bytes, size_bytes: int, sums: Mapping[int, int]
) -> list[int] | None:
    """Returns the pages whose bytes do not have these checksums, or cannot be read. None: there is
    no such file."""
    with opened(tier, key.hex()) as fd:
        if fd is None or os.fstat(fd).st_size != size_bytes:
            return None
        buffer = memoryview(bytearray(min(PAGE_BYTES, max(1, size_bytes))))
        return [
            page
            for page, checksum in sums.items()
            if not _is_right(fd, buffer, size_bytes, page, checksum)
        ]


def _is_right(fd: int, buffer: memoryview, size_bytes: int, page: int, checksum: int) -> bool:
    part = buffer[: range_bytes(size_bytes, page, page + 1)]
    try:
        count = os.preadv(fd, [part], page * PAGE_BYTES)
    except OSError:
        return False
    return count == len(part) and xxhash.xxh3_64_intdigest(part) == checksum
