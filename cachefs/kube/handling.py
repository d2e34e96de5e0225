"""Handles the objects of a queue, some at a time, until it is cancelled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cachefs.core.errors import CacheFSError, Stale
from cachefs.kube.facts import Facts
from cachefs.kube.steps import RETRY
from cachefs.kube.work_queue import Item, Queue

log = logging.getLogger(__name__)

STALE_S: Final = 0.2  # until the watch has the newer version; doubled each time
MOST_WAIT_S: Final = 3600.0
Handle = Callable[[Item], Awaitable[float]]


class Handling:
    """One queue and its handler. `handle` returns when the object is due again: 0 is when it is
    added; `RETRY` is later with each failure, as after an error. Belongs to one event loop."""

    def __init__(
        self, handle: Handle, slots: int, facts: Facts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._handle = handle
        self._slots = asyncio.Semaphore(slots)
        self._facts = facts
        self._clock = clock
        self._queue = Queue()
        self._added = asyncio.Event()

    def add(self, item: Item, after_s: float = 0.0) -> None:
        """Makes an object due."""
        self._queue.add(item, self._clock() + after_s)
        self._added.set()

    def __len__(self) -> int:
        return len(self._queue)

    async def run(self) -> None:
        """Handles objects. Ends only by cancellation, which cancels the handlers, or by an error
        that is no CacheFSError."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._slots.acquire()
                group.create_task(self._handled(await self._next()))

    async def _next(self) -> Item:
        while True:
            self._added.clear()
            now = self._clock()
            item = self._queue.take(now)
            if item is not None:
                return item
            left_s = min(MOST_WAIT_S, self._queue.next_at() - now)
            try:
                async with asyncio.timeout(left_s):
                    await self._added.wait()
            except TimeoutError:
                continue

    async def _handled(self, item: Item) -> None:
        try:
            after_s, result = await self._result(item)
        finally:
            self._slots.release()
        self._facts.handled[(item.kind, result)] += 1
        now = self._clock()
        if result == Stale.code:
            self._queue.failed(item, now, STALE_S)
        elif after_s == RETRY:
            self._queue.failed(item, now)
        else:
            self._queue.done(item, now, after_s)
        self._added.set()

    async def _result(self, item: Item) -> tuple[float, str]:
        """Returns when the object is due again, and how it went."""
        try:
            after_s = await self._handle(item)
        except Stale:
            return RETRY, Stale.code
        except CacheFSError as err:
            log.warning("%s %s/%s: %s", *item, err.one_line())
            return RETRY, err.code
        return after_s, "waits" if after_s == RETRY else "ok"
