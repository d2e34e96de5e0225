"""The stream of a master's invalidations to a node: long polls, call-backs for events and gaps."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Final

from cachefs.core import cluster as c
from cachefs.core.errors import CacheFSError, NotFound, PositionGone
from cachefs.core.messages import Invalidate
from worker.membership.master_client import MasterClient

log = logging.getLogger(__name__)

WAIT_S: Final = 10.0  # of one long poll, at the master
SPARE_S: Final = 5.0  # for the transfer of the request and the reply
PAUSE_S: Final = 0.5  # after a failure


class Stream:
    """The stream from the position in `greeted` on. `on_events` receives the events in order.
    `on_gap(seq)` is called if events were lost, or if the master's store was restarted: it may be
    an older copy, which positions do not reveal. `intact` is False from a failure until the stream
    has caught up."""

    def __init__(
        self,
        master: MasterClient,
        greeted: c.Greeted,
        on_events: Callable[[list[Invalidate]], None],
        on_gap: Callable[[int], None],
    ) -> None:
        self.seq = greeted.seq
        self.store_run = greeted.store_run  # to which `seq` belongs
        self.intact = True
        self.replaced = False  # the master serves another namespace
        self._master = master
        self._namespace = greeted.namespace
        self._on_events = on_events
        self._on_gap = on_gap
        self._moved = asyncio.Event()

    async def reach(self, seq: int, within_s: float) -> bool:
        """Waits up to `within_s` for the events up to a position. Returns whether they arrived."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.seq < seq:
                    await self._moved.wait()
        return self.seq >= seq

    def heard_run(self, store_run: int) -> None:
        """Calls `on_gap` if another reply of the master named a new store run. The next reply to
        this stream's own poll then moves the position."""
        if store_run != self.store_run:
            self._on_gap(self.seq)

    async def run(self) -> None:
        """Polls until cancelled."""
        while True:
            try:
                await self._next()
            except PositionGone as err:
                log.warning("%s: dropping all cached names of the master", err.cause)
                await self._restart()
            except CacheFSError as err:
                self._broken(err)
                await asyncio.sleep(PAUSE_S * (0.5 + random.random()))

    async def _next(self) -> None:
        wait_s = WAIT_S if self.intact else 0.0  # after a failure the reply must not wait
        request = c.GetEvents(self._namespace, self.seq, wait_s, self.store_run)
        reply = await self._master.ask(request, c.Events, answer_s=wait_s + SPARE_S, reach_s=0)
        if reply.store_run != self.store_run:
            log.info("the master was restarted: dropping all cached names")
            return await self._restart()
        if reply.events:
            self._on_events(reply.events)
        if not self.intact:
            log.info("invalidations from the master arrive again")
        self.intact, self.replaced = True, False
        self._move(reply.seq)

    async def _restart(self) -> None:
        """Takes the master's current position, then reports the gap: later events are received."""
        try:
            greeted = await self._master.ask(c.Greeting(), c.Greeted, answer_s=SPARE_S, reach_s=0)
        except CacheFSError as err:
            return self._broken(err)
        if greeted.namespace != self._namespace:
            return self._broken(NotFound("the master serves another namespace"))
        self.store_run = greeted.store_run
        self._on_gap(greeted.seq)
        self._move(greeted.seq)

    def _move(self, seq: int) -> None:
        self.seq = seq
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _broken(self, err: CacheFSError) -> None:
        if isinstance(err, NotFound) and not self.replaced:
            self.replaced = True
            log.error("%s: mounts of it must be mounted again", err.cause)
        elif self.intact:
            log.warning("no invalidations from the master for now: %s", err.one_line())
        self.intact = False
