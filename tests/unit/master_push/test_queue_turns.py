"""The turns of the reader of a queue: when it pauses, as a request costs the same for one message
as for ten, and until when messages may be hidden after an error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from cachefs.core.errors import Unreachable
from connectors.event_queue import AT_ONCE, QueueMessage
from master.push.queue_feed import (
    FULL_READERS,
    GATHER_S,
    HIDDEN_S,
    MOST_RECEIVED,
    WAIT_S,
    QueueFeed,
    Turn,
)

NO_CHANGE = '{"Event": "s3:TestEvent"}'
LIMIT_S = 20.0


@pytest.mark.parametrize(
    ("received", "pause_s"),
    [(0, 0.0), (1, GATHER_S), (MOST_RECEIVED - 1, GATHER_S), (MOST_RECEIVED, 0.0)],
)
def test_messages_gather_where_none_are_left(received: int, pause_s: float) -> None:
    """After an empty reply the next request waits at the queue; a full turn has left some."""
    assert Turn(0.0, True, received).pause_s == pause_s


class JunkQueue:
    """Has only messages of others, more than one turn receives if `is_full`."""

    def __init__(self, *, is_full: bool) -> None:
        self.is_full = is_full

    def receive(self, wait_s: int, visible_after_s: int) -> list[QueueMessage]:
        count = AT_ONCE if self.is_full else AT_ONCE - 1
        return [QueueMessage("no event", str(number), 0.0) for number in range(count)]

    def delete(self, handles: Sequence[str]) -> None:
        assert not handles, "they are others'"

    def retention_s(self) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("is_full", [False, True])
def test_a_full_turn_of_others_messages_may_hide_events(is_full: bool) -> None:
    async def compare(objects: object) -> None:
        raise AssertionError("nothing has changed")

    async def script() -> None:
        now = [1000.0]
        feed = QueueFeed("queue", JunkQueue(is_full=is_full), compare, lambda: now[0])
        now[0] += WAIT_S + HIDDEN_S - 1
        assert not (await feed.turn()).is_complete, "an earlier process may have received some"
        now[0] += 1
        assert (await feed.turn()).is_complete is not is_full

    asyncio.run(script())


class FailingQueue:
    """Has many messages at first. Of the requests for the rest one fails at once, and the others
    are answered when the test lets them."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.all_wait = threading.Barrier(FULL_READERS)  # the test's thread is one of them
        self._lock = threading.Lock()
        self._calls = 0

    def receive(self, wait_s: int, visible_after_s: int) -> list[QueueMessage]:
        with self._lock:
            self._calls += 1
            call = self._calls
        if call == 1:
            return [QueueMessage(NO_CHANGE, str(number), 0.0) for number in range(AT_ONCE)]
        if call == 2:
            raise Unreachable("the queue does not answer")
        if call <= 1 + FULL_READERS:
            self.all_wait.wait(LIMIT_S)
            assert self.go_on.wait(LIMIT_S)
        return []

    def delete(self, handles: Sequence[str]) -> None:
        raise AssertionError("the turn has failed")

    def retention_s(self) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing is open."""


def test_messages_of_requests_beside_one_that_fails_are_hidden() -> None:
    """Since the last of their replies: the feed is not up to date before they are visible again."""

    async def compare(objects: object) -> None:
        raise AssertionError("nothing has changed")

    async def script() -> None:
        now, queue = [1000.0], FailingQueue()
        feed = QueueFeed("queue", queue, compare, lambda: now[0])
        turn = asyncio.ensure_future(feed.turn())
        await asyncio.to_thread(queue.all_wait.wait, LIMIT_S)
        assert not (await asyncio.wait([turn], timeout=0.2))[0], "some requests are in progress"
        now[0] += 20.0
        queue.go_on.set()
        with pytest.raises(Unreachable):
            await turn
        now[0] += HIDDEN_S - 1
        assert not (await feed.turn()).is_complete
        now[0] += 1
        assert (await feed.turn()).is_complete

    asyncio.run(script())
