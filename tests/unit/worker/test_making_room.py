"""Whoever needs room in the cache waits for it for a moment only, whatever is asked meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from pathlib import Path

import pytest

from cachefs.core.errors import NoSpace, Unavailable
from cachefs.core.model import ContentId
from cachefs.core.services import Permission
from tests.unit.worker.rig import MIB, Namespace, Rig, only, read, recorded, run, until
from worker.cache.load_requests import load_whole
from worker.tier import admission as space

ANSWER_S = 0.1
MOST_ROUNDS = 10  # of 64: it ends after 0.4 s


class SlowNamespace(Namespace):
    """Protects everything, and takes its time to say so."""

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        await asyncio.sleep(ANSWER_S)
        self.asked.append([content.name for content in contents])
        return Permission(frozenset(), self.valid_for_s)


def test_an_eviction_that_finds_little_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is asked again and again for what may go, and nothing may."""
    monkeypatch.setattr(space, "BATCH_FILES", 1)

    async def script() -> None:
        rig = Rig(tmp_path, 16 * MIB, seed=1, admission="always")
        rig.space = SlowNamespace()
        async with rig.worker() as worker:
            for ino in range(1, 81):
                await read(worker, rig.put(ino, 100 << 10))
            assert not rig.space.asked
            await recorded(worker)
            rig.put(1000, 7 * MIB)
            assert await read(worker, 1000) == rig.data[1000]
            assert 1 <= len(rig.space.asked) < MOST_ROUNDS

    run(script())


class ReaderBetween(Namespace):
    """Protects everything. A load has the answer to its first request once a reader needs room,
    and the other answers once that reader is done."""

    def __init__(self) -> None:
        super().__init__()
        self.of_load = contextvars.ContextVar("of_load", default=False)
        self.load_asks, self.reader_needs, self.reader_done = (asyncio.Event() for _ in range(3))

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        if self.of_load.get():
            await (self.reader_done if self.load_asks.is_set() else self.reader_needs).wait()
            self.load_asks.set()
        return Permission(frozenset(), self.valid_for_s)


def test_a_reader_waits_for_one_batch_of_a_load_that_looks_at_everything(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 16 * MIB, seed=1, admission="always")
        rig.space = space_of_both = ReaderBetween()
        async with rig.worker() as worker:
            for ino in range(1, 81):
                await read(worker, rig.put(ino, 100 << 10))
            await recorded(worker)
            for ino in (1000, 1001):
                rig.put(ino, 7 * MIB)

            async def load() -> object:
                space_of_both.of_load.set(True)
                return await load_whole(worker.loading.load, rig.space.origins[1000])

            loading = asyncio.create_task(load())
            room = only(worker)._space
            await until(room._one_at_a_time.locked)
            reading = asyncio.create_task(read(worker, 1001))
            await until(lambda: bool(room._one_at_a_time._waiters))
            space_of_both.reader_needs.set()
            assert await reading == rig.data[1001]
            assert not loading.done(), "the reader has waited for the whole load"
            space_of_both.reader_done.set()
            assert isinstance(await loading, NoSpace)

    run(script())


def test_who_needs_room_does_without_while_the_index_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "ORDER_WAIT_S", 0.05)

    async def script() -> None:
        rig = Rig(tmp_path, 16 * MIB, seed=1, admission="always")
        async with rig.worker() as worker:
            for ino in range(1, 81):
                await read(worker, rig.put(ino, 100 << 10))
            await recorded(worker)
            only(worker)._space.order_loaded.clear()
            for ino in (1000, 1001):
                rig.put(ino, 7 * MIB)
            assert await read(worker, 1000) == rig.data[1000]
            error = await load_whole(worker.loading.load, rig.space.origins[1001])
            assert isinstance(error, Unavailable)
            assert worker.status()["tiers"][0]["state"] == "normal"

    run(script())
