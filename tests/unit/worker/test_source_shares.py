"""The share of a source: its calls leave threads to other sources, and all of them are made."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cachefs.core.model import NamespaceId
from worker.fill.source_shares import SourceShares
from worker.runtime.threads import LoopCallbackQueue, Threads

LIMIT_S = 20.0
ONE = NamespaceId(b"n" * 16), "one"
OTHER = NamespaceId(b"n" * 16), "other"


def made() -> SourceShares:
    return SourceShares(Threads("test", 4, LoopCallbackQueue(asyncio.get_running_loop())))


@pytest.mark.parametrize("behind", [False, True])
def test_a_source_takes_its_share_and_all_its_calls_are_made(behind: bool) -> None:
    async def script() -> None:
        shares, go_on = made(), threading.Event()
        try:
            held = [shares.run(ONE, go_on.wait, LIMIT_S, behind=behind) for _ in range(20)]
            assert not shares.has_room(ONE)
            assert shares.has_room(OTHER)
            other = shares.run(OTHER, lambda: "done", behind=False)
            assert await asyncio.wait_for(other, LIMIT_S) == "done"
            assert not any(future.done() for future in held)
            go_on.set()
            assert await asyncio.wait_for(asyncio.gather(*held), LIMIT_S) == [True] * 20
            assert shares.has_room(ONE)
            assert not shares._running
            assert not shares._later
        finally:
            go_on.set()
            assert shares.threads.close(LIMIT_S)

    asyncio.run(script())


def test_stuck_threads_do_not_use_up_the_share() -> None:
    async def script() -> None:
        shares, go_on = made(), threading.Event()
        try:
            stuck = [shares.run(ONE, go_on.wait, LIMIT_S, behind=False) for _ in range(3)]
            later = [shares.run(ONE, lambda: "done", behind=False) for _ in range(5)]
            shares.count_out(3, cause="disk")
            assert await asyncio.wait_for(asyncio.gather(*later), LIMIT_S) == ["done"] * 5
            assert not any(future.done() for future in stuck)
            shares.count_out(0, cause="disk")
            go_on.set()
            assert await asyncio.wait_for(asyncio.gather(*stuck), LIMIT_S) == [True] * 3
        finally:
            go_on.set()
            assert shares.threads.close(LIMIT_S)

    asyncio.run(script())
