"""The disk of one tier: its directory and index, their threads and health. Owned by the loop."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from cachefs.core.errors import Interrupted, Unavailable
from worker.runtime.threads import LoopCallbackQueue, Threads
from worker.store.directory import TierDirectory
from worker.store.filesystem import reopen
from worker.store.ownership import ANOTHER
from worker.store.writer import Writer
from worker.tier.health import Health

START_LIMIT_S: Final = 20.0
TIER_WAIT_S: Final = 5.0  # for a short call to the tier's disk

T = TypeVar("T")


def _ignore(result: Any) -> None:
    pass


def _close_each(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _reopen_and_close(fd: int) -> int:
    try:
        return reopen(fd)
    finally:
        os.close(fd)


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def no_answer() -> OSError:
    """Returns the error for callers that wait for a disk that hangs."""
    return OSError(errno.ETIMEDOUT, "the disk does not answer")


class TierDisk:
    """The disk of one tier. `epoch` is the sync epoch in which records are written now. `outside`:
    calls by other tiers' threads. `closers` close files in memory: these closes wait for no disk
    and no source."""

    def __init__(self, directory: TierDirectory, threads: Threads, wake: LoopCallbackQueue) -> None:
        self.directory = directory
        self.writer = Writer(directory.index)
        self.threads = threads
        self.closers = Threads("close", 1, wake)
        self.wake = wake
        self.health = Health()
        self.epoch = directory.header.epoch
        self.outside: set[Hashable] = set()
        self._closing: list[int] = []  # descriptors, all in one call of a thread
        self._left = _new_future()  # done while out of service

    def leave_service(self, cause: str) -> None:
        """Takes the tier out of service: waits by `call` and `unless_left` end."""
        self.health.left(cause)
        self._left.set_result(None)

    def return_to_service(self) -> None:
        """Returns the tier to service: its disk answers again."""
        self.health.returned()
        self._left = _new_future()

    async def unless_left(
        self, work: asyncio.Future[T], limit_s: float | None = TIER_WAIT_S
    ) -> asyncio.Future[T] | None:
        """Returns `work` once it is done; None as soon as the tier is out of service, or after
        `limit_s`. The work continues, then and when the caller is cancelled."""
        ends: list[asyncio.Future[Any]] = [work, self._left]
        await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        return work if work.done() else None

    async def call(
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
        call = self.threads.run(function, *args, discard=discard)
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
        if in_memory or self.directory.reopens_at_once:
            return reopen(fd)
        if not self.health.in_service:
            raise no_answer()  # before a descriptor exists, which no caller would close
        return await self.call(_reopen_and_close, os.dup(fd), discard=os.close)

    def close_later(self, fd: int) -> None:
        """Closes a descriptor of a file of the tier, without waiting for it."""
        if not self._closing:
            asyncio.get_running_loop().call_soon(self._close_all)
        self._closing.append(fd)

    def close_memory(self, fd: int) -> None:
        """Closes the last descriptor of a file in memory, in a thread that does nothing else."""

        def done(_: object, error: BaseException | None) -> None:
            if isinstance(error, Interrupted):  # the threads have ended
                os.close(fd)

        self.closers.submit(os.close, fd, done=done)

    def _close_all(self) -> None:
        fds, self._closing = self._closing, []

        def done(_: object, error: BaseException | None) -> None:
            if isinstance(error, Interrupted):  # the threads have ended
                _close_each(fds)

        self.threads.submit(_close_each, fds, done=done)

    def close_named(self, fd: int) -> None:
        """Closes a descriptor of a tier's file with a name, perhaps the last one. In memory the
        close does not block, and takes less time than a hand-over to a thread."""
        if self.directory.in_memory:
            os.close(fd)
        else:
            self.close_later(fd)

    def close(self, fd: int) -> None:
        """Closes a descriptor that is not the last one of its file, at once where the close cannot
        block."""
        if self.directory.reopens_at_once:
            os.close(fd)
        else:
            self.close_later(fd)


async def take_directory(disk: Threads, path: str) -> TierDirectory:
    """Returns the tier, without waiting for ever for a disk that hangs."""
    taking = disk.run(TierDirectory.take, path, discard=TierDirectory.close)
    try:
        async with asyncio.timeout(START_LIMIT_S):
            return await taking
    except TimeoutError as err:
        raise Unavailable(
            f"the disk of the cache directory has not answered for {START_LIMIT_S:g} s",
            remedy=f"see to that disk, or {ANOTHER}",
            path=path,
        ) from err
    finally:
        if not taking.done() or taking.cancelled() or taking.exception() is not None:
            disk.close(0.0)
