"""The waits of calls for their replies. `Waits` blocks the calling trio task;
`cachefs.fuse.workers` has a cheaper implementation for requests of the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeVar

import outcome
import trio

T = TypeVar("T")
Abandon = Callable[[], None]


class Wait(Protocol):
    """A wait for one reply. Its creator awaits it once. It ends once: by `resume`, by `fail`, or by
    an interruption of the waiting side, which calls the `Abandon` before any other code runs."""

    def __await__(self) -> Generator[Any, Any, Any]: ...

    def resume(self, value: object) -> None:
        """Ends the wait with the result `value`."""

    def fail(self, error: BaseException) -> None:
        """Ends the wait: it raises `error`."""


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
        """Returns a wait of the calling task. Cancellation calls `abandon`; after that, `resume`
        and `fail` must not be called."""
        return TaskWait(abandon)

    async def in_task(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of work that needs a trio task. Cancellation cancels it."""
        return await work()
