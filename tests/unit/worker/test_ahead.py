"""What is brought at once, and when nobody needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cachefs.core.errors import CacheFSError, Stale, Unreachable
from cachefs.core.model import ContentId, Origin
from tests.unit.worker.rig import MIB, NAMESPACE
from worker.ahead import MOST_IN_FLIGHT, UNREAD_SHARE, Ahead
from worker.loading.cache import Outlook
from worker.state.filesahead import LEAST_OPENS, LIST_AFTER

SIZE = 110 << 10


def origin(ino: int) -> Origin:
    """In directories of 1,000."""
    path = b"d%d/%d" % (ino // 1000, ino)
    return Origin(ContentId(NAMESPACE, ino, 0, 7), "u", path, "e", SIZE, 0)


class Service:
    """Numbers below `end` are files. Listing what comes behind one makes 500 more of them."""

    def __init__(self) -> None:
        self.end = 100_000
        self.asked: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: CacheFSError | None = None

    def locate_nowait(self, ino: int) -> Origin:
        if ino >= self.end:
            raise Stale("gone")
        return origin(ino)

    async def list_next(self, ino: int) -> None:
        self.asked.append(ino)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        self.end += 500


class Cache:
    """Everything is on its way until it is told to have come."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.brought: dict[int, Callable[[bool], None]] = {}

    def capacity(self) -> int:
        return self.capacity_bytes

    def bring_ahead(self, origin: Origin, ended: Callable[[bool], None]) -> Outlook:
        self.brought[origin.content.ino] = ended
        return Outlook.BEGUN


def try_out(
    script: Callable[[Ahead, Cache, list[int]], Any],
    capacity: int = 1000 * MIB,
    service: Service | None = None,
) -> None:
    async def run() -> None:
        cache, waiting, asked = Cache(capacity), [0], service or Service()
        ahead = Ahead(cache, lambda _: asked, waiting=lambda: waiting[0])  # type: ignore[arg-type]
        await script(ahead, cache, waiting)
        await ahead.close()

    asyncio.run(run())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def read(ahead: Ahead, count: int) -> None:
    for ino in range(1, count + 1):
        ahead.opened(origin(ino))


def test_no_more_at_once_than_threads_are_there_for() -> None:
    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
        read(ahead, 200)
        await settle()
        assert [*cache.brought] == [*range(201, 201 + MOST_IN_FLIGHT)]
        cache.brought[201](True)
        await settle()
        assert len(cache.brought) == MOST_IN_FLIGHT + 1

    try_out(script)


def test_readers_who_keep_the_threads_busy_get_nothing() -> None:
    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
        waiting[0] = MOST_IN_FLIGHT
        read(ahead, 200)
        await settle()
        assert not cache.brought
        waiting[0] = MOST_IN_FLIGHT - 5
        ahead.used([origin(199).content.name])
        await settle()
        assert len(cache.brought) == 5

    try_out(script)


def test_what_nobody_has_read_yet_is_a_part_of_the_cache_at_most() -> None:
    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
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
    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
        read(ahead, LEAST_OPENS)
        await settle()
        brought = len(cache.brought)
        cache.brought[LEAST_OPENS + 1](False)
        ahead.used([origin(LEAST_OPENS + 1).content.name])
        await settle()
        assert len(cache.brought) == brought

    try_out(script)


def test_names_that_mean_nothing_are_ignored() -> None:
    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
        read(ahead, LEAST_OPENS)
        await settle()
        ahead.used(["", "nonsense", NAMESPACE.hex() + "x" * 40])
        await settle()
        assert len(cache.brought) == 2 * LEAST_OPENS

    try_out(script)


def scan(ahead: Ahead, cache: Cache, first: int, end: int) -> None:
    """A reader who waits for what is not here."""
    for ino in range(first, end):
        if (ended := cache.brought.get(ino)) is not None:
            ended(True)
            ahead.used([origin(ino).content.name])
        else:
            ahead.opened(origin(ino))


def test_the_directory_behind_is_listed_on_the_way() -> None:
    service = Service()

    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
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

    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
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

    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
        scan(ahead, cache, 1, 200)
        await settle()
        assert len(service.asked) == 1
        assert 200 in cache.brought

    try_out(script, service=service)


def test_who_closes_waits_for_no_listing() -> None:
    service = Service()
    service.may_answer.clear()

    async def script(ahead: Ahead, cache: Cache, waiting: list[int]) -> None:
        scan(ahead, cache, 1, 200)
        await settle()
        assert len(service.asked) == 1

    try_out(script, service=service)
