"""The invalidations of one namespace for every session of a node: one stream in, many readers out.
Keeps the last `KEPT` of them; a reader that falls further behind starts anew.
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
    """`publish` and readers belong to one event loop."""

    def __init__(self) -> None:
        self._events: deque[Invalidate] = deque(maxlen=KEPT)
        self._published = 0  # how many events there were
        self._last_gone = -1  # the `seq` of the last event that is not kept any more
        self._arrived = asyncio.Event()
        self._closed = False

    def publish(self, events: list[Invalidate]) -> None:
        for event in events:
            if len(self._events) == KEPT:
                self._last_gone = self._events[0].seq
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
        """Events behind a position of the master (negative: from now on), until `close`. Raises
        PositionGone when some of them are not kept any more."""
        taken = self._published if seq < 0 else self._place(seq)
        while not self._closed:
            arrived = self._arrived
            for event in self._since(taken):
                taken += 1
                yield event
            if taken == self._published and not self._closed:
                await arrived.wait()

    def _place(self, seq: int) -> int:
        if seq < self._last_gone:
            raise PositionGone(f"event {seq} is not kept any more")
        newer = sum(1 for event in self._events if event.seq > seq)
        return self._published - newer

    def _since(self, taken: int) -> list[Invalidate]:
        oldest = self._published - len(self._events)
        if taken < oldest:
            raise PositionGone("too slow for the events")
        return [*islice(self._events, taken - oldest, None)]
