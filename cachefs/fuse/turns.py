"""Fewer rounds of the loop per request: what pyfuse3 takes from trio, with the common case cheap.

pyfuse3 hands a lock from worker task to worker task before each request, which costs two rounds of
trio's loop where a handler answers at once. It looks up `trio` in its own module (its asyncio mode
replaces that name, too), so `TrioForPyfuse3` can stand there: the worker that has answered goes on
reading, the next one is woken when a handler is about to wait (`Turns.wake`) or a worker ends.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

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


class Turns:
    """Which worker waits for the next request; the others are parked."""

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()
        self._taken = False
        self._in_a_row = 0
        self._poll: select.poll | None = None
        self._patience = Patience()

    def wake(self) -> None:
        """A handler is about to wait: somebody else must read the next request."""
        self._in_a_row = 0
        self._lot.unpark()

    async def __aenter__(self) -> None:
        while self._taken:
            await self._lot.park()
        self._taken = True

    async def __aexit__(self, *_: object) -> None:
        self._taken = False

    async def wait_readable(self, fd: int) -> None:
        """Until there is a request. After an answer it looks for the next one for a moment: a
        caller that reads on is back within microseconds."""
        if self._in_a_row and self._in_a_row < REQUESTS_PER_ROUND and self._is_readable(fd):
            self._in_a_row += 1
            return
        self._in_a_row = 0
        await trio.lowlevel.wait_readable(fd)
        self._in_a_row = 1

    def _is_readable(self, fd: int) -> bool:
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)
        look = self._poll.poll
        found = any(look(0) for _ in range(self._patience.looks()))
        self._patience.learn(found)
        return found

    def worker_ended(self) -> None:
        """The others find out why."""
        self._lot.unpark_all()


class _Lowlevel:
    """Stands for `trio.lowlevel`."""

    def __init__(self, turns: Turns) -> None:
        self.wait_readable = turns.wait_readable
        self.current_task = trio.lowlevel.current_task
        self.current_trio_token = trio.lowlevel.current_trio_token
        self.notify_closing = trio.lowlevel.notify_closing


class _Nursery:
    """Stands for a nursery of workers."""

    def __init__(self, nursery: trio.Nursery, turns: Turns) -> None:
        self._nursery = nursery
        self._turns = turns

    def start_soon(
        self, worker: Callable[..., Awaitable[None]], *arguments: Any, name: str | None = None
    ) -> None:
        async def work() -> None:
            try:
                await worker(*arguments)
            finally:
                self._turns.worker_ended()

        self._nursery.start_soon(work, name=name)


class _OpenNursery:
    def __init__(self, turns: Turns) -> None:
        self._manager = trio.open_nursery()
        self._turns = turns

    async def __aenter__(self) -> _Nursery:
        return _Nursery(await self._manager.__aenter__(), self._turns)

    async def __aexit__(self, *details: Any) -> bool | None:
        return await self._manager.__aexit__(*details)


class TrioForPyfuse3:
    """Stands for the module `trio`: exactly what pyfuse3's session uses of it."""

    ClosedResourceError = trio.ClosedResourceError

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.lowlevel = _Lowlevel(turns)

    def Lock(self) -> Turns:
        return self.turns

    def open_nursery(self) -> _OpenNursery:
        return _OpenNursery(self.turns)
