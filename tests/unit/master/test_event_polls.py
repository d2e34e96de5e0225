"""Long polls for invalidations that come and go at one position."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cachefs.core.messages import Invalidate
from cachefs.core.model import NamespaceId
from master.server.streams import EventPolls


class Source:
    """A stream in which nothing happens until `event` is set."""

    position = 7

    def __init__(self) -> None:
        self.happened = asyncio.Event()

    async def events(self, after: int) -> AsyncIterator[Invalidate]:
        await self.happened.wait()
        yield Invalidate(NamespaceId(b"n" * 16), after + 1)


def test_who_asks_just_when_the_last_one_left_waits_for_news() -> None:
    async def script() -> None:
        source = Source()
        polls = EventPolls(source)
        assert (await polls.poll(7, 0.0)).events == []
        waiting = asyncio.ensure_future(polls.poll(7, 30.0))
        await asyncio.sleep(0.01)
        source.happened.set()
        assert [event.seq for event in (await waiting).events] == [8]
        await polls.close()

    asyncio.run(asyncio.wait_for(script(), 10))
