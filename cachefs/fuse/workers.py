"""Runs pyfuse3's workers without a trio task for each.

A worker of pyfuse3 is a coroutine that reads a request, awaits its handler, replies and repeats.
Here each is a run (`cachefs.fuse.runs`): one loop gives requests to idle workers. pyfuse3 looks up
`trio` in its own module (its asyncio mode also replaces that name), so `TrioForPyfuse3` replaces
it there.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Final

import trio

from cachefs.fuse.runs import CoroutineRunner, RunningRequest

REQUESTS_PER_ROUND: Final = 16  # answered in a row before other tasks run
LOOKS: Final = 80  # polls for the next request, about 40 us: cheaper than a sleep and a wake-up
MAX_CREDIT: Final = 8
REFUSALS_PER_TRIAL: Final = 100


class AdaptiveSpin:
    """Decides whether to spin for the next request. Spinning stops while it finds nothing, as on an
    overloaded machine, and is tried again after `REFUSALS_PER_TRIAL` misses. Pure."""

    def __init__(self) -> None:
        self._credit = MAX_CREDIT
        self._refused = 0

    def looks(self) -> int:
        return LOOKS if self._credit else 1

    def learn(self, found: bool) -> None:
        """Records whether the last polls found a request."""
        if found:
            self._credit = min(self._credit + 1, MAX_CREDIT)
        elif self._credit:
            self._credit -= 1
        else:
            self._refused += 1
            if self._refused >= REFUSALS_PER_TRIAL:
                self._credit, self._refused = 1, 0


class NextRequest:
    """The awaitable of an idle worker."""

    def __await__(self) -> Generator[NextRequest, None, None]:
        yield self


NEXT_REQUEST: Final = NextRequest()


class Workers(CoroutineRunner):
    """The workers of one session: runs of pyfuse3's loop, each idle, waiting or running."""

    def __init__(self) -> None:
        super().__init__()
        self._idle: list[RunningRequest] = []  # the last one's memory is warm
        self._some_idle = trio.Event()
        self._fd = -1
        self._poll: select.poll | None = None
        self._spin = AdaptiveSpin()

    def take(self, run: RunningRequest, wait: object) -> bool:
        if wait is not NEXT_REQUEST:
            return super().take(run, wait)
        run.wait = None
        self._idle.append(run)
        self._some_idle.set()
        return True

    def ended(self, run: RunningRequest) -> None:
        super().ended(run)
        self._some_idle.set()  # `_serve` also waits for the last worker to end

    def start_soon(
        self,
        worker: Callable[..., Coroutine[Any, Any, None]],
        *arguments: Any,
        name: str | None = None,
    ) -> None:
        """Starts a worker, as a nursery does. It is idle, waiting or ended when this returns."""
        self.start(worker(*arguments))

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Workers]:
        """Yields itself as the nursery; on exit serves until every worker has ended. Cancellation
        closes the workers; their callers get no reply."""
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
        """Answers the pending requests, up to `REQUESTS_PER_ROUND`."""
        for _ in range(REQUESTS_PER_ROUND):
            worker = self._idle.pop()
            self.step(worker, worker.coroutine.send, None)
            if not self._idle or not self._is_readable(worker.wait is None):
                return

    def _is_readable(self, answered: bool) -> bool:
        """Returns whether a request is pending. After an answer this spins: a caller that reads on
        sends its next request within microseconds."""
        assert self._poll is not None
        look = self._poll.poll
        if not answered:
            return bool(look(0))
        found = any(look(0) for _ in range(self._spin.looks()))
        self._spin.learn(found)
        return found

    def _take_idle(self) -> list[RunningRequest]:
        idle, self._idle = self._idle, []
        return idle

    def next_request(self, fd: int) -> NextRequest:
        """Replaces `trio.lowlevel.wait_readable`."""
        if fd != self._fd:
            self._fd = fd
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
        return NEXT_REQUEST


class _OneReader:
    """Replaces the lock of pyfuse3's workers: the loop gives a request to one worker only."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


class _Lowlevel:
    """Replaces `trio.lowlevel`."""

    def __init__(self, workers: Workers) -> None:
        self.wait_readable = workers.next_request
        self.current_task = trio.lowlevel.current_task
        self.current_trio_token = trio.lowlevel.current_trio_token
        self.notify_closing = trio.lowlevel.notify_closing


class TrioForPyfuse3:
    """Replaces the module `trio`: has exactly the names that pyfuse3's session uses."""

    ClosedResourceError = trio.ClosedResourceError
    Lock = _OneReader

    def __init__(self, workers: Workers) -> None:
        self.lowlevel = _Lowlevel(workers)
        self.open_nursery = workers.session
