"""A cache whose limit is lower than what an earlier process cached: it shrinks by the ordinary
permissions, and reads never wait for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, read, run, until
from worker.cache.cache import Cache
from worker.tier.ledger import Ledger

FILES = range(1, 25)
FILE_BYTES = 4 * MIB
QUICK_S = 20.0  # a read that waits for room waits for the origin's deadline


async def fill(rig: Rig) -> None:
    for ino in FILES:
        rig.put(ino, FILE_BYTES)
    async with rig.worker() as worker:
        for ino in FILES:
            await fetch(worker, NAMESPACE, ino)


async def read_quickly(worker: Cache, rig: Rig, ino: int) -> None:
    async with asyncio.timeout(QUICK_S):
        assert await read(worker, ino) == rig.data[ino]


@pytest.mark.parametrize("admission", ["fill", "always"])
def test_a_cache_above_its_limit_shrinks_and_reads_do_not_wait(
    tmp_path: Path, admission: str
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 128 * MIB, admission=admission, origin_deadline_s=60.0)
        await fill(rig)
        for ino in (101, 102):
            rig.put(ino, 12 * MIB if ino == 101 else 300_000)
        async with rig.worker(limit_bytes=64 * MIB) as worker:
            tier = worker.status()["tiers"][0]
            assert tier["over_limit_bytes"] > 30 * MIB
            assert "above its limit" in tier["cause"]
            for ino in (101, 102):
                await read_quickly(worker, rig, ino)
            assert not rig.published() & {rig.name(101), rig.name(102)}, "past the cache"
            ledger = only(worker).contents.ledger
            await until(lambda: not ledger.over_limit_bytes)
            assert rig.disk_bytes() <= 64 * MIB
            assert len(rig.published()) >= 8, "no more went than had to"
            assert worker.status()["tiers"][0]["cause"] == ""
            assert rig.space.asked, "the master has permitted it"

    run(script())


def test_what_is_pinned_stays_above_the_limit(tmp_path: Path) -> None:
    """[S-pin] It is kept, and reads go past the cache."""

    async def script() -> None:
        rig = Rig(tmp_path, 128 * MIB, origin_deadline_s=60.0)
        await fill(rig)
        rig.space.protected = {rig.name(ino) for ino in FILES}
        for ino in range(101, 105):
            rig.put(ino, 12 * MIB)
        async with rig.worker(limit_bytes=64 * MIB) as worker:
            for _ in range(3):
                await only(worker).housekeeping.tick()
            for ino in range(101, 105):
                await read_quickly(worker, rig, ino)
            assert rig.published() == rig.space.protected
            assert worker.status()["tiers"][0]["over_limit_bytes"] > 30 * MIB
            asked = len(rig.space.asked)
            for _ in range(10):
                await only(worker).housekeeping.tick()
            assert len(rig.space.asked) <= asked + 1, "it is asked for at growing intervals"
            rig.space.protected = set()
            only(worker)._space._shrink_at_s = 0.0
            await only(worker).housekeeping.tick()
            assert not only(worker).contents.ledger.over_limit_bytes

    run(script())


def test_segments_have_their_part_of_a_limit_that_files_exceed() -> None:
    ledger = Ledger(128 * MIB)
    ledger.cached_bytes = 256 * MIB
    assert ledger.free_for_files < 0
    assert ledger.free_for_scratch == ledger.scratch_floor_bytes
    assert ledger.take_scratch(ledger.scratch_floor_bytes)
    assert ledger.free_for_scratch <= 0
    assert not ledger.take_scratch(4096)
    ledger.check_invariants()
