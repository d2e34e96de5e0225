"""The threads that send pages. Threads that hang in a disk call do not count: new threads replace
them, up to the same number again. Owned by the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Final

from worker.runtime.threads import LoopCallbackQueue, Threads

SENDERS: Final = 32
LOOK_S: Final = 1.0
STUCK_S: Final = 5.0  # more than the receiver can delay a call (`sending.PATIENCE_S`)


class Senders:
    """The pool of sender threads, ended by `close`. A task calls `look` every `LOOK_S`."""

    def __init__(self, count: int = SENDERS, clock: Callable[[], float] = time.monotonic) -> None:
        loop = asyncio.get_running_loop()
        self.threads = Threads("send", count, LoopCallbackQueue(loop))
        self._clock = clock
        self._since: dict[Hashable, float] = {}
        self._stuck = 0
        self._watching = loop.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> int:
        """Counts the stuck threads, adjusts the pool, and returns the count."""
        now = self._clock()
        self._since = {call: self._since.get(call, now) for call in self.threads.calls()}
        stuck = sum(now - since_s >= STUCK_S for since_s in self._since.values())
        if stuck != self._stuck:
            self._stuck = stuck
            self.threads.count_out(stuck)
        return stuck

    async def close(self, wait_s: float) -> None:
        """Ends the threads; waits up to `wait_s` for calls in progress."""
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.to_thread(self.threads.close, wait_s)
