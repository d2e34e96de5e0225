"""Calls to a tier's disk for another tier, by separate threads and with a time limit: a disk that
hangs blocks only them."""

from __future__ import annotations

import contextlib
import errno
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from worker.tier.disk import TierDisk, no_answer

MOST_THREADS: Final = 4
CALL_S: Final = 5.0

T = TypeVar("T")


class GivenUp(OSError):
    """Raised when the disk does not answer; the call is still in progress."""


class _Call(Generic[T]):
    """A call that its caller may give up: the later of its end and that discards the result."""

    def __init__(self, function: Callable[[], T], discard: Callable[[T | None], None]) -> None:
        self.done = threading.Event()
        self._function = function
        self._discard = discard
        self._lock = threading.Lock()
        self._given_up = False
        self._result: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Runs the call, in a thread of the disk."""
        try:
            self._result = self._function()
        except BaseException as err:  # noqa: BLE001 -- handed to the waiting caller
            self._error = err
        with self._lock:
            self.done.set()
            if self._given_up:
                self._discard(self._result if self._error is None else None)

    def result(self) -> T:
        """Returns the result after the wait. Raises its error; GivenUp if no result is there
        yet."""
        with self._lock:
            self._given_up = not self.done.is_set()
            if self._given_up:
                raise GivenUp(*no_answer().args)
        if self._error is not None:
            raise self._error
        return self._result


class DiskReader:
    """Threads that are started when they are needed and end with the process, at the latest."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._closed = False

    def call(
        self, disk: TierDisk, function: Callable[[], T], discard: Callable[[T | None], None]
    ) -> T:
        """The result of a blocking call to that tier's disk. From any thread. Raises what it
        raises, GivenUp after `CALL_S`: `discard` is called once, when nothing uses any more what
        the call was given, with the result, or None where it failed or never began. The tier stays
        open while the call is in its `outside`."""
        call = _Call(function, discard)
        disk.outside.add(call)
        try:
            if disk.directory.in_memory and not self._closed:
                return function()
            if not self._begin(call):
                discard(None)
                cause = "the worker is closing" if self._closed else "no thread is left"
                raise GivenUp(errno.ESHUTDOWN, cause)
            call.done.wait(CALL_S)
            return call.result()
        finally:
            disk.outside.discard(call)

    def _begin(self, call: _Call[Any]) -> bool:
        with self._lock:  # behind what ends the threads, nobody would take it
            if self._closed:
                return False
            if len(self._threads) < MOST_THREADS and not self._idle.acquire(blocking=False):
                name = f"tier-read-{len(self._threads)}"
                self._start(threading.Thread(target=self._work, name=name, daemon=True))
            if self._threads:
                self._calls.put(call)
        return bool(self._threads)

    def _start(self, thread: threading.Thread) -> None:
        with contextlib.suppress(RuntimeError):  # the system has none left
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call
            self._idle.release()

    def close(self) -> None:
        """Ends the threads, those that are stuck when the disk lets them; no call begins any
        more."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._calls.put(None)
