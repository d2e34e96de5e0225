"""A cache directory on a disk that hangs: nothing freezes, reads go past it, and it comes back.

The disk is a loop-back FUSE server of its own, stopped by SIGSTOP: a request to it waits for ever.
Or it is ext4 that is frozen, where writes to mapped pages wait as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachefs.core.errors import Unavailable
from tests.integration.conftest import Bucket, Node
from tests.services.frozen_disk import FrozenDisk, frozen_disk
from tests.services.hanging_disk import HangingDisk, hanging_disk
from tests.services.loading import fetch
from tests.services.processes import wait_until
from tests.services.thin_disk import drop_pages
from tests.unit.worker.hang_reader import HangReader, read_past_hangs
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, until
from worker.cache.cache import Cache
from worker.store.changes import PutFile
from worker.store.index import Index
from worker.store.records import FileRecord

SMALL = 110 << 10
DETECTED_S = 30.0  # within this the disk is found to hang, or to answer again
LAG_S = 6.0  # a disk that hangs holds up whoever waits for it for longer


Disk = HangingDisk | FrozenDisk


@pytest.fixture(params=[hanging_disk, frozen_disk])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with request.param(tmp_path) as disk:
        yield disk


@contextlib.asynccontextmanager
async def responsive() -> AsyncIterator[None]:
    """Fails when the loop stood still meanwhile."""
    lags: list[float] = []

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            lags.append(time.monotonic() - before - 0.05)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert max(lags, default=0.0) < LAG_S


def run(script: Awaitable[None]) -> None:
    """As the rig's, but threads that were stuck may keep descriptors for a while."""

    async def bounded() -> None:
        await asyncio.wait_for(script, 60)

    asyncio.run(bounded())


def state(worker: Cache) -> str:
    found: str = worker.status()["tiers"][0]["state"]
    return found


def test_reads_go_past_a_disk_that_hangs_until_it_answers(disk: Disk) -> None:
    async def script() -> None:
        rig = Rig(disk.path, 200 * MIB, memory_limit_bytes=400 * MIB)
        for ino in range(1, 13):
            rig.put(ino, SMALL)
        rig.put(20, 40 * MIB)
        async with rig.worker() as worker:
            assert await read_past_hangs(worker, 1) == rig.data[1]
            await until(lambda: rig.name(1) in rig.published())
            half_read = await HangReader.open(worker, 20)
            assert await half_read.read(0, MIB) == rig.data[20][:MIB]
            disk.hang()
            async with responsive():
                jobs = [read_past_hangs(worker, ino) for ino in range(1, 9)]
                jobs += [half_read.read(0, 30 * MIB), read_past_hangs(worker, 20)]
                async with asyncio.timeout(DETECTED_S):
                    found = await asyncio.gather(*jobs)
                    assert found[:8] == [rig.data[ino] for ino in range(1, 9)]
                    assert found[8] == rig.data[20][: 30 * MIB]
                    assert found[9] == rig.data[20]
                    assert state(worker) == "offline"
                    with pytest.raises(Unavailable):
                        await worker.free([rig.content(1)])
                    with pytest.raises(Unavailable):
                        await fetch(worker, NAMESPACE, 9)
                    assert await read_past_hangs(worker, 10) == rig.data[10]
                    assert await worker.cached_bytes(rig.content(1)) == 0
            status = worker.status()
            assert status["errors"]["hang"] == 1
            assert status["memory"]["segments_bytes"] <= 100 * MIB
            disk.go_on()
            await until(lambda: state(worker) == "normal")
            half_read.close()
            await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)
            assert await read_past_hangs(worker, 12) == rig.data[12]
            await until(lambda: rig.name(12) in rig.published())
            await fetch(worker, NAMESPACE, 20)
            assert await read_past_hangs(worker, 20) == rig.data[20]
            ledger, index = only(worker).contents.ledger, only(worker).disk.directory.index
            await until(lambda: ledger.cached_bytes == index.totals().allocated_bytes)
            ledger.check_invariants()
            only(worker).context.memory.check_invariants()

    run(script())


def test_a_kept_index_is_read_while_its_disk_hangs(tmp_path: Path) -> None:
    """Pages that were written and not read since are the first that the kernel drops."""
    keys = [bytes(32) + number.to_bytes(4) for number in range(20_000)]
    with hanging_disk(tmp_path) as disk:
        (disk.path / "index").mkdir()
        index = Index(str(disk.path / "index"), b"tier")
        index.write([PutFile(key, FileRecord(0, "", 1, SMALL, True, 0, SMALL), {}) for key in keys])
        index.sync()
        index.keep_in_memory(64 * MIB)
        assert index.resident_bytes > MIB
        drop_pages(disk.path / "index" / "data.mdb")
        disk.hang()
        started = time.monotonic()
        found = index.scan(b"", len(keys))
        took_s = time.monotonic() - started
        disk.go_on()
        index.close()
    assert [key for key, _ in found] == keys
    assert took_s < LAG_S


def test_a_worker_ends_while_the_disk_hangs(disk: Disk) -> None:
    async def script() -> None:
        rig = Rig(disk.path, 200 * MIB)
        rig.put(1, SMALL)
        rig.put(2, 20 * MIB)
        started = time.monotonic()
        async with rig.worker() as worker:
            assert await read_past_hangs(worker, 1) == rig.data[1]
            disk.hang()
            assert await read_past_hangs(worker, 2) == rig.data[2]
            started = time.monotonic()
        assert time.monotonic() - started < DETECTED_S

    before = set(threading.enumerate())
    run(script())
    disk.go_on()
    names = ("disk-", "fetch-", "load-", "index-writer", "probe-")
    wait_until(
        lambda: not any(t.name.startswith(names) for t in set(threading.enumerate()) - before),
        "threads that were stuck end",
    )


def test_a_mount_serves_while_its_cache_disk_hangs(
    disk: Disk, node: Node, bucket: Bucket, tmp_path: Path
) -> None:
    node.allowed_log += [
        "does not answer", "past the cache", "cache disk", "closed with requests in flight",
    ]  # fmt: skip
    data = {f"f{n}": os.urandom(SMALL) for n in range(40)}
    data["big"] = os.urandom(24 * MIB)
    bucket.fill(data)
    mountpoint = node.mount(
        bucket.url, *bucket.options, "--cache-dir", disk.path / "cache", "--cache-size", "256MiB"
    )
    for name in ("f0", "f1"):
        assert (mountpoint / name).read_bytes() == data[name]
    with (mountpoint / "big").open("rb") as big, (mountpoint / "f1").open("rb") as warm:
        assert big.read(MIB) == data["big"][:MIB]
        disk.hang()
        try:
            names = ["f0", *(f"f{n}" for n in range(2, 20)), "big"]
            with ThreadPoolExecutor(4) as pool:
                found = pool.map(lambda n: _sum(mountpoint / n), names, timeout=90)
                assert [*found] == [hashlib.sha256(data[n]).hexdigest() for n in names]
            tier = node.status(mountpoint)["cache"]["tiers"][0]
            assert tier["state"] == "offline"
            assert "answer" in tier["cause"]
            doctor = node.run("doctor")
            assert doctor.returncode == 1
            assert "offline: the disk does not answer; reads bypass it" in doctor.stdout
            assert big.read() == data["big"][MIB:]
            # What the kernel has open waits for the disk; who opens it now reads past it.
            assert _sum(mountpoint / "f1") == hashlib.sha256(data["f1"]).hexdigest()
        finally:
            disk.go_on()
        assert warm.read() == data["f1"]

    def is_back() -> bool:
        found: str = node.status(mountpoint)["cache"]["tiers"][0]["state"]
        return found == "normal"

    wait_until(is_back, "the disk is used again", DETECTED_S)
    assert (mountpoint / "f30").read_bytes() == data["f30"]
    node.ok("umount", mountpoint)


def _sum(path: Path) -> str:
    done = subprocess.run(
        ["sha256sum", str(path)], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()[0]
