"""The loader of one namespace: polls its master for tasks, executes them in this node's cache, and
reports the outcomes. Executes the actions of `worker.loads.schedule`. Owned by the loop.

A poll that fails is retried; tasks in progress continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from cachefs.core.cluster import Work, Worked
from cachefs.core.errors import CacheFSError, Interrupted, NotFound
from cachefs.core.jobs import FileFailure, Room, TaskKind
from worker.cache.load_requests import MISSING, Load, Loaded
from worker.loads import schedule as s
from worker.runtime.clocks import Clocks
from worker.runtime.tasks import Tasks
from worker.store.holds import Hold
from worker.tier.admission import NoRoom
from worker.tier.over_quota import OverQuota

if TYPE_CHECKING:
    from worker.cache.loading import CacheLoading

log = logging.getLogger(__name__)

ROOM_S: Final = 2.0  # the age at which the cache use is measured again
GATE_S: Final = 1.0  # between checks whether the job of a throttled load still runs

AskForWork = Callable[[Work], Awaitable[Worked]]


class Loader:
    """The loader, from `start` to `close`. A closed loader cannot start again."""

    def __init__(
        self, cache: CacheLoading, ask: AskForWork, worker: str, clocks: Clocks | None = None
    ) -> None:
        """`ask` sends a poll to the master; in an embedded server it is the master's own method.
        `worker`: this node's id at the master."""
        self._cache = cache
        self._ask = ask
        self._clock = (clocks or Clocks()).monotonic
        self._state = s.LoadSchedule(worker)
        self._loop = asyncio.get_running_loop()
        self._events: list[s.Event] = []
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._tasks = Tasks()
        self._room: Room | None = None
        self._room_at_s = 0.0
        self._measuring: asyncio.Task[Room] | None = None
        self.counters = {"files": 0, "failed_files": 0, "fetched_bytes": 0}

    def start(self) -> None:
        """Polls for the first tasks."""
        self._post(s.WakeDue())

    async def close(self) -> None:
        """Ends the polls without reporting the tasks in progress: the master assigns them again,
        to another worker or to the next run of this one. Idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def status(self) -> dict[str, int]:
        """Returns plain values for operators."""
        return {**self.counters, "files_in_hand": self._state.files}

    # ---- events and actions ----

    def _post(self, event: s.Event) -> None:
        """Queues an event. The events of one turn of the loop are handled together, in the next."""
        if not self._events and not self._is_closed:
            self._loop.call_soon(self._pump)
        self._events.append(event)

    def _pump(self) -> None:
        if self._is_closed:
            return
        events, self._events = self._events, []
        now = self._clock()
        actions = self._state.handle_all(events, now)
        for action in actions:
            self._act(action)
        self._wake_at(self._state.wake_at_s, now)

    def _wake_at(self, at_s: float, now: float) -> None:
        """Sets the timer, unless it fires earlier: an early `Tick` is harmless."""
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
            self._timer = None
        if at_s < float("inf"):
            self._timer_at_s = at_s
            self._timer = self._loop.call_later(max(0.0, at_s - now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._post(s.WakeDue())

    def _act(self, action: s.Action) -> None:
        match action:
            case s.LoadFile():
                self._bring(action)
            case s.PollMaster(work):
                self._tasks.start(self._poll(work))
            case s.Check():
                self._tasks.start(self._check(action))
            # The loads of a dropped task end at their gate, or soon complete.

    async def _poll(self, work: Work) -> None:
        progress = self._state.progress(self._cache.cached_bytes)
        work = msgspec.structs.replace(work, progress=progress)
        event: s.Event
        try:
            event = s.PollAnswered(await self._ask(work))
        except CacheFSError as err:
            log.debug("the poll for tasks failed: %s", err.one_line())
            event = s.Unanswered()
        self._state.capacity_bytes = self._cache.capacity()
        self._post(event)

    # ---- loads ----

    def _bring(self, bring: s.LoadFile) -> None:
        task, place = bring.task, bring.place

        def on_fetched() -> None:
            self._post(s.FileFetched(bring.id, place))

        def on_ended(loaded: Loaded) -> None:
            self._ended(bring, loaded)

        async def gate(size_bytes: int) -> None:
            await self._pass(bring.id, place, size_bytes)

        hold = Hold(task.hold_until_s, task.hold_read) if task.hold_until_s else None
        origin, block = bring.file.origin, bring.file.block
        gates = gate if s.is_large(bring.file) else None
        self._cache.load(Load(origin, block, hold, gates, on_fetched, on_ended))

    async def _pass(self, id: int, place: int, size_bytes: int) -> None:
        """Waits until a request may be sent. Raises Interrupted if the task was dropped."""
        while self._state.wants(id):
            wait_s = self._state.wait_s(id, self._clock())
            if wait_s <= 0:
                return self._state.charge(id, place, size_bytes, self._clock())
            await asyncio.sleep(min(wait_s, GATE_S))
        raise Interrupted("the load job no longer runs")

    def _ended(self, bring: s.LoadFile, loaded: Loaded) -> None:
        self.counters["files"] += loaded.error is None
        self.counters["failed_files"] += loaded.error is not None
        self.counters["fetched_bytes"] += loaded.fetched_bytes
        if isinstance(loaded.error, NoRoom):
            self._tasks.start(self._no_room(bring, loaded))
        else:
            failure = _failure(bring.place, loaded.error)
            self._post(s.FileEnded(bring.id, bring.place, loaded.fetched_bytes, failure))

    async def _no_room(self, bring: s.LoadFile, loaded: Loaded) -> None:
        room = await self._cache_use()
        failure = _failure(bring.place, loaded.error)
        self._post(s.FileEnded(bring.id, bring.place, loaded.fetched_bytes, failure, room))

    async def _cache_use(self) -> Room:
        """Returns the cache use, at most `ROOM_S` old: many files may find no space at once."""
        if self._measuring is not None:
            return await asyncio.shield(self._measuring)
        if self._room is None or self._clock() - self._room_at_s > ROOM_S:
            self._measuring = self._tasks.start(self._cache.room())
            try:
                self._room = await asyncio.shield(self._measuring)
            finally:
                self._measuring = None
            self._room_at_s = self._clock()
        return self._room

    # ---- checks ----

    async def _check(self, check: s.Check) -> None:
        look = self._cache.verify if check.task.kind is TaskKind.VERIFY else self._cache.check
        try:
            missing = await look(check.task.files)
            cause = "it is not complete in the cache"
        except OSError as err:
            missing = [*range(len(check.task.files))]
            cause = f"cannot read the cache disk: {err.strerror or err}"
        self._post(s.Checked(check.id, [FileFailure(place, MISSING, cause) for place in missing]))


def _failure(place: int, error: CacheFSError | None) -> FileFailure | None:
    """Returns the failure as reported to the master: a removed file as NotFound, not as Stale."""
    if error is None:
        return None
    if isinstance(error, OverQuota):
        return FileFailure(place, error.code, error.one_line(), error.full)
    code = NotFound.code if isinstance(error.__cause__, NotFound) else error.code
    return FileFailure(place, code, error.cause)
