"""Threads for calls of a library that cannot time out. A caller leaves a call that hangs. The
number of threads that are lost in such calls is bounded."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from cachefs.core.errors import CacheFSError, Unreachable
from connectors.deadline import bounded

T = TypeVar("T")
THREADS: Final = 64
MOST_LOST: Final = 16


class Call(Generic[T]):
    """One call. Its owner waits for it, any number of times, or abandons it."""

    def __init__(self, act: Callable[[], T], until_s: float) -> None:
        self._act = act
        self._until_s = until_s
        self.done = threading.Event()
        self.is_lost = False  # a waiter left it; guarded by the lock of `CallThreads`
        self.discard: Callable[[T | None], object] | None = None
        self._outcome: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Runs the call. An error is raised by `result`, in the thread of the owner."""
        try:
            with bounded(self._until_s):
                self._outcome.append(self._act())
        except BaseException as error:  # noqa: BLE001  (raised again by `result`)
            self._error = error

    def result(self) -> T:
        """Returns the result of a call that is done, or raises its error."""
        if self._error is not None:
            raise self._error
        return self._outcome[0]

    def throw_away(self, discard: Callable[[T | None], object]) -> None:
        """Gives the result, which no caller waits for, to `discard`; None if the call failed."""
        with contextlib.suppress(CacheFSError):
            discard(self._outcome[0] if self._outcome else None)


class CallThreads:
    """At most `threads` threads in calls that a caller waits for, and at most `threads + most_lost`
    in all. With `most_lost` lost threads no call is started: it fails at once. Thread-safe. The
    threads are daemons: the end of the process does not wait for a call that hangs."""

    def __init__(self, threads: int = THREADS, most_lost: int = MOST_LOST) -> None:
        self._lock = threading.Lock()
        self._free = threading.Semaphore(threads)
        self._most_lost = most_lost
        self._idle: list[queue.SimpleQueue[Call[Any] | None]] = []
        self.lost = 0  # threads in calls that were left
        self._closed = False

    def start(self, act: Callable[[], T], until_s: float, *, waits: bool = True) -> Call[T]:
        """Starts a call; waits for a free thread until `until_s` (`time.monotonic`), or not at all.
        Raises Unreachable if no thread is free."""
        self._check()
        wait_s = max(0.0, min(until_s - time.monotonic(), 1e6)) if waits else 0.0
        if not self._free.acquire(timeout=wait_s):
            raise Unreachable("every thread for calls of the client library is busy")
        call = Call(act, until_s)
        try:
            self._check()
            self._hand_over(call)
        except BaseException:
            self._free.release()
            raise
        return call

    def wait(self, call: Call[T], until_s: float) -> T:
        """Returns the result of a call. Raises its error, or Unreachable at `until_s`. The call
        then continues, and may be waited for again."""
        if not call.done.wait(max(0.0, min(until_s - time.monotonic(), 1e6))):
            with self._lock:
                if not call.done.is_set():
                    self._lose(call)
                    raise Unreachable("the origin did not answer in time")
        return call.result()

    def run(self, act: Callable[[], T], until_s: float, discard: Callable[[T | None], object]) -> T:
        """Returns the result of `act`, or raises as `start` and `wait` do. A late result is
        given to `discard`, in the call's thread."""
        call = self.start(act, until_s)
        try:
            return self.wait(call, until_s)
        except Unreachable:
            self.abandon(call, discard)
            raise

    def abandon(self, call: Call[T], discard: Callable[[T | None], object]) -> None:
        """Gives the result of a call to `discard`: now, or when it arrives. The call's owner waits
        for it no more."""
        with self._lock:
            call.discard = discard
            if not call.done.is_set():
                self._lose(call)
                return
        call.throw_away(discard)

    def close(self) -> None:
        """Ends the idle threads; every other one ends after its call. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for jobs in idle:
            jobs.put(None)

    def _check(self) -> None:
        if self.lost >= self._most_lost:
            cause = f"{self.lost} calls of the client library hang: no more are started"
            raise Unreachable(cause, remedy="they end when the origin answers again")
        if self._closed:
            raise Unreachable("the connector is closed")

    def _lose(self, call: Call[Any]) -> None:
        if not call.is_lost:
            call.is_lost = True
            self.lost += 1
            self._free.release()

    def _hand_over(self, call: Call[Any]) -> None:
        with self._lock:
            jobs = self._idle.pop() if self._idle else None
        if jobs is None:
            jobs = queue.SimpleQueue()
            start_thread(lambda: self._work(jobs), "connector-call")
        jobs.put(call)

    def _work(self, jobs: queue.SimpleQueue[Call[Any] | None]) -> None:
        while (call := jobs.get()) is not None:
            call.run()
            if not self._finish(call, jobs):
                return
            del call

    def _finish(self, call: Call[Any], jobs: queue.SimpleQueue[Call[Any] | None]) -> bool:
        """Ends a call, and returns whether its thread may get another one. A thread that was lost
        ends, since another one has its place."""
        with self._lock:
            call.done.set()
            discard = call.discard  # set later, `abandon` itself throws the result away
            goes_on = not (call.is_lost or self._closed)
            self.lost -= call.is_lost
            if goes_on:
                self._idle.append(jobs)
        if not call.is_lost:
            self._free.release()
        if discard is not None:
            call.throw_away(discard)
        return goes_on


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Starts a daemon thread. Raises Unreachable if the system refuses another one: requests can
    succeed when other threads have ended."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise Unreachable("no thread can be started") from error
    return thread
