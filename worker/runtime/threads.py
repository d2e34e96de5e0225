"""Threads for blocking calls of one event loop. Unlike an executor, several results wake the loop
once.

The callers of `submit` and `run` bound the queue (requests in flight, fills in flight); `count`
bounds the threads.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from cachefs.core.errors import Interrupted
from worker.runtime.log_backoff import LogBackoff

log = logging.getLogger(__name__)

T = TypeVar("T")
SHARE: Final = 0.75  # of the threads: for background calls, and for those of one source
START_AGAIN_S: Final = 0.5  # after the system had no thread left


def keep(result: Any) -> None:
    """Is the `discard` of a result that owns no resources."""


Done = Callable[[Any, BaseException | None], None]  # the result or the error


class _Call:
    __slots__ = ("args", "done", "function")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], done: Done) -> None:
        self.function = function
        self.args = args
        self.done = done


class LoopCallbackQueue:
    """The queue of calls to the loop, run in order, several per wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: collections.deque[tuple[Callable[..., None], tuple[Any, ...]]] = (
            collections.deque()
        )
        self._awake = False  # `_run` is scheduled

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Queues a call, from any thread. Calls are dropped once the loop is closed."""
        # No lock: a call is queued before the flag is read, and the flag is cleared before the
        # queue is emptied. At worst the loop wakes up without a call.
        self._calls.append((function, args))
        if self._awake:
            return
        self._awake = True
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # the loop is closed
            pass

    def call_from_loop(self, function: Callable[..., None], *args: Any) -> None:
        """Queues a call, as `call` does, from the loop: it needs no wake-up, which takes 8 us."""
        self._calls.append((function, args))
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._awake = False
        calls = self._calls
        try:
            for _ in range(len(calls)):
                function, args = calls.popleft()
                function(*args)
        finally:
            if calls and not self._awake:  # a call raised
                self._awake = True
                self._loop.call_soon(self._run)


class BackgroundCalls:
    """Background calls, which must not delay readers. They take at most `most` threads at once, and
    one more for each that is stuck; the others are queued here. For the loop only."""

    def __init__(self, threads: Threads, most: int) -> None:
        self._threads = threads
        self._most = most
        self._stuck = 0
        self._running = 0
        self._later: collections.deque[_Call] = collections.deque()

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs a call, as `Threads.run` does."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(function, *args, done=functools.partial(settle, future, keep))
        return future

    def submit(self, function: Callable[..., Any], *args: Any, done: Done) -> None:
        """Runs a call, as `Threads.submit` does."""
        self._later.append(_Call(function, args, done))
        self._begin_some()

    def count_out(self, stuck: int) -> None:
        """Sets the number of threads that are stuck."""
        self._stuck = stuck
        self._begin_some()

    def _begin_some(self) -> None:
        while self._later and self._running < self._most + self._stuck:
            call = self._later.popleft()
            self._running += 1
            done = functools.partial(self._ended, call.done)
            self._threads.submit(call.function, *call.args, done=done)

    def _ended(self, done: Done, result: Any, error: BaseException | None) -> None:
        self._running -= 1
        self._begin_some()
        done(result, error)


class Threads:
    """Up to `count` threads, started on demand; up to twice as many while some are stuck."""

    def __init__(self, name: str, count: int, wake: LoopCallbackQueue) -> None:
        self._name = name
        self._count = self._most = count
        self._stuck: dict[str, int] = {}  # by cause
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._live = 0  # threads without a request to end; for the loop only
        self._waiting = 0  # calls queued or running; for the loop only
        self._running: set[_Call] = set()
        self._lock = threading.Lock()  # no call is queued after `close`
        self._closed = False
        self._lacks_threads = False  # another try to start one is scheduled
        self._pace = LogBackoff()
        self._share = max(1, int(count * SHARE))
        self.share = self._share  # most threads of one source; one more for each that is stuck
        self.behind = BackgroundCalls(self, self._share)

    async def call(self, function: Callable[..., T], *args: Any, discard: Callable[[T], None]) -> T:
        """Runs a call whose result owns resources, and returns the result. If the caller is
        cancelled, at any moment, `discard` gets the result to release them."""
        future = self.run(function, *args, discard=discard)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                discard(future.result())
            raise

    def run(
        self, function: Callable[..., T], *args: Any, discard: Callable[[T], None] = keep
    ) -> asyncio.Future[T]:
        """Runs a call in a thread. If the future is cancelled, `discard` gets the call's result."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit(function, *args, done=functools.partial(settle, future, discard))
        return future

    def submit(self, function: Callable[..., Any], *args: Any, done: Done) -> None:
        """Runs a call in a thread, and then `done(result, None)` or `done(None, error)` in the
        loop. After `close` the call is not run, and the error is Interrupted."""
        self._waiting += 1
        with self._lock:
            if not self._closed:
                self._calls.put(_Call(function, args, done))
                if self._waiting > self._live < self._most:
                    self._start()
                return
        self._loop.call_soon(self._ended, done, None, Interrupted("the worker is closing"))

    def _start(self) -> bool:
        """Starts a thread. Returns False where the system has none left: the calls wait for those
        that run, and for another try."""
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as err:
            self._threads.remove(thread)
            self._start_later(err)
            return False
        self._live += 1
        return True

    def _start_later(self, error: RuntimeError) -> None:
        if not self._lacks_threads:
            self._lacks_threads = True
            self._loop.call_later(START_AGAIN_S, self._start_again)
            if self._pace.is_due(time.monotonic()):
                log.warning("%s: %s; trying again", self._name, error)

    def _start_again(self) -> None:
        self._lacks_threads = False
        with self._lock:
            self._start_missing()

    def _start_missing(self) -> None:
        """Starts threads for the calls that wait. The caller holds the lock."""
        while self._waiting > self._live < self._most and not self._closed:
            if not self._start():
                return

    @property
    def has_room(self) -> bool:
        """True if a call would start at once. For the loop only."""
        return self._waiting < self._most

    def calls(self) -> list[Hashable]:
        """Returns the running calls, as unique keys."""
        return [*self._running.copy()]

    def count_out(self, stuck: int, *, cause: str = "disk") -> None:
        """Sets the number of threads that are stuck for a cause, and starts as many others. The
        causes together add at most `count` threads."""
        self._stuck[cause] = stuck
        self._most = self._count + min(sum(self._stuck.values()), self._count)
        self.share = self._share + self._most - self._count
        while self._live > self._most:
            self._live -= 1
            self._calls.put(None)
        with self._lock:
            self._start_missing()
        self.behind.count_out(self._most - self._count)

    def close(self, wait_s: float) -> bool:
        """Runs the queued calls, then ends the threads. Blocks; results are still delivered.
        Returns False if a thread is still in its call after `wait_s`."""
        until = time.monotonic() + wait_s
        with self._lock:
            self._closed = True
            threads = [*self._threads]
            for _ in threads:
                self._calls.put(None)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _work(self) -> None:
        _set_batch_policy()
        while (call := self._calls.get()) is not None:
            self._running.add(call)
            result: Any = None
            error: BaseException | None = None
            try:
                result = call.function(*call.args)
            except BaseException as err:  # noqa: BLE001 -- passed to `done`
                error = err
            self._running.discard(call)
            self._wake.call(self._ended, call.done, result, error)
            del call, result, error
        self._threads.remove(threading.current_thread())

    def _ended(self, done: Done, result: Any, error: BaseException | None) -> None:
        self._waiting -= 1
        done(result, error)


def _set_batch_policy() -> None:
    """Sets SCHED_BATCH, so that a woken thread does not preempt the thread that woke it. That
    thread still holds the GIL, for which this one would only wait."""
    with contextlib.suppress(OSError):  # where a sandbox forbids it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def settle(
    future: asyncio.Future[Any],
    discard: Callable[[Any], None],
    result: Any,
    error: BaseException | None,
) -> None:
    if future.done():
        if error is None:
            discard(result)
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
