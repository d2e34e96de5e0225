"""Loads into a cache of several tiers: where they go, what is held there, and where that moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from cachefs.core.errors import CacheFSError
from cachefs.core.jobs import TaskFile
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, run, until
from tests.unit.worker_tiers.rig import TiersRig, open_reader, read
from worker.cache.cache import Cache
from worker.cache.load_requests import Load, Loaded
from worker.store.holds import Hold
from worker.tier.admission import NoRoom

SIZE = 100_000


def nothing() -> None:
    pass


async def load(tiers: Cache, rig: TiersRig, ino: int, hold_s: float = 3600.0) -> Loaded:
    done: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
    ended: Callable[[Loaded], None] = done.set_result
    hold = Hold(rig.wall_s + hold_s)
    tiers.loading.load(Load(rig.space.origins[ino], -1, hold, None, nothing, ended))
    return await done


async def errors(tiers: Cache, rig: TiersRig, inos: range) -> list[CacheFSError | None]:
    return [(await load(tiers, rig, rig.put(ino, SIZE))).error for ino in inos]


def test_loads_fill_the_fast_tier_then_the_slow_one_and_then_are_refused(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 4 * MIB, 8 * MIB)
        async with rig.tiers() as tiers:
            found = await errors(tiers, rig, range(1, 121))
            refused = found.index(next(one for one in found if one is not None))
            assert all(one is None for one in found[:refused])
            assert isinstance(found[refused], NoRoom)
            files = [TaskFile(rig.space.origins[ino]) for ino in range(1, refused + 1)]
            assert await tiers.loading.check(files) == []
            assert await tiers.loading.verify(files) == []
            assert len(rig.in_tier(0)) > 20
            assert len(rig.in_tier(1)) > 40
            room = await tiers.loading.room()
            assert room.held_bytes >= refused * SIZE
            assert room.limit_bytes <= tiers.loading.capacity() + MIB

    run(script())


def test_a_hold_goes_where_its_file_goes(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 4 * MIB, 8 * MIB)
        async with rig.tiers() as tiers:
            rig.put(1, SIZE)
            await load(tiers, rig, 1)
            first, second = tiers._tiers.running
            key = rig.content(1).key
            assert rig.in_tier(0) == {1}
            assert await tiers._moves._copy(rig.space.origins[1], first, second)
            assert second.contents.order.held(key)[0], "a copy of what is held is held"
            await tiers._moves._settle(key)
            assert rig.in_tier(0) == {1}
            assert rig.in_tier(1) == set(), "what the other tier holds may leave this one"
            assert first.contents.order.held(key)[0]

    run(script())


def test_a_read_in_any_tier_ends_the_hold(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 4 * MIB, 8 * MIB)
        async with rig.tiers() as tiers:
            for ino in range(1, 61):
                await load(tiers, rig, rig.put(ino, SIZE))
            for ino in range(1, 61):
                assert (await read(tiers, ino))[0] == rig.data[ino]
            await until(lambda: not any(t.contents.order.held_count for t in tiers._tiers.running))

    run(script())


def test_a_load_goes_on_where_its_file_was_begun_and_makes_room_there(tmp_path: Path) -> None:
    """Reads replace nothing in a full tier, loads do: what is there of the file needs not move."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 64 * MIB, 400 * MIB)
        begun, other = rig.put(1, 40 * MIB), rig.put(2, 30 * MIB)
        async with rig.tiers() as tiers:
            reader = await open_reader(tiers, begun)
            await reader.at(0, 8 * MIB)
            reader.close()
            await until(lambda: tiers.status()["fills_in_flight"] == 0)
            first = tiers._tiers.running[0]
            first._promises.clear()
            await fetch(tiers, NAMESPACE, other)
            assert rig.in_tier(0) == {other}
            first.contents.ledger.limit_bytes = first.contents.ledger.used_bytes + 16 * MIB
            origin = rig.space.origins[begun]
            assert (await tiers._chooser.chosen(origin)).index == 1, "a read makes no room"
            assert (await tiers._chooser.chosen(origin, for_load=True)).index == 0

    run(script())
