"""What is brought at once, and when nobody needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cachefs.core.errors import CacheFSError, Stale, Unreachable
from cachefs.core.model import ContentId, Origin
from tests.unit.worker.rig import MIB, NAMESPACE
from worker.cache.load_requests import PrefetchResult
from worker.prefetch.in_flight import FEW, MOST_COMING_BYTES
from worker.prefetch.open_runs import LEAST_OPENS, LIST_AFTER
from worker.prefetch.prefetcher import UNREAD_SHARE, Prefetcher

SIZE = 110 << 10
PLACES = 100


def origin(ino: int, size: int = SIZE) -> Origin:
    """In directories of 1,000."""
    path = b"d%d/%d" % (ino // 1000, ino)
    return Origin(ContentId(NAMESPACE, ino, 0, 7), "u", path, "e", size, 0)


class Service:
    """Numbers below `end` are files. Listing what comes behind one makes 500 more of them."""

    def __init__(self) -> None:
        self.end = 100_000
        self.size = SIZE
        self.asked: list[int] = []
        self.located: list[int] = []
        self.knows_at_once = True
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: CacheFSError | None = None

    async def locate(self, ino: int) -> Origin:
        self.located.append(ino)
        await self.may_answer.wait()
        return origin(ino, self.size)

    def locate_nowait(self, ino: int) -> Origin | None:
        if ino >= self.end:
            raise Stale("gone")
        if not self.knows_at_once:
            return None
        return origin(ino, self.size)

    async def list_next(self, ino: int) -> None:
        self.asked.append(ino)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        self.end += 500


class Cache:
    """Everything is on its way until it is told to have come. `places`: for that and for `others`,
    which are on their way too."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.places = PLACES
        self.others = 0
        self.coming = 0
        self.brought: dict[int, Callable[[bool], None]] = {}

    def capacity(self) -> int:
        return self.capacity_bytes

    def places_ahead(self) -> int:
        return self.places - self.others - self.coming

    def bring_ahead(
        self, origin: Origin, ended: Callable[[bool], None], ticket: object = None
    ) -> PrefetchResult:
        def over(is_here: bool) -> None:
            self.coming -= 1
            ended(is_here)

        self.coming += 1
        self.brought[origin.content.ino] = over
        return PrefetchResult.BEGUN


def try_out(
    script: Callable[[Prefetcher, Cache], Any],
    capacity: int = 1000 * MIB,
    service: Service | None = None,
) -> None:
    async def run() -> None:
        cache, asked = Cache(capacity), service or Service()
        ahead = Prefetcher(cache, lambda _: asked)  # type: ignore[arg-type]
        await script(ahead, cache)
        await ahead.close()

    asyncio.run(run())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def read(ahead: Prefetcher, count: int) -> None:
    for ino in range(1, count + 1):
        ahead.opened(origin(ino))


def test_no_more_at_once_than_there_are_places() -> None:
    async def script(ahead: Prefetcher, cache: Cache) -> None:
        read(ahead, 200)
        await settle()
        assert [*cache.brought] == [*range(201, 201 + PLACES)]
        cache.brought[201](True)
        await settle()
        assert len(cache.brought) == PLACES + 1

    try_out(script)


@pytest.mark.parametrize("others", [PLACES, 2 * PLACES])
def test_what_others_bring_takes_its_places(others: int) -> None:
    async def script(ahead: Prefetcher, cache: Cache) -> None:
        cache.others = others
        read(ahead, 200)
        await settle()
        assert not cache.brought
        cache.others = PLACES - 5
        ahead.used([origin(199).content.name])
        await settle()
        assert len(cache.brought) == 5

    try_out(script)


def test_files_whose_place_is_asked_for_take_one() -> None:
    service = Service()
    service.knows_at_once = False
    service.may_answer.clear()

    async def script(ahead: Prefetcher, cache: Cache) -> None:
        read(ahead, 200)
        await settle()
        assert len(service.located) == PLACES
        service.may_answer.set()
        await settle()
        assert len(cache.brought) == PLACES
        assert len(service.located) == PLACES

    try_out(script, service=service)


def test_large_ones_are_few_at_once() -> None:
    """Their bytes are, and yet some of them."""
    service = Service()
    for size in (2 * MOST_COMING_BYTES // PLACES, 4 * MIB):
        service.size = size
        most = max(FEW, -(-MOST_COMING_BYTES // size))

        async def script(ahead: Prefetcher, cache: Cache, most: int = most) -> None:
            read(ahead, 200)
            await settle()
            assert len(cache.brought) == most
            cache.brought[201](True)
            await settle()
            assert len(cache.brought) == most + 1

        try_out(script, capacity=UNREAD_SHARE * 1000 * MIB, service=service)


def test_what_nobody_has_read_yet_is_a_part_of_the_cache_at_most() -> None:
    async def script(ahead: Prefetcher, cache: Cache) -> None:
        read(ahead, 200)
        await settle()
        assert len(cache.brought) == 10
        for ended in [*cache.brought.values()]:
            ended(True)
        await settle()
        assert len(cache.brought) == 10
        ahead.used([origin(ino).content.name for ino in range(201, 204)])
        await settle()
        assert len(cache.brought) == 13

    try_out(script, capacity=10 * SIZE * UNREAD_SHARE)


def test_what_finds_no_room_ends_the_run() -> None:
    async def script(ahead: Prefetcher, cache: Cache) -> None:
        read(ahead, LEAST_OPENS)
        await settle()
        brought = len(cache.brought)
        cache.brought[LEAST_OPENS + 1](False)
        ahead.used([origin(LEAST_OPENS + 1).content.name])
        await settle()
        assert len(cache.brought) == brought

    try_out(script)


def test_names_that_mean_nothing_are_ignored() -> None:
    async def script(ahead: Prefetcher, cache: Cache) -> None:
        read(ahead, LEAST_OPENS)
        await settle()
        ahead.used(["", "nonsense", NAMESPACE.hex() + "x" * 40])
        await settle()
        assert len(cache.brought) == 2 * LEAST_OPENS

    try_out(script)


def scan(ahead: Prefetcher, cache: Cache, first: int, end: int) -> None:
    """A reader who waits for what is not here."""
    for ino in range(first, end):
        if (ended := cache.brought.get(ino)) is not None:
            ended(True)
            ahead.used([origin(ino).content.name])
        else:
            ahead.opened(origin(ino))


def test_the_directory_behind_is_listed_on_the_way() -> None:
    service = Service()

    async def script(ahead: Prefetcher, cache: Cache) -> None:
        scan(ahead, cache, 1, LIST_AFTER)
        await settle()
        assert service.asked == []
        scan(ahead, cache, LIST_AFTER, 400)
        await settle()
        assert len(service.asked) == 1

    try_out(script, service=service)


def test_numbers_that_come_by_a_listing_are_brought_where_the_run_has_crossed_once() -> None:
    """The second time no open is waited for."""
    service = Service()
    service.end = 2000

    async def script(ahead: Prefetcher, cache: Cache) -> None:
        for first in range(500, 1960, 20):
            scan(ahead, cache, first, first + 20)
            await settle()
        assert 1999 in cache.brought
        service.may_answer.clear()
        scan(ahead, cache, 1960, 2000)
        await settle()
        assert max(cache.brought) < service.end
        service.may_answer.set()
        await settle()
        assert 2000 in cache.brought

    try_out(script, service=service)


def test_a_listing_that_fails_is_nothing_to_the_reader() -> None:
    service = Service()
    service.error = Unreachable("down")

    async def script(ahead: Prefetcher, cache: Cache) -> None:
        scan(ahead, cache, 1, 200)
        await settle()
        assert len(service.asked) == 1
        assert 200 in cache.brought

    try_out(script, service=service)


def test_who_closes_waits_for_no_listing() -> None:
    service = Service()
    service.may_answer.clear()

    async def script(ahead: Prefetcher, cache: Cache) -> None:
        scan(ahead, cache, 1, 200)
        await settle()
        assert len(service.asked) == 1

    try_out(script, service=service)
