"""Follows the invalidations of a master's namespace for a node: asks for the next ones for ever,
says what happened, and whether it hears of changes now.
"""

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

WAIT_S: Final = 10.0  # of one question, at the master
SPARE_S: Final = 5.0  # for the way there and back
PAUSE_S: Final = 0.5  # after a failure


class Stream:
    """Begins where `greeted` says. `on_events` gets the events in order; `on_gap` is called when
    some were missed for good, and when the master's store was started again: the store may be an
    earlier one, which cannot be told from positions. `intact` is False from the first failure until
    the missed ones were heard."""

    def __init__(
        self,
        master: MasterClient,
        greeted: c.Greeted,
        on_events: Callable[[list[Invalidate]], None],
        on_gap: Callable[[int], None],
    ) -> None:
        self.seq = greeted.seq
        self._store_run = greeted.store_run
        self.intact = True
        self.replaced = False  # the master has another namespace now
        self._master = master
        self._namespace = greeted.namespace
        self._on_events = on_events
        self._on_gap = on_gap
        self._moved = asyncio.Event()

    async def reach(self, seq: int, within_s: float) -> bool:
        """Waits until the events up to a position were heard; False when they were not in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.seq < seq:
                    await self._moved.wait()
        return self.seq >= seq

    def heard_run(self, store_run: int) -> None:
        """Takes the run of the store that another answer of the master named. Another run than the
        known one is a gap at once; the next answer to this stream's own question moves it on."""
        if store_run != self._store_run:
            self._on_gap(self.seq)

    async def run(self) -> None:
        """For ever; ends by cancellation."""
        while True:
            try:
                await self._next()
            except PositionGone as err:
                log.warning("%s: everything known of the master's names is forgotten", err.cause)
                await self._start_anew()
            except CacheFSError as err:
                self._broken(err)
                await asyncio.sleep(PAUSE_S * (0.5 + random.random()))

    async def _next(self) -> None:
        wait_s = WAIT_S if self.intact else 0.0  # at once after a failure
        question = c.GetEvents(self._namespace, self.seq, wait_s)
        answer = await self._master.ask(question, c.Events, answer_s=wait_s + SPARE_S, reach_s=0)
        if answer.store_run != self._store_run:
            log.info("the master was started again: what is known of its names is asked anew")
            return await self._start_anew()
        if answer.events:
            self._on_events(answer.events)
        if not self.intact:
            log.info("the master's changes are heard again")
        self.intact, self.replaced = True, False
        self._move(answer.seq)

    async def _start_anew(self) -> None:
        """The position is taken first: what happens after it is heard."""
        try:
            greeted = await self._master.ask(c.Greeting(), c.Greeted, answer_s=SPARE_S, reach_s=0)
        except CacheFSError as err:
            return self._broken(err)
        if greeted.namespace != self._namespace:
            return self._broken(NotFound("the master serves another namespace"))
        self._store_run = greeted.store_run
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
            log.warning("changes of names are not heard for now: %s", err.one_line())
        self.intact = False
