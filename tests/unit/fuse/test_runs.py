"""Coroutines that are run by hand: they wait, are resumed, interrupted and closed as tasks are."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from cachefs.core.errors import Interrupted, NotFound
from cachefs.fuse.runs import CoroutineRunner, RunningRequest, RunWait


class Work:
    """What runs of a test do, and what came of it."""

    def __init__(self) -> None:
        self.runs = CoroutineRunner()
        self.waits: list[RunWait] = []
        self.abandoned = 0
        self.results: list[Any] = []

    async def wait(self) -> None:
        """One wait."""
        try:
            self.results.append(await self._new())
        except Interrupted:
            self.results.append("interrupted")
        except NotFound:
            self.results.append("not found")

    async def wait_twice(self) -> None:
        await self.wait()
        await self.wait()

    def _new(self) -> RunWait:
        wait = self.runs.new(self._abandon)
        assert isinstance(wait, RunWait)
        self.waits.append(wait)
        return wait

    def _abandon(self) -> None:
        self.abandoned += 1

    async def in_task(self, work: Callable[[], Awaitable[object]]) -> None:
        try:
            self.results.append(await self.runs.in_task(work))
        except (Interrupted, KeyError) as err:
            self.results.append(type(err))


@pytest.fixture
def work() -> Work:
    return Work()


def test_one_that_never_waits_has_ended_at_once(work: Work) -> None:
    async def note() -> None:
        work.results.append(work.runs.running is not None)

    run = work.runs.start(note())
    assert work.results == [True]
    assert run.wait is None
    assert work.runs.alive == set()
    assert work.runs.running is None


def test_who_brings_the_answer_runs_it_on(work: Work) -> None:
    run = work.runs.start(work.wait_twice())
    assert run.wait is work.waits[0]
    work.waits[0].resume(1)
    assert work.results == [1]
    assert run.wait is work.waits[1]
    work.waits[1].fail(NotFound("gone"))
    assert work.results == [1, "not found"]
    assert work.runs.alive == set()
    assert work.abandoned == 0


def test_a_run_may_end_another_ones_wait(work: Work) -> None:
    work.runs.start(work.wait())

    async def bring() -> None:
        work.waits[0].resume("brought")
        work.results.append(work.runs.running is not None)

    work.runs.start(bring())
    assert work.results == ["brought", True], "and is the running one again afterwards"


def test_an_interrupted_wait_is_abandoned_first(work: Work) -> None:
    run = work.runs.start(work.wait_twice())
    run.interrupt(Interrupted("a signal"))
    assert work.abandoned == 1
    assert work.results == ["interrupted"]
    work.waits[1].resume(2)
    assert work.results == ["interrupted", 2]


def test_close_ends_every_wait_without_an_answer(work: Work) -> None:
    runs = [work.runs.start(work.wait()) for _ in range(3)]
    work.runs.close()
    assert work.abandoned == 3
    assert work.results == []
    assert work.runs.alive == set()
    assert {inspect.getcoroutinestate(run.coroutine) for run in runs} == {inspect.CORO_CLOSED}
    work.runs.close()


def test_what_escapes_is_kept_and_ends_the_session(work: Work) -> None:
    async def fail() -> None:
        raise KeyError("a bug")

    async def main() -> None:
        async with trio.open_nursery() as work.runs.nursery:
            work.runs.start(fail())
            await trio.sleep_forever()

    trio.run(main)
    assert isinstance(work.runs.failure, KeyError)
    work.runs.start(fail())
    assert work.runs.alive == set()


def test_a_run_must_not_await_what_trio_would_have_to_wake(work: Work) -> None:
    async def sleep() -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def main() -> None:
        work.runs.start(sleep())

    trio.run(main)
    assert isinstance(work.runs.failure, AssertionError)


def in_trio(work: Work, test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as work.runs.nursery:
                await test()
                work.runs.nursery.cancel_scope.cancel()

    trio.run(main)


def test_work_that_needs_a_task_gets_one(work: Work) -> None:
    async def sleep() -> str:
        await trio.lowlevel.checkpoint()
        return "slept"

    async def fail() -> str:
        await trio.lowlevel.checkpoint()
        raise KeyError

    async def test() -> None:
        work.runs.start(work.in_task(sleep))
        work.runs.start(work.in_task(fail))
        await trio.testing.wait_all_tasks_blocked()
        assert set(work.results) == {"slept", KeyError}

    in_trio(work, test)


def test_an_interrupted_wait_cancels_its_task(work: Work) -> None:
    ended = []

    async def forever() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    async def test() -> None:
        run: RunningRequest = work.runs.start(work.in_task(forever))
        await trio.testing.wait_all_tasks_blocked()
        run.interrupt(Interrupted("a signal"))
        assert work.results == [Interrupted]
        await trio.testing.wait_all_tasks_blocked()
        assert ended == ["cancelled"]

    in_trio(work, test)
    assert work.runs.failure is None


def test_outside_of_runs_waits_are_those_of_tasks(work: Work) -> None:
    async def main() -> None:
        async def answer() -> str:
            return "at once"

        assert await work.runs.in_task(answer) == "at once"
        waits = []

        async def wait() -> None:
            waits.append(work.runs.new(lambda: None))
            work.results.append(await waits[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            waits[0].resume("resumed")
        assert work.results == ["resumed"]

    trio.run(main)
