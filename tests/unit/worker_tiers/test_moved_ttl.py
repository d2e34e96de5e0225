"""A content that moves between tiers keeps its time to live."""

from __future__ import annotations

from pathlib import Path

from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, run
from tests.unit.worker.test_expiry import Ruled
from tests.unit.worker_tiers.rig import TiersRig
from tests.unit.worker_tiers.test_tiers import promoted
from worker.cache.cache import Cache


async def tick(tiers: Cache) -> None:
    for one in tiers._tiers.running:
        await one.expirer.tick()


def test_moving_up_is_no_fill(tmp_path: Path) -> None:
    """Also after a restart."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.space = space = Ruled()
        rig.put(1, 30 * MIB)
        rig.put(2, 10 * MIB + 5)
        async with rig.tiers() as tiers:
            for ino in (1, 2):
                await fetch(tiers, NAMESPACE, ino)
            assert rig.in_tier(1) == {2}
            await tiers.free([rig.content(1)])
            rig.wall_s += 50
            await promoted(tiers, 2)
            assert rig.in_tier(0) == {2}
            await tick(tiers)
        async with rig.tiers() as tiers:
            space.say(2, ttl_s=100.0)
            rig.wall_s += 49
            await tick(tiers)
            assert rig.in_tier(0) == {2}
            rig.wall_s += 1
            await tick(tiers)
            assert rig.in_tier(0) | rig.in_tier(1) == set()

    run(script())
