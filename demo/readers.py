"""Reads the data set as a trainer would, and by plain GETs; every byte is checked.

The same Python readers measure every row of the demo's table, so that the rows are comparable. None
of them is the fastest possible on the machine.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pycurl
import xxhash

from demo.dataset import SHARD_BYTES, Dataset
from tests.services.s3_server import S3Server

READERS = 16
CHUNK_BYTES = 1 << 20
RANGE_BYTES = 8 << 20
TURNS = 15  # passes over each directory; one takes less than 0.1 s

Checksum = Callable[[str], str]  # reads the file of that name whole
Paths = Mapping[str, str]  # by name


class WrongBytes(Exception):
    """A file differs from the uploaded one."""


@dataclass(frozen=True)
class Rates:
    """One pass over the data set, or the medians of several."""

    files_per_s: float
    small_bytes_per_s: float
    shard_bytes_per_s: float


def measure(dataset: Dataset, of_image: Checksum, of_shard: Checksum) -> Rates:
    """Reads all images by 16 threads, then the shard by one."""
    with ThreadPoolExecutor(READERS) as pool:
        started = time.perf_counter()
        found = dict(zip(dataset.images, pool.map(of_image, dataset.images), strict=True))
        images_s = time.perf_counter() - started
    started = time.perf_counter()
    found |= {name: of_shard(name) for name in dataset.shard}
    shard_s = time.perf_counter() - started
    for name, expected in dataset.files.items():
        if found[name] != expected:
            raise WrongBytes(f"{name} is not what was uploaded")
    count = len(dataset.images)
    return Rates(count / images_s, dataset.image_bytes / images_s, SHARD_BYTES / shard_s)


def from_directory(dataset: Dataset, root: Path) -> Rates:
    """Reads the files below `root`."""
    return from_files(dataset, paths_below(dataset, root))


def paths_below(dataset: Dataset, root: Path) -> Paths:
    return {name: str(root / name) for name in dataset.files}


def from_files(dataset: Dataset, paths: Paths) -> Rates:
    """Reads through the file system: open, read in 1 MiB pieces, close."""
    local = threading.local()

    def checksum_of(name: str) -> str:
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(bytearray(CHUNK_BYTES))
        buffer: memoryview = local.buffer
        hasher = xxhash.xxh3_128()
        fd = os.open(paths[name], os.O_RDONLY | os.O_CLOEXEC)
        try:
            while count := os.readv(fd, [buffer]):
                hasher.update(buffer[:count])
        finally:
            os.close(fd)
        return hasher.hexdigest()

    return measure(dataset, checksum_of, checksum_of)


def by_turns(dataset: Dataset, ways: Sequence[Paths]) -> list[Rates]:
    """Reads the files by each way in turn, without the kernel's cached bytes and names; returns the
    medians of each."""
    passes: list[list[Rates]] = [[] for _ in ways]
    for turn in range(TURNS):
        for number in range(len(ways)):
            way = (turn + number) % len(ways)  # what was read last is in the CPU's caches
            drop_kernel_caches(dataset, ways[way])
            passes[way].append(from_files(dataset, ways[way]))
    return [median(rates) for rates in passes]


def median(passes: Sequence[Rates]) -> Rates:
    return Rates(
        statistics.median(one.files_per_s for one in passes),
        statistics.median(one.small_bytes_per_s for one in passes),
        statistics.median(one.shard_bytes_per_s for one in passes),
    )


def from_bucket(dataset: Dataset, server: S3Server, bucket: str, prefix: str) -> Rates:
    """Reads by plain GETs of libcurl with the same concurrency; the shard in ranges of 8 MiB."""
    local = threading.local()

    def get(name: str, start: int = 0, end: int = 0) -> bytes:
        """Returns an object, or its bytes from `start` to `end`."""
        if not hasattr(local, "handle"):
            local.handle = _handle(server)
        local.handle.setopt(pycurl.URL, f"{server.endpoint_url}/{bucket}/{prefix}/{name}")
        if end:
            local.handle.setopt(pycurl.RANGE, f"{start}-{end - 1}")
        body: bytes = local.handle.perform_rb()
        return body

    def of_image(name: str) -> str:
        return xxhash.xxh3_128_hexdigest(get(name))

    def of_shard(name: str) -> str:
        def read_range(start: int) -> bytes:
            return get(name, start, min(start + RANGE_BYTES, SHARD_BYTES))

        hasher = xxhash.xxh3_128()
        with ThreadPoolExecutor(READERS) as pool:
            for piece in pool.map(read_range, range(0, SHARD_BYTES, RANGE_BYTES)):
                hasher.update(piece)
        return hasher.hexdigest()

    return measure(dataset, of_image, of_shard)


def _handle(server: S3Server) -> pycurl.Curl:
    """Returns a handle that signs its requests and keeps its connection."""
    handle = pycurl.Curl()
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.FAILONERROR, 1)
    handle.setopt(pycurl.AWS_SIGV4, f"aws:amz:{server.region}:s3")
    handle.setopt(pycurl.USERPWD, f"{server.access_key}:{server.secret_key}")
    handle.setopt(pycurl.HTTPHEADER, ["x-amz-content-sha256: UNSIGNED-PAYLOAD"])
    if server.ca_bundle:
        handle.setopt(pycurl.CAINFO, str(server.ca_bundle))
    return handle


def drop_kernel_caches(dataset: Dataset, paths: Paths) -> None:
    """Drops the kernel's cached bytes of the files and, if permitted, its names."""
    for name in dataset.files:
        fd = os.open(paths[name], os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("2\n")
