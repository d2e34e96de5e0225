"""The running membership: its record in the store, its clock, and the waits for the next view.

No caller gets a view before the record with this view is durable. All methods belong to one event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cachefs.core.cluster import HEARTBEAT_S, LOST_AFTER_S, Beaten, Register, WorkerRow
from cachefs.core.errors import CacheFSError
from cachefs.core.messages import Done
from cachefs.core.placement import View
from master.state.member_record import RECORD_KEY, decode_record, encode_record
from master.state.membership import TICK_S, Event, Membership, Outcome, Tick
from master.store.base import Store, Table

log = logging.getLogger(__name__)

MAX_WAIT_S: Final = 50.0  # of a wait for the next view


async def _nothing() -> None:
    pass


class Members:
    """The membership recorded in `store`. Awaits `on_set_back` before any reply if a worker knows
    a later state of the store. The constructor blocks for a read, and raises BadConfig."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        lost_after_s: float = LOST_AFTER_S,
        on_set_back: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._store = store
        self._on_set_back = on_set_back
        self._is_set_back = False  # until `on_set_back` has ended
        self._clock = clock
        with store.snapshot() as reader:
            value = reader.get(Table.MEMBERS, RECORD_KEY)
        record = None if value is None else decode_record(value)
        self._membership = Membership(clock(), record, lost_after_s)
        self.heartbeat_s = lost_after_s * HEARTBEAT_S / LOST_AFTER_S  # sent to the workers
        self._view = self._membership.view  # the last one that is durable
        self.unsettled_since_s = time.time() if self._view.before else 0.0  # wall clock; 0: settled
        self._decided = self._durable = 0  # changes of the record
        self._saving: asyncio.Task[None] | None = None
        self._next = asyncio.Event()
        self._ticks: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the workers' clocks. Recorded workers get their full time until they are lost."""
        self._note(self._membership.handle(Tick(), self._clock()))
        self._ticks = asyncio.ensure_future(self._tick())

    async def close(self) -> None:
        """Saves all decisions. Waits for a view then end with the present one. Idempotent."""
        ticks, self._ticks = self._ticks, None
        if ticks is not None:
            ticks.cancel()
            await asyncio.gather(ticks, return_exceptions=True)
        try:
            await self._save()
        except CacheFSError as err:
            log.warning("the workers could not be recorded: %s", err.one_line())
        self._wake()

    @property
    def view(self) -> View:
        return self._view

    def rows(self) -> list[WorkerRow]:
        return self._membership.rows(self._clock())

    def counts(self) -> dict[str, int]:
        return self._membership.counts()

    async def register(self, event: Register) -> View:
        """Returns the first view of the worker. Raises what `handle` raises."""
        await self.handle(event)
        return self._view

    async def handle(self, event: Event) -> View | Beaten | Done:
        """Returns the reply once its content is durable. Raises the errors of `Membership.handle`,
        and of the store (NoSpace, Unavailable): the worker repeats the call."""
        outcome = self._membership.handle(event, self._clock())
        self._note(outcome)
        self._is_set_back |= outcome.set_back
        if self._is_set_back:
            await self._on_set_back()
            self._is_set_back = False
        if not _tells_nothing(outcome):
            await self._save()
        return outcome.answer

    async def later_view(self, after: int, wait_s: float) -> View:
        """Returns a view with an epoch above `after`, or the present one at the end of the wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(wait_s, MAX_WAIT_S))):
                while self._view.epoch <= after and self._ticks is not None:
                    await self._next.wait()
        return self._view

    def _note(self, outcome: Outcome) -> None:
        for note in outcome.notes:
            log.info("%s", note)
        if outcome.save:
            self._decided += 1
        if outcome.changed:
            _log_view(self._membership.view)

    async def _save(self) -> None:
        """Waits until all decisions so far are durable."""
        decided = self._decided
        while self._durable < decided:
            if self._saving is None:
                self._saving = asyncio.ensure_future(self._save_now())
            await asyncio.shield(self._saving)

    async def _save_now(self) -> None:
        decided, view = self._decided, self._membership.view
        value = encode_record(self._membership.record())
        try:
            await asyncio.wrap_future(
                self._store.write(lambda w: w.put(Table.MEMBERS, [(RECORD_KEY, value)]))
            )
        finally:
            self._saving = None
        self._durable = decided
        if view != self._view:
            if not (view.before and self._view.before):
                self.unsettled_since_s = time.time() if view.before else 0.0
            self._view = view
            self._wake()

    def _wake(self) -> None:
        waiting, self._next = self._next, asyncio.Event()
        waiting.set()

    async def _tick(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.handle(Tick())
                await self._save()
                failing = False
            except CacheFSError as err:
                if not failing:
                    log.warning("the workers cannot be recorded: %s", err.one_line())
                failing = True


def _tells_nothing(outcome: Outcome) -> bool:
    """Returns whether the reply has no content that a crash could undo."""
    return isinstance(outcome.answer, Beaten) and outcome.answer.view is None


def _log_view(view: View) -> None:
    count = len(view.members)
    owning = "1 worker owns blocks" if count == 1 else f"{count} workers own blocks"
    moving = f"; they move from places among {len(view.before)}" if view.before else ""
    log.info("epoch %d: %s%s", view.epoch, owning, moving)
