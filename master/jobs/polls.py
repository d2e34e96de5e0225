"""The long polls of workers that wait for tasks: one per worker, a later one ends an earlier one.
All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio


class Polls:
    """The open long polls, by worker."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, worker: str, limit_s: float) -> bool:
        """Waits for a wake-up. Returns False after the time limit, or when a later poll of the
        same worker replaces this one."""
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
