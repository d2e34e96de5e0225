"""The limit of requests in flight to one origin.

A body counts as in flight until it is read to its end, fails or is closed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from cachefs.core.errors import DeadlineExceeded
from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector
from connectors.deadline import until
from connectors.decorator import Decorator
from connectors.fetch.request import RangeRequest

T = TypeVar("T")
IN_FLIGHT: Final = 512  # exceeds the small reads and threads of a node together


class Limit(Decorator):
    """A connector with at most `in_flight` requests in flight. A further request waits until the
    caller's deadline (`connectors.deadline`), at most `wait_limit_s`, then raises
    DeadlineExceeded."""

    def __init__(
        self,
        inner: Connector,
        in_flight: int = IN_FLIGHT,
        *,
        wait_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._wait_limit_s = wait_limit_s
        self._in_flight = in_flight
        # The free places. A semaphore runs Python code and holds a lock, in which the garbage
        # collector may return the place of a body that was not closed.
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(in_flight):
            self._release()

    def _release(self) -> None:
        """Returns a place. Raises ValueError if all are free: one was returned twice, and the limit
        would grow."""
        if self._slots.qsize() >= self._in_flight:
            raise ValueError("a place of the limit was returned twice")
        self._slots.put(None)

    def _around(self, verb: str, act: Callable[[], T]) -> T:
        self._acquire()
        try:
            return act()
        finally:
            self._release()

    def _body(self, open_body: Callable[[], Body]) -> Body:
        self._acquire()
        try:
            return LimitedBody(open_body(), self._release)
        except BaseException:
            self._release()
            raise

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        """Returns None if the limit is reached, since the sender of small reads must not block."""
        try:
            self._slots.get_nowait()
        except queue.Empty:
            return None
        ask = None
        try:
            ask = self._inner.ask(path, offset, size, version)
        finally:
            if ask is None:
                self._release()
        if ask is not None:
            ask.also(lambda _size, _error: self._release())
        return ask

    def _acquire(self) -> None:
        wait_s = max(0.0, min(self._wait_limit_s, until() - self._clock()))
        try:
            self._slots.get(timeout=wait_s)
        except queue.Empty:
            cause = f"no request slot to the origin was free in {wait_s:.3g} s"
            raise DeadlineExceeded(cause) from None


class LimitedBody:
    """A body that releases its slot once."""

    def __init__(self, inner: Body, release: Callable[[], None]) -> None:
        self._inner = inner
        self._release: Callable[[], None] | None = release
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[memoryview]:
        try:
            yield from self._inner
        finally:
            self.close()

    def close(self) -> None:
        with self._lock:
            release, self._release = self._release, None
        self._inner.close()
        if release:
            release()

    def __del__(self) -> None:
        self.close()
