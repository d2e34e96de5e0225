"""Runs the coroutines of requests without a trio task for each.

A request that must wait for the node's server is a coroutine. The task that receives the server's
reply resumes the coroutine, which runs up to its own reply. It gets no task and no cancel scope,
and may await only the waits made by `CoroutineRunner` (`new`, `in_task`). Code that needs trio runs
through `in_task`. Everything belongs to one trio loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import outcome
import trio

from cachefs.client.call_waits import Abandon, Wait, Waits

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class RunWait:
    """An awaitable on which a run is suspended."""

    _runs: CoroutineRunner
    run: RunningRequest
    abandon: Abandon

    def __await__(self) -> Generator[RunWait, Any, Any]:
        try:
            return (yield self)
        except GeneratorExit:  # the session ends
            self.abandon()
            raise

    def resume(self, value: object) -> None:
        self._runs.step(self.run, self.run.coroutine.send, value)

    def fail(self, error: BaseException) -> None:
        self._runs.step(self.run, self.run.coroutine.throw, error)


class RunningRequest:
    """A coroutine and the wait on which it is suspended."""

    __slots__ = ("coroutine", "wait")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine
        self.wait: RunWait | None = None

    def interrupt(self, error: BaseException) -> None:
        """Ends the wait by raising `error` in it."""
        assert self.wait is not None
        self.wait.abandon()
        self.wait.fail(error)


class CoroutineRunner(Waits):
    """The runs of one session. The session sets `nursery` before a run calls `in_task`."""

    def __init__(self) -> None:
        self.running: RunningRequest | None = None
        self.alive: set[RunningRequest] = set()
        self.nursery: trio.Nursery | None = None
        self.failure: BaseException | None = None

    def new(self, abandon: Abandon) -> Wait:
        """Returns a wait of the running run, or of `Waits.new` when none is running."""
        if self.running is None:
            return super().new(abandon)
        return RunWait(self, self.running, abandon)

    async def in_task(self, work: Callable[[], Awaitable[T]]) -> T:
        """Awaits `work()`, in a new task when a run calls it."""
        if self.running is None:
            return await work()
        assert self.nursery is not None
        scope = trio.CancelScope()
        wait = self.new(scope.cancel)
        self.nursery.start_soon(_work_in_task, work, scope, wait)
        result: T = await wait
        return result

    def start(self, coroutine: Coroutine[Any, Any, None]) -> RunningRequest:
        """Runs a coroutine up to its first wait."""
        run = RunningRequest(coroutine)
        self.alive.add(run)
        self.step(run, coroutine.send, None)
        return run

    def step(self, run: RunningRequest, proceed: Callable[[Any], Any], what: object) -> None:
        """Resumes a run until it waits or ends. An exception of a run ends the session instead of
        being raised here."""
        before, self.running = self.running, run
        try:
            wait = proceed(what)
            assert self.take(run, wait), "a request awaits what is not for runs"
        except StopIteration:
            self.ended(run)
        except BaseException as err:  # noqa: BLE001  the session's task raises it
            self.ended(run)
            self._fail(err)
        finally:
            self.running = before

    def take(self, run: RunningRequest, wait: object) -> bool:
        """Records the wait of a run. Returns False for an object that a run must not await."""
        if not isinstance(wait, RunWait):
            return False
        run.wait = wait
        return True

    def ended(self, run: RunningRequest) -> None:
        run.wait = None
        self.alive.discard(run)

    def close(self) -> None:
        """Ends every run where it waits, without a reply."""
        for run in list(self.alive):
            run.coroutine.close()
        self.alive.clear()

    def _fail(self, err: BaseException) -> None:
        self.failure = self.failure or err
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel()


async def _work_in_task(
    work: Callable[[], Awaitable[object]], scope: trio.CancelScope, wait: Wait
) -> None:
    result: outcome.Outcome[object] | None = None
    with scope:
        result = await outcome.acapture(work)
        if isinstance(result, outcome.Error) and isinstance(result.error, trio.Cancelled):
            raise result.error
    if scope.cancel_called or result is None:
        return
    if isinstance(result, outcome.Error):
        wait.fail(result.error)
    else:
        wait.resume(result.unwrap())
