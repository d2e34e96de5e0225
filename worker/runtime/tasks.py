"""The tasks of a part of the worker, a signal between tasks, and a wait with a limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any


class Tasks:
    """A set of tasks, each owned here until it ends. The loop's exception handler gets errors."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a task of the worker failed", "exception": task.exception()}
            )

    async def close(self) -> None:
        """Cancels all tasks, also those that they start then, and waits for their ends."""
        while tasks := [*self._tasks]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Signal:
    """A signal that wakes all waiting tasks. Waits have a timeout."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, timeout_s: float) -> None:
        """Waits for `notify` or the timeout, whichever is first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)


async def wait_at_most(event: asyncio.Event, limit_s: float) -> None:
    """Waits until the event is set, or for that time."""
    with contextlib.suppress(TimeoutError):
        await within(event.wait(), limit_s)


async def within(work: Awaitable[Any], seconds: float) -> Any:
    """Returns the result. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        return await work
