"""The common parts of one tier: the directory, its ledger, threads, counters, clocks."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cachefs.core.errors import Interrupted, Unavailable
from cachefs.core.model import NamespaceId
from cachefs.core.services import MetadataService
from cachefs.core.units import format_size
from worker.runtime.clocks import Clocks
from worker.runtime.memory import MemoryBudget
from worker.runtime.tasks import Signal, Tasks
from worker.runtime.threads import LoopCallbackQueue, Threads
from worker.stats.arrivals import LastPageTimes
from worker.stats.by_path import PathTally
from worker.stats.counters import Counters
from worker.stats.slowest import Slowest
from worker.store.directory import TierDirectory
from worker.store.filesystem import reopen
from worker.store.holds import Hold
from worker.store.writer import Writer
from worker.tier.config import WorkerConfig
from worker.tier.eviction_order import EvictionOrder
from worker.tier.health import Health
from worker.tier.ledger import Ledger
from worker.tier.quotas import Charges, Quotas
from worker.tier.rules import Rules

log = logging.getLogger(__name__)

START_LIMIT_S: Final = 20.0
TIER_WAIT_S: Final = 5.0  # for a short call to the tier's disk

T = TypeVar("T")
IsOwned = Callable[[bytes, int, int], bool]


def _ignore(result: Any) -> None:
    pass


def _ignore_all(*what: Any) -> None:
    pass


def _close_each(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _reopen_and_close(fd: int) -> int:
    try:
        return reopen(fd)
    finally:
        os.close(fd)


def _new_tally() -> PathTally:
    return PathTally(random.randrange)


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def no_answer() -> OSError:
    """Returns the error for callers that wait for a disk that hangs."""
    return OSError(errno.ETIMEDOUT, "the disk does not answer")


@dataclass(frozen=True, slots=True)
class Shared:
    """The common parts of a process's tiers. `is_owned(key, size, replicas)` returns whether this
    node owns any block of the content (key: 36 bytes); None: it owns everything. `came(key, size,
    replicas)` is called when something of a content with several owners is recorded;
    `owners_changed()` when contents have more owners than before."""

    memory: MemoryBudget
    is_owned: IsOwned | None = None
    quotas: Quotas = field(default_factory=Quotas)
    came: Callable[[bytes, int, int], None] = _ignore_all
    owners_changed: Callable[[], None] = _ignore_all
    arrivals: LastPageTimes = field(default_factory=LastPageTimes)


@dataclass(slots=True)
class Parts:
    """`epoch` is the sync epoch in which records are written now. `order_known`: `order` has every
    content with a record."""

    config: WorkerConfig
    clocks: Clocks
    tier: TierDirectory
    writer: Writer
    ledger: Ledger
    order: EvictionOrder
    wake: LoopCallbackQueue
    disk: Threads
    closers: Threads  # close files in memory: behind no disk and no source
    metadata: Callable[[NamespaceId], MetadataService]
    memory: MemoryBudget
    epoch: int
    is_owned: IsOwned | None = None
    order_known: bool = False
    outside: set[Hashable] = field(default_factory=set)  # calls to the disk by other tiers' threads
    counted_metadata_bytes: int = 0  # of the memory budget, for this tier
    counted_tier_bytes: int = 0
    health: Health = field(default_factory=Health)
    counters: Counters = field(default_factory=Counters)
    paths: PathTally = field(default_factory=_new_tally)
    slowest: Slowest = field(default_factory=Slowest)
    tasks: Tasks = field(default_factory=Tasks)
    room_changed: Signal = field(default_factory=Signal)
    closing: list[int] = field(default_factory=list)  # descriptors, all in one call of a thread
    came: Callable[[bytes, int, int], None] = _ignore_all
    owners_changed: Callable[[], None] = _ignore_all
    charges: Charges = field(default_factory=lambda: Charges(Quotas()))
    arrivals: LastPageTimes = field(default_factory=LastPageTimes)
    rules: Rules = field(default_factory=Rules)
    left: asyncio.Future[None] = field(default_factory=_new_future)  # done while out of service

    def wall_s(self) -> int:
        return int(self.clocks.wall())

    def owns(self, key: bytes, size_bytes: int) -> bool:
        """Returns whether this node owns a block of the content."""
        return self.is_owned is None or self.is_owned(key, size_bytes, self.rules.replicas(key))

    def set_aside(self, key: bytes, hold: Hold) -> None:
        """A content is not named for eviction while it is held."""
        deadline_s = hold.deadline_s(self.clocks.wall(), self.clocks.monotonic())
        if deadline_s:
            self.order.hold(key, deadline_s, though_read=hold.though_read)

    # ---- the tier's disk ----

    def leave_tier(self, cause: str) -> None:
        """Takes the tier out of service: waits by `ask_disk` and `unless_left` end."""
        self.health.left(cause)
        self.left.set_result(None)

    def return_to_tier(self) -> None:
        """It answers again."""
        self.health.returned()
        self.left = _new_future()

    async def unless_left(
        self, work: asyncio.Future[T], limit_s: float | None = TIER_WAIT_S
    ) -> asyncio.Future[T] | None:
        """Returns `work` once it is done; None as soon as the tier is out of service, or after
        `limit_s`. The work continues, then and when the caller is cancelled."""
        ends: list[asyncio.Future[Any]] = [work, self.left]
        await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        return work if work.done() else None

    async def ask_disk(
        self,
        function: Callable[..., T],
        *args: Any,
        discard: Callable[[T], None] = _ignore,
        limit_s: float | None = TIER_WAIT_S,
    ) -> T:
        """Calls a function that uses the tier's disk, in a thread. A result without a waiter is
        passed to `discard`. Raises OSError, `no_answer` when the disk hangs."""
        if not self.health.in_service:
            raise no_answer()
        call = self.disk.run(function, *args, discard=discard)
        try:
            done = await self.unless_left(call, limit_s)
        except asyncio.CancelledError:
            if not call.cancel() and call.exception() is None:
                discard(call.result())
            raise
        if done is None:
            call.cancel()
            raise no_answer()
        return done.result()

    async def reopen(self, fd: int, *, in_memory: bool = False) -> int:
        """Returns a read-only descriptor of the same file, see `filesystem.reopen`. The caller may
        close `fd` before this returns. Raises OSError."""
        if in_memory or self.tier.reopens_at_once:
            return reopen(fd)
        if not self.health.in_service:
            raise no_answer()  # before there is a descriptor that nobody would close
        return await self.ask_disk(_reopen_and_close, os.dup(fd), discard=os.close)

    def close_later(self, fd: int) -> None:
        """Closes a descriptor of a file of the tier, without waiting for it."""
        if not self.closing:
            asyncio.get_running_loop().call_soon(self._close_all)
        self.closing.append(fd)

    def close_memory(self, fd: int) -> None:
        """Closes the last descriptor of a file in memory, in a thread that does nothing else."""

        def done(_: object, error: BaseException | None) -> None:
            if isinstance(error, Interrupted):  # the threads have ended
                os.close(fd)

        self.closers.submit(os.close, fd, done=done)

    def _close_all(self) -> None:
        fds, self.closing = self.closing, []

        def done(_: object, error: BaseException | None) -> None:
            if isinstance(error, Interrupted):  # the threads have ended
                _close_each(fds)

        self.disk.submit(_close_each, fds, done=done)

    def close_named(self, fd: int) -> None:
        """Closes a descriptor of a tier's file with a name, perhaps the last one. In memory the
        close does not block, and takes less time than a hand-over to a thread."""
        if self.tier.in_memory:
            os.close(fd)
        else:
            self.close_later(fd)

    def close(self, fd: int) -> None:
        """Closes a descriptor that is not the last one of its file, at once where the close cannot
        block."""
        if self.tier.reopens_at_once:
            os.close(fd)
        else:
            self.close_later(fd)

    # ---- waits ----

    @staticmethod
    async def within(work: Awaitable[Any], seconds: float) -> Any:
        """The result, or TimeoutError."""
        async with asyncio.timeout(seconds):
            return await work


async def take_tier(disk: Threads, path: str) -> TierDirectory:
    """Returns the tier, without waiting for ever for a disk that hangs."""
    taking = disk.run(TierDirectory.take, path, discard=TierDirectory.close)
    try:
        async with asyncio.timeout(START_LIMIT_S):
            return await taking
    except TimeoutError as err:
        raise Unavailable(
            f"the disk of the cache directory has not answered for {START_LIMIT_S:g} s",
            remedy="see to that disk, or give another --cache-dir",
            path=path,
        ) from err
    finally:
        if not taking.done() or taking.cancelled() or taking.exception() is not None:
            disk.close(0.0)


def make_parts(
    config: WorkerConfig,
    clocks: Clocks,
    tier: TierDirectory,
    disk: Threads,
    wake: LoopCallbackQueue,
    metadata: Callable[[NamespaceId], MetadataService],
    shared: Shared,
) -> Parts:
    """Returns the parts of a new tier, over a directory that this process has taken."""
    ledger = Ledger(_limit_bytes(config, tier, shared.memory))
    ledger.cached_bytes = tier.cached_at_start_bytes
    return Parts(
        config=config,
        clocks=clocks,
        tier=tier,
        writer=Writer(tier.index),
        ledger=ledger,
        order=config.order(owned_last=shared.is_owned is not None),
        wake=wake,
        disk=disk,
        closers=Threads("close", 1, wake),
        metadata=metadata,
        memory=shared.memory,
        epoch=tier.header.epoch,
        is_owned=shared.is_owned,
        came=shared.came,
        owners_changed=shared.owners_changed,
        charges=Charges(shared.quotas),
        arrivals=shared.arrivals,
    )


def _limit_bytes(config: WorkerConfig, tier: TierDirectory, memory: MemoryBudget) -> int:
    """Returns the limit of the cache. A cache in memory respects the memory limit, too."""
    if not tier.in_memory:
        return config.limit_bytes
    limit_bytes = memory.take_tier(config.limit_bytes)
    if limit_bytes < config.limit_bytes:
        log.info(
            "the cache is memory: it is limited to %s, as the memory limit is %s",
            format_size(limit_bytes),
            format_size(memory.limit_bytes),
        )
    return limit_bytes
