"""The threads for requests to origins. One source takes a part of them only: a silent one holds up
no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from master.tree import Mount

T = TypeVar("T")


class OriginThreads:
    """At most `most` threads, and `each` of them for one source. Belongs to one event loop."""

    def __init__(self, name: str, most: int, each: int) -> None:
        self._name = name
        self._each = each
        self._pool = ThreadPoolExecutor(most, name)

    async def run(self, mount: Mount | None, act: Callable[[], T]) -> T:
        """Runs a request in a thread, and returns its result. After a cancellation the thread
        goes on, and counts for its source until it ends. None: the request is of no source yet."""
        if mount is None:
            return await asyncio.wrap_future(self._pool.submit(act))
        loop = asyncio.get_running_loop()
        turns = mount.turns.setdefault(self._name, asyncio.Semaphore(self._each))
        await turns.acquire()
        work = self._pool.submit(act)
        work.add_done_callback(lambda _: _call_in(loop, turns.release))
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """Starts no further request, and waits for none."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _call_in(loop: asyncio.AbstractEventLoop, release: Callable[[], None]) -> None:
    """Calls a function in a loop, from any thread; does nothing if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(release)
