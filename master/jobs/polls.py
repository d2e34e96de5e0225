"""Workers that wait for tasks: one question each, a later one ends an earlier one's wait. All
methods belong to one event loop.
"""

from __future__ import annotations

import asyncio


class Polls:
    """Who waits."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, worker: str, limit_s: float) -> bool:
        """Until there may be news; False when the time is over, or another question of the same
        worker came."""
        earlier = self._waiting.get(worker)
        mine = self._waiting[worker] = asyncio.Event()
        if earlier is not None:
            earlier.set()
        try:
            async with asyncio.timeout(limit_s):
                await mine.wait()
        except TimeoutError:
            return False
        finally:
            is_last = self._waiting.get(worker) is mine
            if is_last:
                del self._waiting[worker]
        return is_last

    def wake(self) -> None:
        for event in self._waiting.values():
            event.set()
