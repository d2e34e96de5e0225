"""What the parts of one worker share: the tier, its ledger, threads, counters, clocks."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from cachefs.core.model import NamespaceId
from cachefs.core.services import MetadataService
from connectors.base import Connector
from worker.config import Clocks, WorkerConfig
from worker.state.accounting import Ledger
from worker.state.eviction import EvictionOrder
from worker.state.health import Health
from worker.store.tier import Tier
from worker.store.writer import Writer
from worker.threads import Threads, Wake


@dataclass(slots=True)
class Counters:
    """What happened since the start. Figures in bytes where the name says so, else events."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    origin_requests: int = 0
    origin_bytes: int = 0
    refused: int = 0
    evicted_files: collections.Counter[str] = field(default_factory=collections.Counter)
    evicted_bytes: int = 0
    freed_files: int = 0
    verified: int = 0
    bad_pages: int = 0
    fills_in_flight: int = 0
    errors: collections.Counter[str] = field(default_factory=collections.Counter)


class Tasks:
    """The tasks of one worker: each is owned here until it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a task of the worker failed", "exception": task.exception()}
            )

    async def close(self) -> None:
        """Cancels all and waits for their ends."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Signal:
    """Wakes everybody who waits for a change. Waits are bounded."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, timeout_s: float) -> None:
        """Returns after a change or the time-out, whichever is first."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)


@dataclass(slots=True)
class Parts:
    """`epoch` is the sync epoch in which records are written now. `order_known`: `order` has every
    content with a record."""

    config: WorkerConfig
    clocks: Clocks
    tier: Tier
    writer: Writer
    ledger: Ledger
    order: EvictionOrder
    wake: Wake
    fetchers: Threads
    disk: Threads
    metadata: Callable[[NamespaceId], MetadataService]
    connector_for: Callable[[NamespaceId, str], Connector]
    epoch: int
    order_known: bool = False
    health: Health = field(default_factory=Health)
    counters: Counters = field(default_factory=Counters)
    tasks: Tasks = field(default_factory=Tasks)
    room_changed: Signal = field(default_factory=Signal)

    def wall_s(self) -> int:
        return int(self.clocks.wall())

    async def within(self, work: Awaitable[Any], seconds: float) -> Any:
        """The result, or TimeoutError."""
        return await asyncio.wait_for(work, seconds)
