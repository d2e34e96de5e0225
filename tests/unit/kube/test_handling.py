"""Objects are handled side by side, again after failures, and only one replica wins an election."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from cachefs.core.errors import NotFound, Stale, Unreachable
from cachefs.core.lasting_clock import lasting_s
from cachefs.kube import handling
from cachefs.kube.election import Election
from cachefs.kube.facts import Facts
from cachefs.kube.handling import Handling
from cachefs.kube.names import Key, Object
from cachefs.kube.work_queue import Item

ONE, TWO = Item("Dataset", "ml", "one"), Item("Dataset", "ml", "two")


async def run_until(work: Handling, done: asyncio.Event) -> None:
    task = asyncio.create_task(work.run())
    async with asyncio.timeout(10):
        await done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_slow_object_does_not_delay_others() -> None:
    async def go() -> None:
        done, begun = asyncio.Event(), asyncio.Event()

        async def handle(item: Item) -> float:
            if item == ONE:
                begun.set()
                await done.wait()
            else:
                await begun.wait()
                done.set()
            return 0.0

        work = Handling(handle, 2, Facts())
        work.add(ONE)
        work.add(TWO)
        await run_until(work, done)

    asyncio.run(go())


def test_failures_are_counted_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "STALE_S", 0.001)

    async def go() -> None:
        done, facts, results = asyncio.Event(), Facts(), [Unreachable("away"), Stale("old")]

        async def handle(item: Item) -> float:
            if results:
                raise results.pop(0)
            done.set()
            return 0.0

        work = Handling(handle, 1, facts)
        work.add(ONE)
        await run_until(work, done)
        assert facts.handled[("Dataset", "stale")] == facts.handled[("Dataset", "unreachable")] == 1

    asyncio.run(go())


def test_an_error_that_is_none_of_ours_ends_everything() -> None:
    async def go() -> None:
        async def handle(item: Item) -> float:
            raise ZeroDivisionError

        work = Handling(handle, 1, Facts())
        work.add(ONE)
        with pytest.raises(ExceptionGroup):
            await work.run()

    asyncio.run(go())


class Leases:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.found: Object | None = None
        self.version = 0

    async def find(self, kind: str, key: Key) -> Object | None:
        return self.found

    async def create(self, thing: Object) -> Object:
        return await self._put(thing, self.found is None)

    async def replace(self, thing: Object) -> Object:
        if self.found is None:
            raise NotFound("gone")
        return await self._put(thing, thing["metadata"] == self.found["metadata"])

    async def _put(self, thing: Object, is_current: bool) -> Object:
        if not is_current:
            raise Stale("another version")
        self.version += 1
        self.found = thing | {"metadata": {"resourceVersion": str(self.version)}}
        return self.found


def test_a_lease_that_is_given_back_is_taken_at_once() -> None:
    async def go() -> None:
        api: Any = Leases()
        first, second = Election(api, "s", "a"), Election(api, "s", "b")
        await first.win()
        assert await second._try() == "a"
        await first.give_back()
        await second.win()
        assert api.found["spec"]["holderIdentity"] == "b"
        with pytest.raises(AssertionError):
            await first.hold()

    asyncio.run(go())


def test_a_holder_ends_when_its_machine_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        first = Election(cast(Any, Leases()), "s", "a")
        await first.win()
        later_s = lasting_s() + 11.0
        monkeypatch.setattr(time, "clock_gettime", lambda _: later_s)
        await first.hold()

    asyncio.run(go())


def test_a_holder_ends_when_it_cannot_renew() -> None:
    async def go() -> None:
        api: Any = Leases()
        now = [0.0]
        first = Election(api, "s", "a", lambda: now[0])
        await first.win()
        now[0] = 11.0
        await first.hold()

    asyncio.run(go())
