"""How a call waits for what comes later. `Waits` is trio's way, one waiting task per call;
`cachefs.fuse.workers` has a cheaper one for the requests of the kernel, of the same shape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeVar

import outcome
import trio

T = TypeVar("T")
Abandon = Callable[[], None]


class Wait(Protocol):
    """Awaited once, by who made it; ended once, by `resume`, by `fail`, or by whoever interrupts
    the waiting side, which calls the `Abandon` before anything else runs."""

    def __await__(self) -> Generator[Any, Any, Any]: ...

    def resume(self, value: object) -> None:
        """The wait is over: it gives `value`."""

    def fail(self, error: BaseException) -> None:
        """The wait is over: it raises `error`."""


class TaskWait:
    """A wait of the current trio task."""

    __slots__ = ("_abandon", "_task")

    def __init__(self, abandon: Abandon) -> None:
        self._task = trio.lowlevel.current_task()
        self._abandon = abandon

    def __await__(self) -> Generator[Any, Any, Any]:
        return trio.lowlevel.wait_task_rescheduled(self._abort).__await__()

    def resume(self, value: object) -> None:
        trio.lowlevel.reschedule(self._task, outcome.Value(value))

    def fail(self, error: BaseException) -> None:
        trio.lowlevel.reschedule(self._task, outcome.Error(error))

    def _abort(self, _: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._abandon()
        return trio.lowlevel.Abort.SUCCEEDED


class Waits:
    """Waits of trio tasks."""

    def new(self, abandon: Abandon) -> Wait:
        """A wait of who calls this. Cancellation calls `abandon`, from then on nobody may end the
        wait."""
        return TaskWait(abandon)

    async def in_task(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of what needs a trio task around it. Cancellation cancels it."""
        return await work()
