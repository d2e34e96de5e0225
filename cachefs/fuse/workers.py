"""Runs pyfuse3's workers without a trio task for each: what it takes from trio, made cheap.

A worker of pyfuse3 is a coroutine that reads a request, awaits its handler, replies and starts
again. Here they are runs (`cachefs.fuse.runs`): one loop gives requests to idle workers. pyfuse3
looks up `trio` in its own module (its asyncio mode replaces that name, too), so `TrioForPyfuse3`
can stand there.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Final

import trio

from cachefs.fuse.runs import Run, Runs

REQUESTS_PER_ROUND: Final = 16  # answered in a row; then other tasks get their turn
LOOKS: Final = 80  # for the next request, about 40 us: less than to sleep and to be woken costs
MAX_CREDIT: Final = 8
REFUSALS_PER_TRIAL: Final = 100


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


class Workers(Runs):
    """All workers of one session, each a run of pyfuse3's session loop. A worker is idle, waiting,
    or the running one."""

    def __init__(self) -> None:
        super().__init__()
        self._idle: list[Run] = []  # the last one's memory is warm
        self._some_idle = trio.Event()
        self._fd = -1
        self._poll: select.poll | None = None
        self._patience = Patience()

    def take(self, run: Run, wait: object) -> bool:
        if wait is not NEXT_REQUEST:
            return super().take(run, wait)
        run.wait = None
        self._idle.append(run)
        self._some_idle.set()
        return True

    def ended(self, run: Run) -> None:
        super().ended(run)
        self._some_idle.set()  # or nobody is left

    def start_soon(
        self,
        worker: Callable[..., Coroutine[Any, Any, None]],
        *arguments: Any,
        name: str | None = None,
    ) -> None:
        """Another worker, as of a nursery; it is idle, or ended, when this returns."""
        self.start(worker(*arguments))

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Workers]:
        """Serves at its end, until every worker has ended. Cancellation closes them; their callers
        get no reply."""
        try:
            async with trio.open_nursery() as self.nursery:
                yield self
                await self._serve()
        finally:
            self.close()
        if self.failure is not None:
            raise self.failure

    async def _serve(self) -> None:
        while self.alive:
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

    def _take_idle(self) -> list[Run]:
        idle, self._idle = self._idle, []
        return idle

    def next_request(self, fd: int) -> NextRequest:
        """Stands for `trio.lowlevel.wait_readable`."""
        if fd != self._fd:
            self._fd = fd
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
        return NEXT_REQUEST


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
