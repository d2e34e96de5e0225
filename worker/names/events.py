"""The last `KEPT` invalidations of one namespace: one stream in, one reader for each session of the
node. A reader that falls further behind gets PositionGone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final

from cachefs.core.errors import PositionGone
from cachefs.core.messages import Invalidate

KEPT: Final = 4096


class EventLog:
    """The log of one namespace. `publish` and the readers belong to one event loop."""

    def __init__(self) -> None:
        self._events: deque[Invalidate] = deque(maxlen=KEPT)
        self._published = 0  # the number of events since the start
        self._last_dropped = -1  # the `seq` of the last event that is no longer kept
        self._arrived = asyncio.Event()
        self._closed = False

    def publish(self, events: list[Invalidate]) -> None:
        for event in events:
            if len(self._events) == KEPT:
                self._last_dropped = self._events[0].seq
            self._events.append(event)
        self._published += len(events)
        self._wake()

    def close(self) -> None:
        """Ends all readers."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    async def after(self, seq: int) -> AsyncIterator[Invalidate]:
        """Yields the events after a position of the master (negative: from now on), until `close`.
        Raises PositionGone if some of them are no longer kept."""
        taken = self._published if seq < 0 else self._place(seq)
        while not self._closed:
            arrived = self._arrived
            for event in self._since(taken):
                taken += 1
                yield event
            if taken == self._published and not self._closed:
                await arrived.wait()

    def after_nowait(self, seq: int) -> list[Invalidate]:
        """Returns the events after a position. Raises PositionGone as `after`."""
        return self._since(self._place(seq))

    def _place(self, seq: int) -> int:
        if seq < self._last_dropped:
            raise PositionGone(f"event {seq} is no longer kept")
        newer = sum(1 for event in self._events if event.seq > seq)
        return self._published - newer

    def _since(self, taken: int) -> list[Invalidate]:
        oldest = self._published - len(self._events)
        if taken < oldest:
            raise PositionGone("the reader fell too far behind the events")
        return [*islice(self._events, taken - oldest, None)]
