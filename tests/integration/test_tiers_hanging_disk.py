"""A tier on a disk that hangs beside one that does not: the node goes on with the other one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.tiers import TierSpec
from tests.services.hanging_disk import HangingDisk, hanging_disk
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, run, until
from tests.unit.worker_tiers.rig import TiersRig, read
from worker.cache.tier_choice import PROMOTE_USES

DETECTED_S = 30.0  # within this the disk is found to hang


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingDisk]:
    with hanging_disk(tmp_path) as disk:
        yield disk


def test_a_move_from_a_disk_that_hangs_goes_on_without_it(
    tmp_path: Path, disk: HangingDisk
) -> None:
    """It is found to hang by that very move; what it had comes from the origin."""

    async def script() -> None:
        rig = TiersRig(tmp_path / "rig", 48 * MIB, 400 * MIB)
        rig.specs[1] = TierSpec("ssd", str(disk.path / "tier"), 400 * MIB)
        filler, ino, other = rig.put(1, 30 * MIB), rig.put(2, 10 * MIB), rig.put(3, 9 * MIB)
        async with rig.tiers() as tiers:
            for each in (filler, ino, other):
                await fetch(tiers, NAMESPACE, each)
            second = tiers._tiers.running[1]
            assert rig.in_tier(1) == {ino, other}
            await tiers.free([rig.content(filler)])
            disk.hang()
            since = time.monotonic()
            tiers.used([rig.name(ino)] * PROMOTE_USES, 0)
            await until(lambda: not second.in_service)
            assert time.monotonic() - since < DETECTED_S
            for each in (ino, other):
                assert await asyncio.wait_for(read(tiers, each), DETECTED_S) == (rig.data[each], 0)
            disk.go_on()
            await until(lambda: second.in_service)
            await until(lambda: not tiers._moves._promotions._moving)
            # What the other tier has now goes here.
            await until(lambda: rig.in_tier(1) == set())
            assert rig.in_tier(0) == {ino, other}
            for each in (ino, other):
                assert await read(tiers, each) == (rig.data[each], 0)

    (tmp_path / "rig").mkdir()
    run(script())
