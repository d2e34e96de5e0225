"""Long polls for invalidations: polls at one position share one reader of the stream.

The more polls wait, and the sooner events follow each other, the longer a reader gathers events
before it replies, so that a burst of changes costs only part of a core. A reader ends when its last
poll ends. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from cachefs.core.cluster import Events
from cachefs.core.errors import Unavailable
from cachefs.core.messages import Invalidate

MAX_WAIT_S: Final = 50.0
EVENTS_AT_ONCE: Final = 200
GATHER_S: Final = 0.25  # at most
GATHER_EACH_S: Final = 0.0003  # for each waiting poll but the first
BUSY_S: Final = 0.05  # a reader that ends so soon after another one gathers for longer
GATHER_BUSY_S: Final = 0.04


class EventSource(Protocol):
    """The stream of a namespace."""

    @property
    def position(self) -> int: ...
    def events(self, after: int) -> AsyncIterator[Invalidate]: ...


class EventPolls:
    """The long polls of one stream."""

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._readers: dict[int, _Reader] = {}
        self._ended_at = -BUSY_S

    @property
    def waiting(self) -> int:
        return sum(reader.waiting for reader in self._readers.values())

    async def poll(self, after: int, wait_s: float) -> Events:
        """Returns the events after a position (negative: the present one), or none at the end of
        the wait. Raises PositionGone, or Unavailable when the master stops."""
        if after < 0:
            after = self._source.position
        reader = self._readers.get(after)
        if reader is None or reader.task.done():
            reader = _Reader(after, self._source.events(after), self._ended, self._gather_s)
            self._readers[after] = reader
        return await reader.wait(max(0.0, min(wait_s, MAX_WAIT_S)))

    async def close(self) -> None:
        """Ends all polls with Unavailable."""
        tasks = [reader.task for reader in self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _gather_s(self, waiting: int) -> float:
        """Returns for how long a reader gathers after its first event."""
        busy = asyncio.get_running_loop().time() - self._ended_at < BUSY_S
        return min(GATHER_S, GATHER_EACH_S * (waiting - 1) + (GATHER_BUSY_S if busy else 0.0))

    def _ended(self, reader: _Reader) -> None:
        self._ended_at = asyncio.get_running_loop().time()
        if self._readers.get(reader.after) is reader:
            del self._readers[reader.after]


class _Reader:
    """The reader from one position of the stream, and the number of polls that wait for it."""

    def __init__(
        self,
        after: int,
        stream: AsyncIterator[Invalidate],
        ended: Callable[[_Reader], None],
        gather_s: Callable[[int], float],
    ) -> None:
        self.after = after
        self.waiting = 0
        self._ended = ended
        self._gather_s = gather_s
        self.task = asyncio.ensure_future(self._read(stream))
        self.task.add_done_callback(lambda _: ended(self))

    async def wait(self, wait_s: float) -> Events:
        self.waiting += 1
        try:
            await asyncio.wait([self.task], timeout=wait_s)
        finally:
            self.waiting -= 1
            is_over = self.task.done()
            if not is_over and not self.waiting:
                self._ended(self)  # a poll before the task ends starts another reader
                self.task.cancel()
        if not is_over:
            return Events([], self.after)
        if self.task.cancelled():
            raise Unavailable("the master is ending")
        return self.task.result()

    async def _read(self, stream: AsyncIterator[Invalidate]) -> Events:
        """Returns the next event and those soon after it. Waits for the first without limit."""
        events: list[Invalidate] = []
        step = asyncio.ensure_future(_step(stream))
        try:
            await asyncio.wait([step])
            await asyncio.sleep(self._gather_s(self.waiting))
            while step.done() and (event := step.result()) is not None:
                events.append(event)
                if len(events) == EVENTS_AT_ONCE:
                    break
                step = asyncio.ensure_future(_step(stream))
                await asyncio.sleep(0)
        finally:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        if not events:
            raise Unavailable("the master is ending")
        return Events(events, events[-1].seq)


async def _step(stream: AsyncIterator[Invalidate]) -> Invalidate | None:
    return await anext(stream, None)
