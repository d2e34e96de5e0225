"""What is brought at once, and when nobody needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from cachefs.core.model import ContentId, Origin
from tests.unit.worker.rig import MIB, NAMESPACE
from worker.ahead import MOST_IN_FLIGHT, UNREAD_SHARE, Ahead
from worker.loading.cache import Outlook
from worker.state.filesahead import LEAST_OPENS

SIZE = 110 << 10


def origin(ino: int) -> Origin:
    return Origin(ContentId(NAMESPACE, ino, 0, 7), "u", b"d/%d" % ino, "e", SIZE, 0)


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


def try_out(script: Callable[[Ahead, Cache, list[int]], Any], capacity: int = 1000 * MIB) -> None:
    async def run() -> None:
        cache, waiting = Cache(capacity), [0]
        service = SimpleNamespace(locate_nowait=origin)
        ahead = Ahead(cache, lambda _: service, waiting=lambda: waiting[0])  # type: ignore[arg-type]
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
