"""Timed reads without checksums, for rates at which a checksum would be half of the cost.

A work is a generator. Each step reads and yields (bytes, operations). One process reads several
files in turns of a few hundredths of a second, so that other load on the machine affects all of
them equally. `python -m bench.plain_reads SPEC.json` prints one JSON list of `Turn` lists, one for
each path.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

MIB = 1 << 20
STEP_BYTES = 8 * MIB
STEP_READS = 64

Item = TypeVar("Item")
Steps = Iterator[tuple[int, int]]


class Spec(msgspec.Struct):
    """`work`: sequential | scattered | mapped. All paths lead to the same file, by different
    means."""

    work: str
    paths: list[str]
    digest: str
    read_bytes: int = MIB
    turns: int = 20
    turn_s: float = 0.06
    seed: int = 1


class Turn(msgspec.Struct):
    """The result of one path in one turn."""

    bytes: int
    operations: int
    wall_s: float
    cpu_s: float  # of the reader, its system calls included


def sequential(path: str, chunk_bytes: int) -> Steps:
    """Reads the file repeatedly into one buffer."""
    buffer = [bytearray(chunk_bytes)]
    fd = os.open(path, os.O_RDONLY)
    while True:
        _forget_pages(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        count = chunk_bytes
        while count:
            total = reads = 0
            while total < STEP_BYTES and (count := os.readv(fd, buffer)):
                total += count
                reads += 1
            yield total, reads


def scattered(path: str, read_bytes: int, seed: int) -> Steps:
    """Reads aligned pieces in random order into one buffer."""
    buffer = [bytearray(read_bytes)]
    fd = os.open(path, os.O_RDONLY)
    places = list(range(0, os.fstat(fd).st_size - read_bytes + 1, read_bytes))
    random.Random(seed).shuffle(places)
    for some in _for_ever(places, STEP_READS):
        if some[0] == places[0]:
            _forget_pages(fd)
        yield sum([os.preadv(fd, buffer, at) for at in some]), len(some)


def mapped(path: str, digest: str) -> Steps:
    """Scans a fresh map of the file repeatedly; a hash (38 GB/s) touches every byte. Raises
    ValueError if it is not `digest`."""
    while True:
        with open(path, "rb", buffering=0) as file:
            _forget_pages(file.fileno())
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
                scan = xxhash.xxh3_64()
                with memoryview(memory) as view:
                    for start in range(0, len(view), STEP_BYTES):
                        with view[start : start + STEP_BYTES] as piece:
                            scan.update(piece)
                            yield len(piece), len(piece) // MIB
                if scan.hexdigest() != digest:
                    raise ValueError(f"{path} reads otherwise by a map")


def open_read_close(paths: Sequence[str], most_bytes: int) -> Steps:
    """Opens, reads with one call, closes: every file in turn, repeatedly."""
    buffer = [bytearray(most_bytes)]
    for some in _for_ever(paths, STEP_READS):
        total = 0
        for path in some:
            fd = os.open(path, os.O_RDONLY)
            total += os.readv(fd, buffer)
            os.close(fd)
        yield total, len(some)


def _forget_pages(fd: int) -> None:
    """Drops the pages that a FUSE server has sent from the page cache; tmpfs keeps its data."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _for_ever(items: Sequence[Item], count: int) -> Iterator[Sequence[Item]]:
    while True:
        for start in range(0, len(items), count):
            yield items[start : start + count]


def go_on(steps: Steps, duration_s: float) -> Turn:
    """Runs steps until the time is over."""
    total = operations = 0
    cpu_s, start_s = time.thread_time(), time.monotonic()
    now_s = start_s
    while now_s < start_s + duration_s:
        count, done = next(steps)
        total, operations = total + count, operations + done
        now_s = time.monotonic()
    return Turn(total, operations, now_s - start_s, time.thread_time() - cpu_s)


def steps_of(spec: Spec, path: str) -> Steps:
    if spec.work == "sequential":
        return sequential(path, spec.read_bytes)
    if spec.work == "scattered":
        return scattered(path, spec.read_bytes, spec.seed)
    return mapped(path, spec.digest)


def in_turns(spec: Spec) -> list[list[Turn]]:
    """Returns for each path its turns in the order in which they ran."""
    works = [steps_of(spec, path) for path in spec.paths]
    turns: list[list[Turn]] = [[] for _ in works]
    order, rng = list(range(len(works))), random.Random(spec.seed)
    for _ in range(spec.turns):
        rng.shuffle(order)  # else the kernel favours the path that follows one that sleeps a lot
        for number in order:
            turns[number].append(go_on(works[number], spec.turn_s))
    return turns


def main(path: str) -> None:
    spec = msgspec.json.decode(Path(path).read_bytes(), type=Spec)
    print(msgspec.json.encode(in_turns(spec)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
