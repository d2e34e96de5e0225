"""Runs the coroutines of requests without a trio task for each.

A request that must wait for the node's server is a coroutine run by hand: whoever receives the
answer runs it on, up to its reply. No task is scheduled and no cancel scope made for it. Such a
coroutine may await only waits made by `Runs` (`new`, `in_task`); what needs trio goes through
`in_task`. Everything belongs to one trio loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import outcome
import trio

from cachefs.client.waits import Abandon, Wait, Waits

T = TypeVar("T")


class RunWait:
    """A wait of a run."""

    __slots__ = ("_runs", "abandon", "run")

    def __init__(self, runs: Runs, run: Run, abandon: Abandon) -> None:
        self._runs = runs
        self.run = run
        self.abandon = abandon

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


class Run:
    """A coroutine, and what it waits for."""

    __slots__ = ("coroutine", "wait")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine
        self.wait: RunWait | None = None

    def interrupt(self, error: BaseException) -> None:
        """Ends its wait, in which `error` is raised."""
        assert self.wait is not None
        self.wait.abandon()
        self.wait.fail(error)


class Runs(Waits):
    """All runs of one session. `nursery` must be set before any of them waits `in_task`."""

    def __init__(self) -> None:
        self.running: Run | None = None
        self.alive: set[Run] = set()
        self.nursery: trio.Nursery | None = None
        self.failure: BaseException | None = None

    def new(self, abandon: Abandon) -> Wait:
        """As `Waits.new`; of the run that is running, if one is."""
        if self.running is None:
            return super().new(abandon)
        return RunWait(self, self.running, abandon)

    async def in_task(self, work: Callable[[], Awaitable[T]]) -> T:
        """As `Waits.in_task`; a run's work gets a task of its own."""
        if self.running is None:
            return await work()
        assert self.nursery is not None
        scope = trio.CancelScope()
        wait = self.new(scope.cancel)
        self.nursery.start_soon(_work_in_task, work, scope, wait)
        result: T = await wait
        return result

    def start(self, coroutine: Coroutine[Any, Any, None]) -> Run:
        """Runs a coroutine up to its first wait."""
        run = Run(coroutine)
        self.alive.add(run)
        self.step(run, coroutine.send, None)
        return run

    def step(self, run: Run, proceed: Callable[[Any], Any], what: object) -> None:
        """Runs it until it waits or ends. Never raises: what escapes from a run ends the
        session."""
        before, self.running = self.running, run
        try:
            wait = proceed(what)
            assert self.take(run, wait), "a request awaits what is not for runs"
        except StopIteration:
            self.ended(run)
        except BaseException as err:  # noqa: BLE001  whatever it is, the session's task raises it
            self.ended(run)
            self._fail(err)
        finally:
            self.running = before

    def take(self, run: Run, wait: object) -> bool:
        """Takes note of what a run waits for; False for what it must not wait for."""
        if not isinstance(wait, RunWait):
            return False
        run.wait = wait
        return True

    def ended(self, run: Run) -> None:
        run.wait = None
        self.alive.discard(run)

    def close(self) -> None:
        """Ends every run where it waits; no reply is made."""
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
