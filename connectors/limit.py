"""Limits towards one origin: requests in flight, requests per second, body bytes per second.

A body counts as in flight until it was read to its end, failed or was closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from cachefs.core.errors import DeadlineExceeded
from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector
from connectors.decorator import Decorator
from connectors.fetch.request import Ask
from connectors.until import until

T = TypeVar("T")
BURST_S: Final = 1.0  # an idle bucket holds what comes in this time


class Limits(msgspec.Struct, frozen=True):
    """0: no limit."""

    in_flight: int = 512  # more than small reads and threads of a node make together
    requests_per_s: float = 0.0
    bytes_per_s: float = 0.0


class TokenBucket:
    """A rate with a burst of one second. `take` books tokens and says how long to wait for them, so
    that waiting callers are served in order. Thread-safe, reads no clock."""

    def __init__(self, rate_per_s: float, now: float) -> None:
        self._rate = rate_per_s
        self._level = rate_per_s * BURST_S
        self._at = now
        self._lock = threading.Lock()

    def take(self, tokens: float, now: float) -> float:
        """Seconds to wait before going on; 0.0 when there is room."""
        with self._lock:
            gained = max(0.0, now - self._at) * self._rate
            self._level = min(self._rate * BURST_S, self._level + gained) - tokens
            self._at = max(self._at, now)
            return max(0.0, -self._level / self._rate)


class Limit(Decorator):
    """Waits before a request until the limits allow it. It waits for a free place until the
    caller's deadline (`connectors.until`), and at most for `wait_limit_s`."""

    def __init__(
        self,
        inner: Connector,
        limits: Limits,
        *,
        wait_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._sleep = sleep
        self._wait_limit_s = wait_limit_s
        self._places = threading.BoundedSemaphore(limits.in_flight) if limits.in_flight else None
        now = clock()
        requests, size = limits.requests_per_s, limits.bytes_per_s
        self._requests = TokenBucket(requests, now) if requests else None
        self._bytes = TokenBucket(size, now) if size else None

    def _around(self, verb: str, act: Callable[[], T]) -> T:
        self._enter()
        try:
            return act()
        finally:
            self._leave()

    def _body(self, open_body: Callable[[], Body]) -> Body:
        self._enter()
        try:
            return LimitedBody(open_body(), self._spend, self._leave)
        except BaseException:
            self._leave()
            raise

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        data = super().read_all(path, version)
        self._spend(len(data))
        return data

    def ask(self, path: bytes, version: Fingerprint) -> Ask | None:
        """None where there is a rate, or no place: who sends such requests waits for nothing."""
        if self._requests or self._bytes or not self._enter_at_once():
            return None
        ask = None
        try:
            ask = super().ask(path, version)
        finally:
            if ask is None:
                self._leave()
        return ask and ask.also(lambda _size, _error: self._leave())

    def _enter_at_once(self) -> bool:
        return self._places is None or self._places.acquire(blocking=False)

    def _enter(self) -> None:
        """Takes a place, then a token: a caller who waits for a token keeps others from piling up
        behind the origin's rate."""
        wait_s = max(0.0, min(self._wait_limit_s, until() - self._clock()))
        if self._places and not self._places.acquire(timeout=wait_s):
            raise DeadlineExceeded(f"no free request to the origin in {wait_s:.3g} s")
        self._pause(self._requests, 1)

    def _leave(self) -> None:
        if self._places:
            self._places.release()

    def _spend(self, size_bytes: int) -> None:
        self._pause(self._bytes, size_bytes)

    def _pause(self, bucket: TokenBucket | None, tokens: float) -> None:
        wait_s = bucket.take(tokens, self._clock()) if bucket else 0.0
        if wait_s > 0:
            self._sleep(wait_s)


class LimitedBody:
    """A body that pays for its chunks and gives its place back once."""

    def __init__(
        self, inner: Body, spend: Callable[[int], None], leave: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._spend = spend
        self._leave: Callable[[], None] | None = leave
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[memoryview]:
        try:
            for chunk in self._inner:
                self._spend(len(chunk))
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        with self._lock:
            leave, self._leave = self._leave, None
        self._inner.close()
        if leave:
            leave()

    def __del__(self) -> None:
        self.close()
