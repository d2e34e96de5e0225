"""What all of a worker share: waits, and tasks that end when they are told to."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.worker.rig import run
from worker.runtime.tasks import Tasks, within


def test_a_cancellation_that_comes_with_the_result_is_no_less_one() -> None:
    """A loop that waits with limits would go on for ever, and so would who waits for its end."""

    async def script() -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        never = asyncio.Event()

        async def loop() -> None:
            await within(answer, 10.0)
            await never.wait()

        tasks = Tasks()
        task = tasks.start(loop())
        await asyncio.sleep(0)
        answer.set_result(None)
        async with asyncio.timeout(10.0):
            await tasks.close()
        assert task.cancelled()

    run(script())


def test_what_a_task_starts_while_it_is_cancelled_ends_too() -> None:
    async def script() -> None:
        tasks, never = Tasks(), asyncio.Event()
        started: list[asyncio.Task[None]] = []

        async def work() -> None:
            try:
                await never.wait()
            finally:
                started.append(tasks.start(never.wait()))

        tasks.start(work())
        await asyncio.sleep(0)
        await tasks.close()
        assert started[0].cancelled()

    run(script())


def test_a_wait_has_its_limit() -> None:
    async def script() -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with pytest.raises(TimeoutError):
            await within(never, 0.01)
        assert never.cancelled()

    run(script())
