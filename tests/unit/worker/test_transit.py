"""Announced orders over a real tier, whose cache takes a part of the data: every byte is fetched
once, no byte is wrong, and the transit window is bounded."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import Unreachable
from cachefs.core.messages import AnnounceOrder
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, read, recorded, run, until
from worker.cache.cache import Cache
from worker.fill.segments import Segments
from worker.fill.transit import OPENING_S
from worker.prefetch.prefetcher import Prefetcher
from worker.tier.ledger import allocation

SIZE = 100_000
ME = "session"


def announce(ahead: Prefetcher, inos: list[int], name: str = "o", session: str = ME) -> None:
    data = b"".join(ino.to_bytes(8, "little") for ino in inos)
    piece = AnnounceOrder(NAMESPACE, name, 0, data, len(inos), 64)
    ahead.orders.add_piece(session, piece, time.monotonic())


async def opened(ahead: Prefetcher, worker: Cache, rig: Rig, ino: int, session: str = ME) -> None:
    """Opens and reads a file as a session does."""
    ahead.announced(session, NAMESPACE, ino)
    assert await read(worker, ino) == rig.data[ino]


async def fill_cache(watched: Watched, rig: Rig, inos: list[int]) -> None:
    """Afterwards admission refuses everything, nothing is in use, and the room for segments is not
    lent: the index, which is measured now and then, takes some of it."""
    tier, is_full = only(watched.worker), False
    while not is_full:
        for ino in inos:
            assert await read(watched.worker, ino) == rig.data[ino]
        await watched.settled()
        await recorded(watched.worker)
        tier.contents.want_floor()
        await tier.housekeeping.tick()
        is_full = 0 <= tier.contents.ledger.free_for_files < allocation(SIZE)


class Watched:
    """A prefetcher of a rig's worker; the fullest that the transit window was."""

    def __init__(self, rig: Rig, worker: Cache) -> None:
        self.ahead = Prefetcher(worker.loading, lambda _: rig.space)  # type: ignore[arg-type,return-value]
        self.worker = worker

    @property
    def segments(self) -> Segments:
        return only(self.worker)._segments

    def check(self) -> None:
        segments = self.segments
        assert segments.transit.bytes <= segments._limit_bytes // 2
        memory = only(self.worker).context.memory
        assert segments.transit.memory_bytes <= memory.segments_limit_bytes // 2
        for _, order in self.ahead.orders.book.live():
            order.check_invariants()

    def drop_expired(self) -> None:
        """Lets the time pass in which an open that was served otherwise may still fetch its
        segment."""
        later = time.monotonic() + OPENING_S + 1.0
        for segment in self.segments.transit.expired(later):
            self.segments.drop(segment)

    async def settled(self) -> None:
        """Nothing is on its way."""
        await until(lambda: not only(self.worker)._filler._pieces)


def trial(tmp_path: Path, script: Any, count: int, limit: int, **config: Any) -> None:
    async def with_worker() -> None:
        rig = Rig(tmp_path, limit, **config)
        inos = [rig.put(ino, SIZE) for ino in range(1, count + 1)]
        async with rig.worker() as worker:
            watched = Watched(rig, worker)
            await script(rig, watched, inos)
            await watched.ahead.close()
            watched.drop_expired()
            assert len(watched.segments.transit) == 0
            transit = watched.segments.transit
            await until(lambda: not transit.bytes and not transit.memory_bytes)

    run(with_worker())


def test_epochs_over_a_small_cache_fetch_what_it_refuses_once_each(tmp_path: Path) -> None:
    """[S-orders] The cache takes about 40 % of the data."""
    count = 400

    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        ahead, worker, rng = watched.ahead, watched.worker, random.Random(1)
        for epoch in range(3):
            order = [*inos]
            rng.shuffle(order)
            await watched.settled()
            await recorded(worker)
            announce(ahead, order)
            before = rig.origin.script.body_bytes
            cached = len(rig.published()) if epoch else 0
            for ino in order:
                await opened(ahead, worker, rig, ino)
                watched.check()
            fetched = rig.origin.script.body_bytes - before
            assert 0 <= (count - cached) * SIZE - fetched < 5 * SIZE, epoch
            await recorded(worker)
            for _ in range(2):  # the first one measures the index
                await only(worker).housekeeping.tick()
            ledger = only(worker).contents.ledger
            assert ledger.used_bytes <= ledger.limit_bytes
        free_bytes = ledger.limit_bytes - ledger.headroom_bytes - ledger.overhead_bytes
        assert len(rig.published()) >= 0.95 * free_bytes // allocation(SIZE), "the whole cache"

    trial(tmp_path, script, count, 16 * MIB)


async def lend_floor(watched: Watched, rig: Rig, inos: list[int]) -> None:
    """Fills the cache with announced files, which take the room for segments, too, but for that of
    segments which were read before."""
    await fill_cache(watched, rig, inos[:-60])
    only(watched.worker).contents._floor_wanted_s = float("-inf")
    announce(watched.ahead, inos)
    for ino in inos:
        await opened(watched.ahead, watched.worker, rig, ino)
    await watched.settled()
    ledger = only(watched.worker).contents.ledger
    taken_bytes = ledger.lent_floor_bytes + ledger.scratch_bytes
    assert ledger.lent_floor_bytes > ledger.scratch_floor_bytes // 4
    assert taken_bytes > ledger.scratch_floor_bytes - allocation(SIZE)


def test_a_reader_gets_the_room_for_segments_back(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        await lend_floor(watched, rig, inos)
        contents, big = only(watched.worker).contents, rig.put(1000, 12 * MIB)
        assert await read(watched.worker, big) == rig.data[big]
        await until(lambda: not contents.ledger.lent_floor_bytes)
        scratch_bytes = contents.ledger.scratch_bytes + contents.ledger.free_for_scratch
        assert scratch_bytes >= contents.ledger.scratch_floor_bytes
        kept_bytes = contents.ledger.limit_bytes - contents.ledger.scratch_floor_bytes
        assert contents.ledger.cached_bytes > kept_bytes - 2 * MIB, "no more went than had to"
        announce(watched.ahead, [ino for ino in inos if rig.name(ino) not in rig.published()])
        await until(lambda: len(watched.segments.transit) > 10)
        assert contents.ledger.lent_floor_bytes < MIB, "not so soon: the index alone has grown"

    trial(tmp_path, script, 400, 16 * MIB)


def test_a_late_open_takes_nothing_back(tmp_path: Path) -> None:
    """A small file that no order has prefetched is read from memory."""

    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        await lend_floor(watched, rig, inos)
        ledger = only(watched.worker).contents.ledger
        before_bytes = ledger.lent_floor_bytes
        for ino in inos:
            assert await read(watched.worker, ino) == rig.data[ino]
        await only(watched.worker).housekeeping.tick()
        assert ledger.lent_floor_bytes >= before_bytes

    trial(tmp_path, script, 400, 16 * MIB)


def test_without_as_much_memory_the_room_for_segments_is_not_lent(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        floor_bytes = only(watched.worker).contents.ledger.scratch_floor_bytes
        memory = only(watched.worker).context.memory
        assert watched.segments.lends_floor
        memory.limit_bytes = memory.used_bytes
        assert memory.segments_limit_bytes < floor_bytes
        assert not watched.segments.lends_floor

    trial(tmp_path, script, 1, 1024 * MIB)


def test_a_window_that_is_not_read_stays_and_grows_no_more(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        await fill_cache(watched, rig, inos)
        before = rig.origin.script.body_bytes
        inos = [ino for ino in inos if rig.name(ino) not in rig.published()]
        announce(watched.ahead, inos)
        for _ in range(20):
            await watched.settled()
            watched.ahead.look()
            await asyncio.sleep(0.01)
            watched.check()
        window = len(watched.segments.transit)
        assert window > 10
        assert rig.origin.script.body_bytes == before + window * SIZE
        for ino in inos[:100]:
            await opened(watched.ahead, watched.worker, rig, ino)
        await watched.settled()
        assert rig.origin.script.body_bytes <= before + (window + 100) * SIZE

    trial(tmp_path, script, 400, 16 * MIB)


def test_a_window_beyond_a_small_scratch_area_is_in_memory(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        await fill_cache(watched, rig, inos)
        refused = [ino for ino in inos if rig.name(ino) not in rig.published()]
        transit = watched.segments.transit
        while transit.bytes < watched.segments._limit_bytes // 2 - SIZE - 4096:
            key = rig.space.locate_nowait(refused.pop()).content.key
            assert watched.segments.make_transit(key, SIZE, lambda: None)
        before = only(watched.worker).contents.ledger.scratch_bytes
        announce(watched.ahead, refused)
        await until(lambda: transit.memory_bytes > 10 * SIZE)
        watched.check()
        assert only(watched.worker).contents.ledger.scratch_bytes <= before + SIZE + 4096
        for ino in refused:
            await opened(watched.ahead, watched.worker, rig, ino)
        await until(lambda: not transit.memory_bytes)
        for segment in [*transit.segments.values()]:
            watched.segments.filled(segment)
            watched.segments.drop(segment)

    trial(tmp_path, script, 400, 16 * MIB)


def test_the_end_of_an_order_gives_its_window_back(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        await fill_cache(watched, rig, inos)
        announce(watched.ahead, inos)
        await until(lambda: len(watched.segments.transit) > 10)
        watched.ahead.orders.book.end_session(ME)
        assert len(watched.segments.transit) == 0
        await watched.settled()
        await until(lambda: not watched.segments.transit.bytes)
        await opened(watched.ahead, watched.worker, rig, inos[-1])

    trial(tmp_path, script, 400, 16 * MIB)


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_file_that_no_order_waits_for_any_more_takes_no_place(
    tmp_path: Path, is_opened: bool
) -> None:
    """Admission refuses it late: it was opened before, or its order has ended."""

    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        space, is_refused = only(watched.worker)._space, asyncio.Event()

        async def refuse(*_: Any) -> bool:
            await is_refused.wait()
            return False

        space.reserve_nowait = lambda *_, **__: False  # type: ignore[method-assign]
        space.may_fit = lambda *_: True  # type: ignore[method-assign]
        space.reserve = refuse  # type: ignore[method-assign,assignment]
        announce(watched.ahead, inos)
        await until(lambda: watched.ahead.files == len(inos))
        if is_opened:
            for ino in inos:
                assert watched.ahead.announced(ME, NAMESPACE, ino)
        else:
            watched.ahead.orders.book.end_session(ME)
        is_refused.set()
        await watched.settled()

    trial(tmp_path, script, 30, 64 * MIB)


def test_two_orders_that_share_files_fetch_them_once(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        only(watched.worker)._space.reserve_nowait = lambda *_, **__: False  # type: ignore[method-assign]
        only(watched.worker)._space.may_fit = lambda *_: False  # type: ignore[method-assign]
        for session in ("a", "b"):
            announce(watched.ahead, inos, session=session)
        await until(lambda: watched.ahead.files == len(inos))
        await watched.settled()
        for ino in inos:
            for session in ("a", "b"):
                await opened(watched.ahead, watched.worker, rig, ino, session)
        assert rig.origin.script.body_bytes == len(inos) * SIZE

    trial(tmp_path, script, 30, 64 * MIB)


def test_files_that_vanish_or_fail_stop_nothing(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        gone, failing = inos[3:20:4], inos[5]
        for ino in gone:
            del rig.space.origins[ino]
        rig.origin.script.fail("read", b"dir/%d" % failing, Unreachable("down"), 1)
        announce(watched.ahead, inos)
        await until(lambda: watched.ahead.files >= 40)
        for ino in inos:
            if ino not in gone:
                await opened(watched.ahead, watched.worker, rig, ino)
        assert rig.origin.script.body_bytes == (len(inos) - len(gone)) * SIZE

    trial(tmp_path, script, 60, 64 * MIB)


def test_a_file_that_is_lost_in_transit_is_requested_again(tmp_path: Path) -> None:
    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        only(watched.worker)._space.reserve_nowait = lambda *_, **__: False  # type: ignore[method-assign]
        only(watched.worker)._space.may_fit = lambda *_: False  # type: ignore[method-assign]
        announce(watched.ahead, inos)
        await until(lambda: watched.ahead.files == len(inos))
        await watched.settled()
        watched.segments.drop_content([rig.content(inos[2]).key])
        await until(lambda: watched.ahead.files == len(inos) + 1)
        await watched.settled()
        for ino in inos:
            await opened(watched.ahead, watched.worker, rig, ino)
        assert rig.origin.script.body_bytes == (len(inos) + 1) * SIZE

    trial(tmp_path, script, 10, 64 * MIB)


@pytest.mark.parametrize("seed", range(4))
def test_random_readers_get_every_byte_right(tmp_path: Path, seed: int) -> None:
    """Several orders, wrong ones, skips, restarts and files in two orders."""

    async def script(rig: Rig, watched: Watched, inos: list[int]) -> None:
        rng = random.Random(seed)

        async def reader(session: str) -> None:
            for _ in range(2):
                order = rng.sample(inos, rng.randrange(50, len(inos)))
                announced = order if rng.random() < 0.7 else rng.sample(inos, 60)
                announce(watched.ahead, announced, session=session)
                for ino in order[: rng.randrange(20, len(order))]:
                    if rng.random() < 0.95:
                        await opened(watched.ahead, watched.worker, rig, ino, session)
                    watched.check()
                if rng.random() < 0.3:
                    watched.ahead.orders.book.end_session(session)

        await asyncio.gather(*(reader(name) for name in "abc"))

    trial(tmp_path, script, 200, rng_limit(seed))


def rng_limit(seed: int) -> int:
    """Returns a cache that takes all, some or little of 20 MB."""
    return (12, 16, 24, 64)[seed % 4] * MIB
