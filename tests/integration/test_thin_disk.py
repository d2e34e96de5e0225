"""A cache on a thin volume that is full: the kernel accepts bytes and loses them later."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.model import PAGE_BYTES
from tests.integration.conftest import Bucket, Node
from tests.services.loading import fetch
from tests.services.processes import wait_until
from tests.services.thin_disk import ThinDisk, drop_pages, drop_pages_below, thin_disk
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, read, run, until

BEFORE, AFTER = range(1, 21), range(101, 301)  # files cached before the volume is full, and after


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ThinDisk]:
    with thin_disk(tmp_path) as disk:
        yield disk


def published(rig: Rig, inos: range) -> dict[int, bytes]:
    """What a client reads of published files without asking anybody, once the kernel has dropped
    their pages."""
    found = {}
    for ino in inos:
        path = rig.tier / "pub" / rig.name(ino)
        if path.exists():
            drop_pages(path)
            found[ino] = path.read_bytes()
    return found


def test_what_a_full_thin_volume_lost_is_never_read(
    disk: ThinDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """[S-lost-writes]"""

    async def script() -> None:
        rig = Rig(disk.path, 256 * MIB)
        for ino in (*BEFORE, *AFTER):
            rig.put(ino, PAGE_BYTES // 2)
        async with rig.worker() as worker:
            for ino in BEFORE:
                await fetch(worker, NAMESPACE, ino)
            await only(worker).housekeeping.sync()
            disk.exhaust(left_bytes=4 * MIB)
            for ino in AFTER:
                assert await read(worker, ino) == rig.data[ino]
            await only(worker).housekeeping.sync()
            await only(worker).housekeeping.sync()  # the kernel tells of a loss only once
            wrong = [ino for ino, data in published(rig, AFTER).items() if data != rig.data[ino]]
            assert not wrong, f"{len(wrong)} files are published and damaged"
            assert "lost bytes" in caplog.text
            if not only(worker).disk.health.lost:
                await until(lambda: only(worker).disk.health.in_service)
            for ino in (*BEFORE, *AFTER):
                assert await read(worker, ino) == rig.data[ino]
        disk.extend()
        async with rig.worker() as worker:
            for ino in (*BEFORE, *AFTER):
                assert await read(worker, ino) == rig.data[ino]
                assert rig.name(ino) in rig.published() or os.listdir(rig.tier / "files")

    caplog.set_level("INFO")
    run(script())


def test_a_mount_over_a_full_thin_volume_never_reads_zeros_after_the_sync(
    disk: ThinDisk, node: Node, bucket: Bucket
) -> None:
    """[S-lost-writes] Also a file that was opened, and partly read, before. It takes as long as a
    server waits between two syncs."""
    node.allowed_log += [
        "cache disk",
        "cache directory",
        "damaged, fetched again",
        "index",
        "read past the cache",
    ]
    rng = random.Random(6)
    files = {f"f{n:03}": rng.randbytes(PAGE_BYTES // 2) for n in range(200)}
    bucket.fill({**files, "big": (big := rng.randbytes(24 * MIB))})
    where = ("--cache-dir", disk.path / "cache", "--cache-size", "300MiB")
    mnt = node.mount(bucket.url, *bucket.options, *where)
    disk.exhaust(left_bytes=4 * MIB)
    with (mnt / "big").open("rb", buffering=0) as reader:
        assert os.pread(reader.fileno(), MIB, 0) == big[:MIB]
        for name, data in files.items():
            assert (mnt / name).read_bytes() == data
        wait_until(lambda: "lost bytes that were written" in node.logs(), "a sync has failed", 90.0)
        wait_until(lambda: _withdrawn(disk), "the files are withdrawn")
        drop_pages_below(disk.path / "cache" / "files")
        for name, data in files.items():
            assert (mnt / name).read_bytes() == data, name
        assert os.pread(reader.fileno(), MIB, 8 * MIB) == big[8 * MIB : 9 * MIB]
    assert (mnt / "big").read_bytes() == big


def _withdrawn(disk: ThinDisk) -> bool:
    """No more are published than were when the volume had room."""
    return len(os.listdir(disk.path / "cache" / "pub")) < 20
