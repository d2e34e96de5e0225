"""The pace of background syncs: their share of a core, and the rate of listings of one source.

All walks of a master share one `SharedBudget`; each walk has its own `WalkPace`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType

from connectors.base import Page
from master.push.work_budget import LISTED_NAME_S, LISTING_S, WorkBudget
from master.state.listing_rate import ListingRate


class SharedBudget:
    """The work of all walks of a master. Thread-safe."""

    def __init__(self) -> None:
        self._budget = WorkBudget(time.monotonic())
        self._lock = threading.Lock()

    def spend(self, work_s: float) -> None:
        with self._lock:
            self._budget.spend(work_s, time.monotonic())

    def wait_s(self) -> float:
        with self._lock:
            return self._budget.wait_s(time.monotonic())


class WalkPace:
    """The pace of one walk (`master.manual_sync.run.Pace`), and the turn of each of its
    directories. After `stop` nothing waits."""

    def __init__(self, budget: SharedBudget, listings_per_s: float) -> None:
        self._budget = budget
        self._rate = ListingRate(listings_per_s)
        self._stopped = threading.Event()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> None:
        """Waits until a directory may be listed, and counts it."""
        while not self._ended.is_set() and (wait_s := self._wait_s()) > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._ended.wait()
            except TimeoutError:
                continue
        self._budget.spend(LISTING_S)
        self._rate.take(time.monotonic())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Does nothing: the work was counted when it was done."""

    def page(self, page: Page) -> None:
        """See `Pace`. Every page after a directory's first is one more listing."""
        self.charge(len(page.entries))
        if page.last:
            return
        while not self._stopped.is_set() and (wait_s := self._wait_s()) > 0:
            self._stopped.wait(wait_s)
        self._rate.take(time.monotonic())

    def charge(self, names: int) -> None:
        self._budget.spend(names * LISTED_NAME_S)

    def stop(self) -> None:
        """Ends all waits. Called in the event loop."""
        self._stopped.set()
        self._ended.set()

    def _wait_s(self) -> float:
        return max(self._budget.wait_s(), self._rate.wait_s(time.monotonic()))
