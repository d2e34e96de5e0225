"""Far more readers than the scratch area has room for, of files that the cache refuses: no read
fails or waits long, whatever else is open or dies. Every byte is compared."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.services.cluster import Cluster, Machine
from tests.services.processes import wait_until

MIB = 1 << 20
STEP = 128 << 10
STAMP = struct.Struct("<Q")
MANY = 100
READ_BYTES = 3 * MIB  # of each file
LONGEST_S = 15.0  # the machine may be busy; without room a read waited for 20 s and more
MOST_FETCHED = 2.0  # times the bytes that are read: the kernel reads ahead of readers that stop
END_S = 60.0
LONGEST_WITHOUT_A_WORKER_S = 15.0


@dataclass
class Seen:
    """What one reader saw."""

    reads: int = 0
    longest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def read(self, fd: int, offset: int, expected: bytes, what: str) -> None:
        began = time.monotonic()
        try:
            if os.pread(fd, len(expected), offset) != expected:
                self.wrong.append(f"{what} at {offset}: other bytes")
        except OSError as err:
            self.wrong.append(f"{what} at {offset}: {err}")
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.reads += 1


def start(readers: list[threading.Thread]) -> None:
    for reader in readers:
        reader.start()


def join(readers: list[threading.Thread]) -> None:
    until = time.monotonic() + END_S
    for reader in readers:
        reader.join(max(0.0, until - time.monotonic()))
    assert not any(reader.is_alive() for reader in readers), "a read hangs"


def right(seen: list[Seen], longest_s: float) -> None:
    wrong = [line for one in seen for line in one.wrong]
    assert not wrong, f"{len(wrong)} reads failed: {wrong[:3]}"
    longest = max(one.longest_s for one in seen)
    assert longest < longest_s, f"a read took {longest:.1f} s"


# ---- one node ------------------------------------------------------------------------------------


def stamp(number: int, page: int) -> bytes:
    return STAMP.pack(number << 32 | page + 1)


@pytest.fixture
def large_files(tmp_path: Path) -> Path:
    """Sparse files of 12 MiB that differ in each MiB, and one that fills the cache."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "filler").write_bytes(bytes(80 * MIB))
    for number in range(MANY):
        with (folder / f"{number:03d}").open("wb") as file:
            file.truncate(12 * MIB)
            for page in range(12):
                os.pwrite(file.fileno(), stamp(number, page), page * MIB)
    return folder


def steps(number: int) -> Iterator[tuple[int, bytes]]:
    """What is read of a file: (offset, bytes)."""
    for offset in range(0, READ_BYTES, STEP):
        head = stamp(number, offset // MIB) if offset % MIB == 0 else b""
        yield offset, head + bytes(STEP - len(head))


def origin_bytes(node: Node, mount: Path) -> int:
    """What the cache has fetched."""
    counted: int = node.status(mount)["cache"]["origin_bytes"]
    return counted


def test_100_readers_of_large_files_beside_a_full_cache(node: Node, large_files: Path) -> None:
    """[S-full-cache] There is room for 16 pages; every file stays open until all have been read.
    What one reader waits for is not fetched again for another one."""
    mount = node.mount(f"file://{large_files}", "--cache-size", "64MiB", "--memory-limit", "128MiB")
    with (mount / "filler").open("rb") as filler:
        while filler.read(MIB):
            pass
    seen = [Seen() for _ in range(MANY)]
    before_bytes = origin_bytes(node, mount)
    all_open = threading.Barrier(MANY)

    def read(number: int) -> None:
        fd = os.open(mount / f"{number:03d}", os.O_RDONLY)
        try:
            all_open.wait(END_S)
            for offset, expected in steps(number):
                seen[number].read(fd, offset, expected, f"file {number}")
            all_open.wait(END_S)  # it stays open, and nobody reads it
        finally:
            os.close(fd)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(MANY)]
    start(readers)
    join(readers)
    right(seen, LONGEST_S)
    assert sum(one.reads for one in seen) == MANY * READ_BYTES // STEP
    assert origin_bytes(node, mount) - before_bytes < MOST_FETCHED * MANY * READ_BYTES
    node.umount(mount)


# ---- a machine without a worker ------------------------------------------------------------------


def test_a_machine_without_a_worker_reads_on_while_workers_are_killed(
    cluster: Cluster, bucket: Bucket, trainer: Machine
) -> None:
    """Its cache is small and full, so that every read goes through scratch room."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    files = {f"big{n}.bin": body(n, 16 * MIB) for n in range(8)}
    bucket.fill(files)
    cluster.start(2, size="512MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    mount = trainer.mount(cluster.path("/data"), "--cache-size", "40MiB")
    ended = threading.Event()
    seen = [Seen() for _ in range(24)]

    def read(number: int) -> None:
        rng = random.Random(seed + number)
        while not ended.is_set():
            name = rng.choice([*files])
            fd = os.open(mount / name, os.O_RDONLY)
            offset = rng.randrange(12) * MIB
            for at in range(offset, offset + 4 * MIB, STEP):
                seen[number].read(fd, at, files[name][at : at + STEP], name)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    readers = [threading.Thread(target=read, args=(n,)) for n in range(len(seen))]
    start(readers)
    try:
        for kill in range(4):
            go_on(seen, 300)
            victim = cluster.workers[kill % 2]
            victim.kill()
            go_on(seen, 300)
            victim.start()
    finally:
        ended.set()
        join(readers)
    right(seen, LONGEST_WITHOUT_A_WORKER_S)
    trainer.umount(mount)


def go_on(seen: list[Seen], count: int) -> None:
    """Waits until so many more reads have ended."""
    goal = sum(one.reads for one in seen) + count
    wait_until(lambda: sum(one.reads for one in seen) >= goal, "more reads", END_S)
