"""Runs pyfuse3's workers without a trio task for each: what it takes from trio, made cheap.

A worker of pyfuse3 is a coroutine that reads a request, awaits its handler, replies and starts
again. Here workers are coroutines run by hand: one loop gives requests to idle workers, and a
worker whose handler waits for the node's server is run on, up to its reply, by whoever receives the
answer. No task is scheduled and no cancel scope made for a request. pyfuse3 looks up `trio` in its
own module (its asyncio mode replaces that name, too), so `TrioForPyfuse3` can stand there.

A handler may await only waits made by `Workers` (`new`, `in_task`); what needs trio goes through
`in_task`. Everything belongs to one trio loop.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

import outcome
import trio

from cachefs.client.waits import Abandon, Wait, Waits

REQUESTS_PER_ROUND: Final = 16  # answered in a row; then other tasks get their turn
LOOKS: Final = 80  # for the next request, about 40 us: less than to sleep and to be woken costs
MAX_CREDIT: Final = 8
REFUSALS_PER_TRIAL: Final = 100

T = TypeVar("T")


class Patience:
    """How long to look for the next request: while looking pays, which on a machine with more to do
    than cores it does not. Tries again every now and then. Pure."""

    def __init__(self) -> None:
        self._credit = MAX_CREDIT
        self._refused = 0

    def looks(self) -> int:
        return LOOKS if self._credit else 1

    def learn(self, found: bool) -> None:
        """What came of the last looks."""
        if found:
            self._credit = min(self._credit + 1, MAX_CREDIT)
        elif self._credit:
            self._credit -= 1
        else:
            self._refused += 1
            if self._refused >= REFUSALS_PER_TRIAL:
                self._credit, self._refused = 1, 0


class NextRequest:
    """What a worker awaits when it is idle."""

    def __await__(self) -> Generator[NextRequest, None, None]:
        yield self


NEXT_REQUEST: Final = NextRequest()


class WorkerWait:
    """A wait of a worker's handler."""

    __slots__ = ("_workers", "abandon", "worker")

    def __init__(self, workers: Workers, worker: Worker, abandon: Abandon) -> None:
        self._workers = workers
        self.worker = worker
        self.abandon = abandon

    def __await__(self) -> Generator[WorkerWait, Any, Any]:
        try:
            return (yield self)
        except GeneratorExit:  # the session ends
            self.abandon()
            raise

    def resume(self, value: object) -> None:
        self._workers.step(self.worker, self.worker.coroutine.send, value)

    def fail(self, error: BaseException) -> None:
        self._workers.step(self.worker, self.worker.coroutine.throw, error)


class Worker:
    """One session loop of pyfuse3, and what its handler waits for."""

    __slots__ = ("coroutine", "wait")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine
        self.wait: WorkerWait | None = None

    def interrupt(self, error: BaseException) -> None:
        """Ends the wait of its handler, in which `error` is raised."""
        assert self.wait is not None
        self.wait.abandon()
        self.wait.fail(error)


class Workers(Waits):
    """All workers of one session. A worker is idle, waiting, or the running one."""

    def __init__(self) -> None:
        self.running: Worker | None = None
        self._alive: set[Worker] = set()
        self._idle: list[Worker] = []  # the last one's memory is warm
        self._some_idle = trio.Event()
        self._fd = -1
        self._poll: select.poll | None = None
        self._patience = Patience()
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None

    # ---- what handlers wait for ----

    def new(self, abandon: Abandon) -> Wait:
        """As `Waits.new`; of the handler that is running, if one is."""
        if self.running is None:
            return super().new(abandon)
        return WorkerWait(self, self.running, abandon)

    async def in_task(self, work: Callable[[], Awaitable[T]]) -> T:
        """As `Waits.in_task`; a handler's work gets a task of its own."""
        if self.running is None:
            return await work()
        assert self._nursery is not None
        scope = trio.CancelScope()
        wait = self.new(scope.cancel)
        self._nursery.start_soon(_work_in_task, work, scope, wait)
        result: T = await wait
        return result

    # ---- running workers ----

    def step(self, worker: Worker, proceed: Callable[[Any], Any], what: object) -> None:
        """Runs a worker until it is idle, waits or ends. Never raises: what escapes from a worker
        ends the session."""
        before, self.running = self.running, worker
        try:
            wait = proceed(what)
            ours = wait is NEXT_REQUEST or isinstance(wait, WorkerWait)
            assert ours, "a handler awaits what is not for workers"
        except StopIteration:
            self._ended(worker)
        except BaseException as err:  # noqa: BLE001  whatever it is, the session's task raises it
            self._ended(worker)
            self._fail(err)
        else:
            if wait is NEXT_REQUEST:
                worker.wait = None
                self._idle.append(worker)
                self._some_idle.set()
            else:
                worker.wait = wait
        finally:
            self.running = before

    def start_soon(
        self,
        worker: Callable[..., Coroutine[Any, Any, None]],
        *arguments: Any,
        name: str | None = None,
    ) -> None:
        """Another worker, as of a nursery; it is idle, or ended, when this returns."""
        new = Worker(worker(*arguments))
        self._alive.add(new)
        self.step(new, new.coroutine.send, None)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Workers]:
        """Serves at its end, until every worker has ended. Cancellation closes them; their callers
        get no reply."""
        try:
            async with trio.open_nursery() as self._nursery:
                yield self
                await self._serve()
        finally:
            for worker in list(self._alive):
                worker.coroutine.close()
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        while self._alive:
            if not self._idle:
                self._some_idle = trio.Event()
                await self._some_idle.wait()
                continue
            try:
                await trio.lowlevel.wait_readable(self._fd)
            except trio.ClosedResourceError as err:
                for worker in self._take_idle():
                    self.step(worker, worker.coroutine.throw, err)
            else:
                self._answer()

    def _answer(self) -> None:
        """Answers what is there, `REQUESTS_PER_ROUND` requests at most."""
        for _ in range(REQUESTS_PER_ROUND):
            worker = self._idle.pop()
            self.step(worker, worker.coroutine.send, None)
            if not self._idle or not self._is_readable(worker.wait is None):
                return

    def _is_readable(self, answered: bool) -> bool:
        """After an answer it looks for the next request for a moment: a caller that reads on is
        back within microseconds."""
        assert self._poll is not None
        look = self._poll.poll
        if not answered:
            return bool(look(0))
        found = any(look(0) for _ in range(self._patience.looks()))
        self._patience.learn(found)
        return found

    def _take_idle(self) -> list[Worker]:
        idle, self._idle = self._idle, []
        return idle

    def _ended(self, worker: Worker) -> None:
        worker.wait = None
        self._alive.discard(worker)
        self._some_idle.set()  # or nobody is left

    def _fail(self, err: BaseException) -> None:
        self._failure = self._failure or err
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def next_request(self, fd: int) -> NextRequest:
        """Stands for `trio.lowlevel.wait_readable`."""
        if fd != self._fd:
            self._fd = fd
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
        return NEXT_REQUEST


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


class _OneReader:
    """Stands for the lock that pyfuse3's workers pass on: only one is given a request."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


class _Lowlevel:
    """Stands for `trio.lowlevel`."""

    def __init__(self, workers: Workers) -> None:
        self.wait_readable = workers.next_request
        self.current_task = trio.lowlevel.current_task
        self.current_trio_token = trio.lowlevel.current_trio_token
        self.notify_closing = trio.lowlevel.notify_closing


class TrioForPyfuse3:
    """Stands for the module `trio`: exactly what pyfuse3's session uses of it."""

    ClosedResourceError = trio.ClosedResourceError
    Lock = _OneReader

    def __init__(self, workers: Workers) -> None:
        self.lowlevel = _Lowlevel(workers)
        self.open_nursery = workers.session
