"""Timed reads that do nothing but read: for rates where a checksum would be half of the cost.

Every act goes on until the clock ends it, or once over what it is given, and counts the bytes that
the kernel says it read. Benches read the same files once with checksums before.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import xxhash

MIB = 1 << 20
CLOCK_EVERY = 64  # reads between two looks at the clock

Item = TypeVar("Item")


class Tally:
    """Bytes and operations of one reader, ended by the clock."""

    def __init__(self, duration_s: float) -> None:
        self.bytes = 0
        self.operations = 0
        self._end_s = time.monotonic() + duration_s

    def add(self, count: int, operations: int = 1) -> None:
        self.bytes += count
        self.operations += operations

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end_s


def sequential(path: str, chunk_bytes: int, tally: Tally) -> None:
    """Reads the file again and again into one buffer."""
    buffer = [bytearray(chunk_bytes)]
    fd = os.open(path, os.O_RDONLY)
    while not tally.over:
        _forget_pages(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        while count := os.readv(fd, buffer):
            tally.add(count)
    os.close(fd)


def scattered(path: str, read_bytes: int, seed: int, tally: Tally) -> None:
    """Reads aligned pieces in random order into one buffer."""
    buffer = [bytearray(read_bytes)]
    fd = os.open(path, os.O_RDONLY)
    places = list(range(0, os.fstat(fd).st_size - read_bytes + 1, read_bytes))
    random.Random(seed).shuffle(places)
    for some in _for_ever(places, CLOCK_EVERY):
        if some[0] == places[0]:
            _forget_pages(fd)
        for at in some:
            tally.add(os.preadv(fd, buffer, at))
        if tally.over:
            break
    os.close(fd)


def mapped(path: str, tally: Tally) -> str:
    """Scans a fresh map of the file again and again; the hash (38 GB/s) is how every byte is
    touched. Returns the checksum of the last scan."""
    digest = ""
    while not tally.over:
        with open(path, "rb", buffering=0) as file:
            _forget_pages(file.fileno())
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
                digest = _hash(memory)
                tally.add(len(memory), len(memory) // MIB)
    return digest


def _hash(memory: mmap.mmap) -> str:
    scan = xxhash.xxh3_64()
    with memoryview(memory) as view:
        for start in range(0, len(view), MIB):
            with view[start : start + MIB] as piece:
                scan.update(piece)
    return scan.hexdigest()


def _forget_pages(fd: int) -> None:
    """What a FUSE server sent before is not to be read again from the page cache; what lies on
    tmpfs stays."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def open_read_close(paths: Sequence[str], most_bytes: int, tally: Tally, *, once: bool) -> None:
    """Opens, reads with one call, closes: every file once, or again and again."""
    buffer = [bytearray(most_bytes)]
    for some in _for_ever(paths, CLOCK_EVERY) if not once else [paths]:
        for path in some:
            fd = os.open(path, os.O_RDONLY)
            tally.add(os.readv(fd, buffer))
            os.close(fd)
        if tally.over:
            break


def _for_ever(items: Sequence[Item], count: int) -> Iterator[Sequence[Item]]:
    while True:
        for start in range(0, len(items), count):
            yield items[start : start + count]
