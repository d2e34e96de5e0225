"""Reads the data set as a trainer would, and as plain GETs; every byte read is checked."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.dataset import Dataset, checksum

READERS = 16
CHUNK_BYTES = 1 << 20
RANGE_BYTES = 8 << 20

Read = Callable[[str], bytes | bytearray]


class WrongBytes(Exception):
    """A file was not what was uploaded."""


@dataclass(frozen=True)
class Rates:
    """One pass over the data set."""

    files_per_s: float
    small_bytes_per_s: float
    shard_bytes_per_s: float


def _check(name: str, data: bytes | bytearray, expected: str) -> None:
    if checksum(data) != expected:
        raise WrongBytes(f"{name}: {len(data)} bytes that are not those uploaded")


def measure(dataset: Dataset, read_image: Read, read_shard: Read) -> Rates:
    """All images by 16 readers, then the shard by one; checksums outside the measured time."""
    names = list(dataset.images)
    with ThreadPoolExecutor(READERS) as pool:
        started = time.perf_counter()
        bodies = list(pool.map(read_image, names, chunksize=8))
        images_s = time.perf_counter() - started
    for name, body in zip(names, bodies, strict=True):
        _check(name, body, dataset.images[name])
    ((name, expected),) = dataset.shard.items()
    started = time.perf_counter()
    shard = read_shard(name)
    shard_s = time.perf_counter() - started
    _check(name, shard, expected)
    return Rates(len(names) / images_s, dataset.image_bytes / images_s, len(shard) / shard_s)


def from_directory(dataset: Dataset, root: Path) -> Rates:
    """Through the file system: open, read in 1 MiB pieces, close."""

    def read(name: str) -> bytearray:
        fd = os.open(root / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = bytearray(os.fstat(fd).st_size)
            rest = memoryview(data)
            while rest and (got := os.readv(fd, [rest[:CHUNK_BYTES]])):
                rest = rest[got:]
            return data
        finally:
            os.close(fd)

    return measure(dataset, read, read)


def from_bucket(dataset: Dataset, store: Any, prefix: str) -> Rates:
    """Plain GETs, as many at a time; the shard in ranges of 8 MiB."""
    import obstore

    def read_image(name: str) -> bytes:
        return bytes(obstore.get(store, f"{prefix}/{name}").bytes())

    def read_shard(name: str) -> bytes:
        size = obstore.head(store, f"{prefix}/{name}")["size"]

        def read_range(start: int) -> Any:
            end = min(start + RANGE_BYTES, size)
            return obstore.get_range(store, f"{prefix}/{name}", start=start, end=end)

        with ThreadPoolExecutor(READERS) as pool:
            return b"".join(pool.map(read_range, range(0, size, RANGE_BYTES)))

    return measure(dataset, read_image, read_shard)


def drop_kernel_caches(dataset: Dataset, root: Path) -> None:
    """Makes the kernel forget the bytes of the mount and, where that is allowed, its names."""
    for name in dataset.files:
        fd = os.open(root / name, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("2\n")
