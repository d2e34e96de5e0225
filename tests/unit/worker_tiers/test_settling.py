"""A content in two tiers, and a disk that does not answer meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.services.loading import load_into
from tests.unit.worker.rig import MIB, run, until
from tests.unit.worker_tiers.rig import TiersRig
from worker.cache.cache import Cache
from worker.cache.tier import Tier
from worker.store.holds import Hold
from worker.tier.disk import no_answer

SIZE = 100_000


async def in_two_tiers(tiers: Cache, rig: TiersRig) -> bytes:
    origin = rig.space.origins[rig.put(1, SIZE)]
    for one in tiers._tiers.running:
        await load_into(one.loading, origin)
        await until(lambda one=one: not len(one._catalog))
    assert rig.in_tier(0) == rig.in_tier(1) == {1}
    tiers._moves.doubled(origin.content.key)
    return origin.content.key


def silent(one: Tier, patch: pytest.MonkeyPatch, after: int = 0) -> None:
    """The disk answers `after` calls more."""
    call, left = one.disk.call, after

    async def late(*args: Any, **options: Any) -> Any:
        nonlocal left
        if left == 0:
            raise no_answer()
        left -= 1
        return await call(*args, **options)

    patch.setattr(one.disk, "call", late)


@pytest.mark.parametrize("late", [(0,), (1,), (0, 1)])
def test_a_tier_that_gives_no_answer_keeps_its_copy(
    late: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 4 * MIB, 8 * MIB)
        async with rig.tiers() as tiers:
            key = await in_two_tiers(tiers, rig)
            with monkeypatch.context() as patch:
                for tier in late:
                    silent(tiers._tiers.running[tier], patch)
                await tiers._moves._settle(key)
            assert rig.in_tier(0) == rig.in_tier(1) == {1}
            await tiers._moves._settle(key)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({1}, set())

    run(script())


def test_a_hold_that_could_not_be_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 4 * MIB, 8 * MIB)
        async with rig.tiers() as tiers:
            key = await in_two_tiers(tiers, rig)
            first, second = tiers._tiers.running
            await second.hold(key, Hold(rig.wall_s + 3600))
            with monkeypatch.context() as patch:
                silent(second, patch, after=1)
                await tiers._moves.tick()
            assert rig.in_tier(1) == {1}, "it alone is held"
            for doubled in tiers._moves._doubled.values():
                doubled.due_s = 0.0
            await tiers._moves.tick()
            assert rig.in_tier(1) == set()
            assert first.contents.is_held(key)

    run(script())
