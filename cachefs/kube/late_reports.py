"""Events that are reported beside the work, so that no pod waits for the events of others."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from cachefs.kube.events import Event
from cachefs.kube.reporter import Reporter

log = logging.getLogger(__name__)

MOST: Final = 10_000  # events; of more, the oldest are not reported


class LateReports:
    """The events that wait, oldest first. Belongs to one event loop. A controller that ends loses
    those that are left."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._events: deque[Event] = deque()
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event) -> None:
        if len(self._events) == MOST:
            self._events.popleft()
            log.warning("more than %d events wait: the oldest is not reported", MOST)
        self._events.append(event)
        self._added.set()

    async def run(self) -> None:
        """Reports events, one after the other, until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._events:
                await self._reporter.report([self._events.popleft()])
