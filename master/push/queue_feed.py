"""One queue of events: the master reads it, compares the names of its events, and deletes them.

A message is deleted after each change that it reports is durable and announced. If the master ends
before that, the queue delivers the message again. A message that is no event of a store is not
deleted: it may be another application's.

Messages come in any order. The feed is up to date until the oldest message of a reply was sent, or,
if none came, until the request began. Messages that a failed turn or an earlier process received
are invisible for `HIDDEN_S`: the feed is not up to date before that. The last request of a process
that was killed may receive messages for `WAIT_S` more. Nor is the feed up to date after a full turn
without an event: events may wait behind messages of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from cachefs.core.errors import CacheFSError, Unavailable
from connectors.call_threads import CallThreads
from connectors.event_queue import AT_ONCE, EventQueue, QueueMessage
from master.push.queue_messages import changed_objects

T = TypeVar("T")

log = logging.getLogger("cachefs.master")

WAIT_S: Final = 10  # for the first message
HIDDEN_S: Final = 30
CALL_S: Final = 45.0
FULL_READERS: Final = 4  # requests at a time for a queue that has many messages
MOST_RECEIVED: Final = (1 + FULL_READERS) * AT_ONCE  # messages of a turn
GATHER_S: Final = 0.04  # after the messages that were there: the next replies have more in each
MOST_LOST: Final = 4  # threads in calls that were left
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
WARN_EVERY_S: Final = 600.0

Objects = Sequence[tuple[str, str]]
Compare = Callable[[Objects], Awaitable[None]]


class Turn(NamedTuple):
    """What the feed learnt in one turn. `current_at`: see the module; wall clock s."""

    current_at: float
    is_complete: bool  # no message is hidden from the feed
    received: int = 0  # messages

    @property
    def pause_s(self) -> float:
        """How long the feed pauses after this turn, if it has received all messages that were
        there: a request costs the same for one message as for ten."""
        return GATHER_S if 0 < self.received < MOST_RECEIVED else 0.0


class QueueFeed:
    """The reader of one queue. All methods belong to one event loop."""

    def __init__(
        self,
        url: str,
        queue: EventQueue,
        compare: Compare,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`compare` returns when the objects are compared, and what changed is announced."""
        self._url = url
        self._queue = queue
        self._compare = compare
        self._clock = clock
        self._threads = CallThreads(FULL_READERS + 1, MOST_LOST)
        self._hidden_until = clock() + WAIT_S + HIDDEN_S
        self._warned_at = 0.0

    async def run(
        self, done: Callable[[Turn], Awaitable[None]], failed: Callable[[CacheFSError], None]
    ) -> None:
        """Reads the queue until the task is cancelled. Calls `done` after each turn, or `failed`,
        and then pauses for a growing time."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    turn = await self.turn()
                    await done(turn)
                except CacheFSError as err:
                    failed(err)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                else:
                    pause_s = FIRST_PAUSE_S
                    await asyncio.sleep(turn.pause_s)
        finally:
            self._threads.close()
            self._queue.close()

    async def retention_s(self) -> float:
        """Returns for how long the queue keeps a message. Raises the typed errors."""
        return await self._call(self._queue.retention_s)

    async def turn(self) -> Turn:
        """Handles the messages of one request, or of several if there are many. Raises the errors
        of the queue and of `compare`; the messages are then delivered again."""
        began = self._clock()
        try:
            received, handled = await self._handle()
        except CacheFSError:
            self._hidden_until = self._clock() + HIDDEN_S
            raise
        current_at = min((one.sent_at for one in handled), default=began)
        is_covered = not handled and received >= MOST_RECEIVED
        is_complete = began >= self._hidden_until and not is_covered
        return Turn(min(current_at, began), is_complete, received)

    async def _handle(self) -> tuple[int, list[QueueMessage]]:
        """Receives, compares and deletes messages. Returns their number, and those that were
        events."""
        messages = await self._receive()
        events, handled = self._events(messages)
        if events:
            await self._compare(events)
        await self._delete([one.handle for one in handled])
        return len(messages), handled

    async def _receive(self) -> list[QueueMessage]:
        messages = await self._call(lambda: self._queue.receive(WAIT_S, HIDDEN_S))
        if len(messages) < AT_ONCE:
            return messages
        more = [self._call(lambda: self._queue.receive(0, HIDDEN_S)) for _ in range(FULL_READERS)]
        for found in await _all(more):
            messages += found
        return messages

    def _events(
        self, messages: Iterable[QueueMessage]
    ) -> tuple[list[tuple[str, str]], list[QueueMessage]]:
        """Returns the objects of the events, each once, and the messages with events."""
        objects: dict[tuple[str, str], None] = {}
        handled = []
        for message in messages:
            found = changed_objects(message.body)
            if found is None:
                self._warn()
                continue
            objects.update(dict.fromkeys(found))
            handled.append(message)
        return [*objects], handled

    def _warn(self) -> None:
        if self._clock() - self._warned_at >= WARN_EVERY_S:
            self._warned_at = self._clock()
            log.warning("%s: a message is no event of S3, and stays; use an own queue", self._url)

    async def _delete(self, handles: Sequence[str]) -> None:
        parts = [handles[at : at + AT_ONCE] for at in range(0, len(handles), AT_ONCE)]
        calls = [functools.partial(self._queue.delete, part) for part in parts]
        await _all([self._call(call) for call in calls])

    async def _call(self, act: Callable[[], T]) -> T:
        """Runs a call in a separate thread, which a cancellation or `CALL_S` abandons. Raises its
        error, or Unavailable."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def run() -> T:
            try:
                return act()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(ended.set)

        call = self._threads.start(run, time.monotonic() + CALL_S, waits=False)
        try:
            async with asyncio.timeout(CALL_S):
                await ended.wait()
        except TimeoutError:
            self._threads.abandon(call, _ignore)
            raise Unavailable(f"no answer within {CALL_S:g} s", path=self._url) from None
        except asyncio.CancelledError:
            self._threads.abandon(call, _ignore)
            raise
        return self._threads.wait(call, time.monotonic() + CALL_S)


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results of these calls. Raises an error after all have ended: until then one of
    them may receive messages, which are hidden from then on."""
    found: list[T] = []
    for one in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one
        found.append(one)
    return found


def _ignore(result: object) -> None:
    """Takes the result of a call that was abandoned."""
