"""Several tiers as one cache: where contents go, how they move, what a lost tier costs."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig, Interrupted, InUse, ProtocolError
from cachefs.core.model import ContentId
from cachefs.core.tiers import TierSpec
from tests.services.loading import fetch, load_into
from tests.unit.worker.rig import LIMIT_S, MIB, NAMESPACE, run, until
from tests.unit.worker_tiers.rig import TiersRig, come_back, leave, open_reader, read
from worker.cache import tier_set as keeper_module
from worker.cache.cache import Cache
from worker.cache.load_requests import Load
from worker.cache.tier import Tier
from worker.cache.tier_choice import PROMOTE_USES, Held
from worker.store import filesystem
from worker.tier import demotion
from worker.tier.freed_counts import FreedCounts

SMALL = 110 << 10
AT_ONCE_S = 10.0  # on a busy machine; who waits for the slow tier waits for ever


async def promoted(tiers: Cache, ino: int) -> None:
    """Opens a file so often that it is worth a faster tier, and waits for the end of the move."""
    for _ in range(PROMOTE_USES):
        await read(tiers, ino)
    moves = tiers._moves
    await until(lambda: not moves._promotions._moving)


def test_new_files_go_to_the_first_tier_that_has_room_for_all_of_them(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        for ino, size in ((1, SMALL), (2, 60 * MIB), (3, 12 * MIB), (4, 12 * MIB), (5, 15 * MIB)):
            rig.put(ino, size)
        async with rig.tiers() as tiers:
            where = {}
            for ino, data in rig.data.items():
                found, where[ino] = await read(tiers, ino)
                assert found == data
            assert where == {1: 0, 2: 1, 3: 0, 4: 0, 5: 1}
            await until(lambda: rig.in_tier(0) == {1, 3, 4} and rig.in_tier(1) == {2, 5})
            for ino, data in rig.data.items():
                assert await read(tiers, ino) == (data, where[ino])
                assert await tiers.cached_bytes(rig.content(ino)) == len(data)
            status = tiers.status()
            assert status["origin_bytes"] == sum(map(len, rig.data.values()))
            assert [tier["files"] for tier in status["tiers"]] == [3, 2]
            assert status["limit_bytes"] == 448 * MIB
            assert all(one.users == 0 for one in tiers._tiers.running)
        async with rig.tiers() as tiers:  # again, warm
            for ino, data in rig.data.items():
                assert await read(tiers, ino) == (data, where[ino])
            assert tiers.status()["origin_bytes"] == 0

    run(script())


def test_large_files_that_come_at_once_do_not_count_on_the_same_room(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 64 * MIB, 400 * MIB)
        inos = [rig.put(ino, 30 * MIB) for ino in range(1, 5)]
        async with rig.tiers() as tiers:
            readers = [await open_reader(tiers, ino) for ino in inos]
            assert sorted(reader.grant.tier for reader in readers) == [0, 1, 1, 1]
            for reader in readers:
                reader.close()
            for ino in inos:
                await fetch(tiers, NAMESPACE, ino)
            assert rig.in_tier(0) | rig.in_tier(1) == set(inos)
            assert tiers.status()["origin_bytes"] == 120 * MIB

    run(script())


def test_what_is_opened_often_moves_up_and_comes_from_no_origin(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        filler, ino = rig.put(1, 30 * MIB), rig.put(2, 10 * MIB + 5)
        async with rig.tiers() as tiers:
            await fetch(tiers, NAMESPACE, filler)
            await fetch(tiers, NAMESPACE, ino)
            assert rig.in_tier(1) == {ino}
            await promoted(tiers, ino)
            assert rig.in_tier(1) == {ino}, "the files of the faster tier are in use"
            await tiers.free([rig.content(filler)])
            tiers._moves._promotions._counts.clear()
            await promoted(tiers, ino)
            assert rig.in_tier(0) == {ino}
            assert rig.in_tier(1) == set()
            assert await read(tiers, ino) == (rig.data[ino], 0)
            status = tiers.status()
            assert status["origin_bytes"] == 40 * MIB + 5
            assert status["tier_bytes"] == 10 * MIB + 5
            assert status["peer_bytes"] == 0
            assert not tiers._moves._doubled

    run(script())


async def below_room(rig: TiersRig, tiers: Cache) -> int:
    """Returns a file of 10 MiB in the slower tier, while the faster one has room for it."""
    filler, ino = rig.put(1, 30 * MIB), rig.put(2, 10 * MIB)
    await fetch(tiers, NAMESPACE, filler)
    await fetch(tiers, NAMESPACE, ino)
    await tiers.free([rig.content(filler)])
    return ino


def test_what_moves_while_it_is_freed_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to the faster tier when that one has dropped what it had."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        async with rig.tiers() as tiers:
            ino = await below_room(rig, tiers)
            slow = tiers._tiers.running[1]
            free, turns = slow.free, list[int]()

            async def free_late(contents: Iterable[ContentId]) -> FreedCounts:
                turns.append(1)
                if len(turns) == 1:
                    await promoted(tiers, ino)
                    assert rig.in_tier(0) == {ino}
                return await free(contents)

            monkeypatch.setattr(slow, "free", free_late)
            freed = await tiers.free([rig.content(ino)])
            assert (freed.files, freed.busy_files) == (1, 0)
            assert rig.in_tier(0) | rig.in_tier(1) == set()
            assert await tiers.cached_bytes(rig.content(ino)) == 0

    run(script())


def test_reports_of_clients_count_as_uses(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, SMALL)
        rig.put(2, 40 * MIB)
        async with rig.tiers() as tiers:
            await fetch(tiers, NAMESPACE, 2)
            await tiers.free([rig.content(2)])
            rig.put(3, 44 * MIB)
            await fetch(tiers, NAMESPACE, 3)
            assert rig.in_tier(1) == {3}
            tiers.used(["no name", "ff"], 0)
            tiers.used([rig.name(3)] * PROMOTE_USES, 7)
            assert tiers.status()["hits"] == PROMOTE_USES + 2
            assert tiers.status()["hit_bytes"] == 7

    run(script())


def test_what_leaves_a_tier_for_want_of_room_moves_down_if_it_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that makes room sees the end of the copy: a machine with other work may take longer
    for it than a product waits, which is another test's matter."""
    monkeypatch.setattr(demotion, "WAIT_S", LIMIT_S)

    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB, admission="always", eviction="lru")
        used, unused = rig.put(1, 10 * MIB), rig.put(2, 10 * MIB)
        async with rig.tiers() as tiers:
            for ino in (used, unused):
                await fetch(tiers, NAMESPACE, ino)
            assert rig.in_tier(0) == {used, unused}
            await read(tiers, used)
            first = tiers._tiers.running[0]
            for ino in (unused, used):  # in this order, and all of it
                assert first.contents.order.was_used(rig.content(ino).key) == (ino == used)
            await first._space.make_room_ahead(20 * MIB)
            assert rig.in_tier(0) == set()
            assert rig.in_tier(1) == {used}
            await tiers._moves.tick()
            assert rig.in_tier(1) == {used}, "nobody settles what is on its way down"
            assert await read(tiers, used) == (rig.data[used], 1)
            status = tiers.status()
            assert status["origin_bytes"] == 20 * MIB
            assert status["tier_bytes"] == 10 * MIB

    run(script())


def test_nobody_who_needs_room_waits_for_a_slow_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is on its way down leaves once it is there; other files leave without a copy."""

    async def script() -> None:
        rig = TiersRig(
            tmp_path, 64 * MIB, 400 * MIB, admission="always", eviction="lru", origin_deadline_s=60
        )
        for ino in range(1, 11):
            rig.put(ino, 4 * MIB)
        go_on = asyncio.Event()
        async with rig.tiers() as tiers:
            first, second = tiers._tiers.running
            for ino in (1, 2, 3, 4):
                await fetch(tiers, NAMESPACE, ino)
                await read(tiers, ino)
            load = second.loading.load

            async def slowly(wanted: Load) -> None:
                await go_on.wait()
                load(wanted)

            monkeypatch.setattr(second.loading, "load", lambda wanted: tasks.start(slowly(wanted)))
            tasks = tiers._tiers.tasks
            space = first._space
            making = asyncio.ensure_future(space.make_room_ahead(8 * MIB))
            await until(lambda: bool(space.demotion.copying))
            on_their_way = {
                ino for ino in rig.data if rig.content(ino).key in space.demotion.copying
            }
            for ino in range(5, 11):
                async with asyncio.timeout(AT_ONCE_S):
                    assert await space.reserve(8 * MIB)
                space.release(8 * MIB)
                since = time.monotonic()
                assert (await read(tiers, ino))[0] == rig.data[ino]
                assert time.monotonic() - since < AT_ONCE_S, f"file {ino}"
            await making
            assert on_their_way <= rig.in_tier(0), "they stay until they are below"
            assert caplog.text.count("the next tier is slow") == 1
            go_on.set()
            await until(lambda: not on_their_way <= rig.in_tier(0))
            assert on_their_way - rig.in_tier(0) <= rig.in_tier(1)
            for ino in rig.data:
                assert (await read(tiers, ino))[0] == rig.data[ino]

    run(script())


def test_what_was_copied_below_stays_until_it_has_left_above(tmp_path: Path) -> None:
    """However many ticks come between; and what then stays above is let go of below."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB, admission="always", eviction="lru")
        ino = rig.put(1, 10 * MIB)
        async with rig.tiers() as tiers:
            await fetch(tiers, NAMESPACE, ino)
            moves, first = tiers._moves, tiers._tiers.running[0]
            await moves._demote(first, [rig.content(ino).key], 1)
            await moves.tick()
            assert rig.in_tier(0) == rig.in_tier(1) == {ino}
            moves._doubled[rig.content(ino).key].due_s = 0.0
            await moves.tick()
            await until(lambda: not moves._doubled)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({ino}, set())

    run(script())


def test_a_tier_is_brought_below_its_low_mark(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB, admission="always")
        rig.specs[0] = TierSpec("ssd", rig.specs[0].path, 48 * MIB, high=0.5, low=0.3)
        for ino in range(1, 4):
            rig.put(ino, 7 * MIB)
        async with rig.tiers() as tiers:
            for ino in rig.data:
                await read(tiers, ino)
            await until(lambda: rig.in_tier(0) == {1, 2, 3})
            first = tiers._tiers.running[0]
            await tiers._moves.tick()
            await until(lambda: not tiers._moves._making_room)
            room = first.room()
            assert room.limit_bytes - room.free_bytes <= 0.3 * room.limit_bytes
            assert len(rig.in_tier(0)) <= 1

    run(script())


def test_a_page_that_went_bad_does_not_move(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        async with rig.tiers() as tiers:
            ino = await below_room(rig, tiers)
            rig.flip(1, ino, offset=3 * MIB + 7)
            await promoted(tiers, ino)
            await until(lambda: rig.in_tier(1) == set())
            assert rig.in_tier(0) == {ino}
            assert await read(tiers, ino) == (rig.data[ino], 0)
            status = tiers.status()
            assert status["bad_pages"] == 1
            assert MIB <= status["origin_bytes"] - 40 * MIB <= 5 * MIB, "that page, and its piece"

    run(script())


def test_what_the_next_tier_has_of_a_file_is_not_fetched_again(tmp_path: Path) -> None:
    """A file that was begun in a tier that has no room for the rest."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 64 * MIB, 400 * MIB)
        ino, other = rig.put(1, 40 * MIB), rig.put(2, 15 * MIB)
        async with rig.tiers() as tiers:
            reader = await open_reader(tiers, ino)
            assert reader.grant.tier == 0
            await reader.at(0, 8 * MIB)
            reader.close()
            await until(lambda: tiers.status()["fills_in_flight"] == 0)
            tiers._tiers.running[0]._promises.clear()
            await fetch(tiers, NAMESPACE, other)
            fetched = tiers.status()["origin_bytes"]
            first = tiers._tiers.running[0]
            first.contents.ledger.limit_bytes = first.contents.ledger.used_bytes + 8 * MIB
            assert await read(tiers, ino) == (rig.data[ino], 1)
            await fetch(tiers, NAMESPACE, ino)
            status = tiers.status()
            assert status["origin_bytes"] == 55 * MIB
            assert status["tier_bytes"] == fetched - 15 * MIB
            tiers._moves.doubled(rig.content(ino).key)
            await tiers._moves.tick()
            await until(lambda: rig.content(ino).key not in first.contents.order)

    run(script())


# ---- lost tiers ----


def test_a_tier_that_hangs_is_a_smaller_cache_and_comes_back(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 10 * MIB)
        rig.put(2, SMALL)
        told: list[list[bool]] = []
        async with rig.tiers() as tiers:
            tiers.subscribe_tiers(lambda: told.append([view.in_service for view in tiers.tiers()]))
            for ino in rig.data:
                assert (await read(tiers, ino))[1] == 0
            first = tiers._tiers.running[0]
            await until(lambda: rig.in_tier(0) == {1, 2})
            leave(first)
            for ino, data in rig.data.items():
                assert await read(tiers, ino) == (data, 1)
            await until(lambda: rig.in_tier(1) == {1, 2})
            come_back(first)
            assert told == [[False, True], [True, True]]
            await tiers._moves.tick()
            await until(lambda: rig.in_tier(1) == set())  # one copy of each
            assert rig.in_tier(0) == {1, 2}
            for ino, data in rig.data.items():
                assert await read(tiers, ino) == (data, 0)

    run(script())


@pytest.mark.parametrize("again", [True, False], ids=["made-again", "stays-away"])
def test_a_directory_that_is_gone_costs_a_refetch(tmp_path: Path, again: bool) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 10 * MIB)
        rig.put(2, SMALL)
        async with rig.tiers() as tiers:
            for ino in rig.data:
                await read(tiers, ino)
            reader = await open_reader(tiers, 1)
            kept = tiers._tiers.running[0]
            shutil.rmtree(rig.directory(0))
            if not again:  # nor can it be made
                rig.directory(0).write_bytes(b"")
            rig.put(3, SMALL)
            kept._watch.suspect()
            for ino, data in rig.data.items():
                assert (await read(tiers, ino))[0] == data
            await until(lambda: not kept.in_service)
            for ino, data in rig.data.items():
                assert await read(tiers, ino) == (data, 1)
            before = tiers.tiers()[0]
            await tiers._tiers.look()
            after = tiers.tiers()[0]
            assert after.in_service == again
            assert (after.number != before.number) == again
            assert await reader.at(5, 100) == rig.data[1][5:105], "an open file reads on"
            reader.close()
            rig.put(4, SMALL)
            assert (await read(tiers, 4))[1] == (0 if again else 1)
            origin_bytes = tiers.status()["origin_bytes"]
            await tiers._tiers.look()
            assert not tiers._tiers._retired
            assert tiers.status()["origin_bytes"] == origin_bytes, "totals never fall"
            rows = tiers.status()["tiers"]
            assert [row["state"] for row in rows] == ["normal" if again else "offline", "normal"]

    run(script())


def test_a_tier_that_is_replaced_while_it_is_chosen_serves_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is closed by then: who read from it waited for ever."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 64 * MIB)
        rig.put(2, 12 * MIB)
        asked, go_on = asyncio.Event(), asyncio.Event()
        held = Tier.held

        async def held_slowly(
            one: Tier, key: bytes, size: int, *, for_load: bool = False
        ) -> Held | None:
            answer = await held(one, key, size, for_load=for_load)
            if one.index == 1:
                asked.set()
                await go_on.wait()
            return answer

        async with rig.tiers() as tiers:
            assert await read(tiers, 2) == (rig.data[2], 0)
            keeper, old = tiers._tiers, tiers._tiers.running[0]
            await until(lambda: not old.is_used)
            monkeypatch.setattr(Tier, "held", held_slowly)
            monkeypatch.setattr(Tier, "may_have", lambda one, key: True)
            reading = asyncio.ensure_future(read(tiers, 2))
            await asyncio.wait_for(asked.wait(), LIMIT_S)
            shutil.rmtree(rig.directory(0))
            leave(old)
            await keeper.look()
            await keeper.look()
            assert not keeper._retired, "the old worker is closed"
            go_on.set()
            assert (await asyncio.wait_for(reading, LIMIT_S))[0] == rig.data[2]

    run(script())


def test_who_has_a_file_open_in_a_tier_that_was_replaced_reads_on_or_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 64 * MIB)
        rig.put(2, 20 * MIB)
        async with rig.tiers() as tiers:
            keeper, old = tiers._tiers, tiers._tiers.running[0]
            reader = await open_reader(tiers, 2)
            assert reader.grant.tier == 0
            shutil.rmtree(rig.directory(0))
            leave(old)
            await keeper.look()
            assert await reader.at(8 * MIB, MIB) == rig.data[2][8 * MIB : 9 * MIB]
            monkeypatch.setattr(keeper_module, "MOST_RETIRED", 0)
            _, handle = tiers._handles[reader.grant.handle]
            await keeper._end(old)  # as when there are too many of them
            with pytest.raises(ProtocolError):
                await reader.at(16 * MIB, MIB)
            ensuring = old.ensure(handle, 19 * MIB, 1, past_tier=False, takes_bytes=True)
            with pytest.raises(Interrupted):  # one that had come as far as there
                await asyncio.wait_for(ensuring, LIMIT_S)
            reader.close()

    run(script())


def test_a_tier_that_cannot_be_taken_at_the_start_is_left_out(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.directory(0).write_bytes(b"not a directory")
        rig.put(1, SMALL)
        async with rig.tiers() as tiers:
            assert await read(tiers, 1) == (rig.data[1], 1)
            assert [view.pub_fd >= 0 for view in tiers.tiers()] == [False, True]
            lost, other = tiers.status()["tiers"]
            assert lost.keys() == other.keys()
            assert "Not a directory" in lost["cause"]
            assert (lost["files"], lost["limit_bytes"]) == (0, 48 * MIB)
            assert [row["state"] for row in tiers.status()["tiers"]] == ["offline", "normal"]
            os.unlink(rig.directory(0))
            await tiers._tiers.look()
            assert all(view.in_service for view in tiers.tiers())
            rig.put(2, SMALL)
            assert await read(tiers, 2) == (rig.data[2], 0)

    run(script())


def test_wrong_tiers_are_refused(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        async with rig.tiers():
            with pytest.raises(InUse):
                async with rig.tiers():
                    pass
        (tmp_path / "thesis" / "files").mkdir(parents=True)
        (tmp_path / "thesis" / "files" / "chapter").touch()
        rig.specs[1] = TierSpec("ssd", str(tmp_path / "thesis"), 64 * MIB)
        with pytest.raises(BadConfig):
            async with rig.tiers():
                pass

    run(script())


def test_a_tier_in_memory_must_be_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.specs[0] = TierSpec("mem", rig.specs[0].path, 48 * MIB)
        with pytest.raises(BadConfig, match="tmpfs"):
            async with rig.tiers():
                pass

    monkeypatch.setattr(filesystem, "MEMORY", frozenset())  # wherever the test's files are
    run(script())


def test_copies_that_a_crash_left_in_two_tiers_are_settled(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 10 * MIB)
        rig.put(2, SMALL)
        async with rig.tiers() as tiers:
            first, second = tiers._tiers.running
            for ino in rig.data:
                for one in (first, second):
                    await load_into(one.loading, rig.space.origins[ino])
            assert rig.in_tier(0) == rig.in_tier(1) == {1, 2}
            assert tiers.status()["origin_bytes"] == 10 * MIB + SMALL
        async with rig.tiers() as tiers:
            await tiers._moves.tick()
            await until(lambda: rig.in_tier(1) == set())
            assert rig.in_tier(0) == {1, 2}
            for ino, data in rig.data.items():
                assert await read(tiers, ino) == (data, 0)

    run(script())


def test_all_tiers_out_of_service_reads_go_past_them(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 10 * MIB)
        async with rig.tiers() as tiers:
            await read(tiers, 1)
            for one in tiers._tiers.running:
                leave(one)
            assert (await read(tiers, 1))[0] == rig.data[1]
            with pytest.raises(ProtocolError):
                await tiers.ensure(7 * 256 + 99, 0, 1)
            for one in tiers._tiers.running:
                come_back(one)

    run(script())


def test_a_client_that_cannot_read_from_a_tier_is_given_nothing_of_it(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 10 * MIB)
        async with rig.tiers() as tiers:
            await read(tiers, 1)
            grant = await tiers.open(NAMESPACE, 1, past_tier=True)
            assert grant.fd is None
            ensured, fd = await tiers.ensure(grant.handle, 0, 100)
            assert ensured.segment
            assert fd is not None
            assert os.pread(fd, 100, 0) == rig.data[1][:100]
            os.close(fd)
            assert tiers.release(grant.handle)
            assert not tiers.release(grant.handle)

    run(script())


def test_small_files_open_without_a_task(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, SMALL)
        async with rig.tiers() as tiers:
            ready = asyncio.Event()
            opening = tiers.open_soon(NAMESPACE, 1, lambda _: ready.set())
            assert opening is not None
            await ready.wait()
            grant = tiers.opened(opening) or await tiers.opened_later(opening)
            assert grant.fd is not None
            assert os.pread(grant.fd, SMALL, 0) == rig.data[1]
            os.close(grant.fd)
            tiers.release(grant.handle)
            await until(lambda: rig.in_tier(0) == {1})
            assert all(one.users == 0 for one in tiers._tiers.running)

    run(script())


def test_freeing_frees_in_all_tiers(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 20 * MIB)
        rig.put(2, 30 * MIB)
        async with rig.tiers() as tiers:
            for ino in rig.data:
                await fetch(tiers, NAMESPACE, ino)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({1}, {2})
            freed = await tiers.free([rig.content(1), rig.content(2)])
            assert (freed.files, freed.bytes) == (2, 50 * MIB)
            assert rig.in_tier(0) == rig.in_tier(1) == set()

    run(script())


# ---- whose a content is ----


@pytest.mark.parametrize("restarted", [False, True])
def test_what_this_node_does_not_own_goes_first(tmp_path: Path, restarted: bool) -> None:
    """Though it was used last; and what it owns changes with the members."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 64 * MIB, admission="always", eviction="lru")
        owned = {1, 2, 3}
        rig.is_owned = lambda key, size, replicas: ContentId.parse(key.hex()).ino in owned
        for ino in range(1, 7):
            rig.put(ino, 8 * MIB)
        async with rig.tiers() as tiers:
            for ino in (4, 1, 5, 2, 3):
                await fetch(tiers, NAMESPACE, ino)
            if not restarted:
                await makes_room(tiers, rig, {1, 2, 3})
        if restarted:
            async with rig.tiers() as tiers:
                await makes_room(tiers, rig, {1, 2, 3})
                owned.symmetric_difference_update({1, 2})
                await tiers.ownership_changed()
                await makes_room(tiers, rig, {3})

    run(script())


async def makes_room(tiers: Cache, rig: TiersRig, left: set[int]) -> None:
    one = tiers._tiers.running[0]
    count = len(rig.in_tier(0)) - len(left)
    await one._space.make_room_ahead(count * 8 * MIB - 2 * MIB)
    assert rig.in_tier(0) == left


def test_what_this_node_owns_is_placed_where_copies_make_room(tmp_path: Path) -> None:
    """Full tiers refuse what others own; what is ours takes the place of copies, in whatever tier
    those are."""

    async def script() -> None:
        rig = TiersRig(tmp_path, 64 * MIB, 64 * MIB)
        rig.is_owned = lambda key, size, replicas: ContentId.parse(key.hex()).ino >= 10
        for ino in (1, 2, 10, 11, 12):
            rig.put(ino, 15 * MIB)
        rig.put(3, 30 * MIB)
        async with rig.tiers() as tiers:
            for ino in (1, 2, 10, 11):
                await fetch(tiers, NAMESPACE, ino)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({1, 2, 10}, {11})
            await read(tiers, 3)
            await fetch(tiers, NAMESPACE, 3)
            assert rig.in_tier(1) == {11, 3}
            assert await read(tiers, 12) == (rig.data[12], 1), "the last tier makes room"
            await until(lambda: rig.in_tier(1) == {11, 12})
            rig.put(4, 15 * MIB)
            assert (await read(tiers, 4))[0] == rig.data[4]
            rig.put(13, 30 * MIB)
            await fetch(tiers, NAMESPACE, 13)
            assert 13 in rig.in_tier(0), "the other one has no copies left"
            assert {10, 11, 12} <= rig.in_tier(0) | rig.in_tier(1)

    run(script())


# ---- what peers get ----


def test_peers_get_pages_of_whatever_tier_has_them(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 30 * MIB)
        rig.put(2, 10 * MIB + 7)
        async with rig.tiers() as tiers:
            for ino in rig.data:
                await fetch(tiers, NAMESPACE, ino)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({1}, {2})
            for ino, data in rig.data.items():
                key = rig.content(ino).key
                pages = await tiers.serving.here(key, 2, 5)
                assert pages is not None
                assert os.pread(pages.fd, 3 * MIB, pages.offset) == data[2 * MIB : 5 * MIB]
                pages.close()
                pages = await tiers.serving.provide(rig.space.origins[ino], 0, 1, 0)
                assert os.pread(pages.fd, MIB, pages.offset) == data[:MIB]
                pages.close()
                assert await tiers.serving.bits(key) == (1 << -(-len(data) // MIB)) - 1
            held = await tiers.serving.holdings(b"", 10)
            assert [one.key for one in held] == sorted(rig.content(ino).key for ino in rig.data)
            assert await tiers.serving.here(b"k" * 36, 0, 1) is None
            rig.put(3, 3 * MIB)
            assert await tiers.serving.bring(NAMESPACE, 3, 0, 2, peers_only=False) == 2
            rig.flip(1, 2, offset=9 * MIB)
            assert not await tiers.serving.doubt(rig.content(2).key, [0])
            assert await tiers.serving.doubt(rig.content(2).key, [0, 9])
            assert rig.in_tier(1) == set()

    run(script())
