"""Retries of requests to an origin: exponential backoff with full jitter, and a deadline for the
whole call. Only `retryable` errors are retried, and only here. The caller's deadline
(`connectors.deadline`) ends the retries too.

A body is retried up to its first bytes. If it fails later it raises BadBody or Unreachable, and the
caller requests the pages it lacks. `read_all` is retried as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import SystemRandom
from typing import Final, TypeVar

from cachefs.core.errors import CacheFSError
from connectors.base import Body, Connector
from connectors.deadline import until
from connectors.decorator import Decorator

T = TypeVar("T")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
CHECK_DEADLINE_S: Final = 5.0  # of `check`, for which an operator waits at a terminal


def pause_s(attempt: int, jitter: float) -> float:
    """Returns the backoff after the failure of attempt 0, 1, …; `jitter` is uniform in [0, 1)."""
    return jitter * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt, 16)))


class Retry(Decorator):
    """A connector that retries each request until `deadline_s` after its first attempt, then raises
    the last error. The deadline does not interrupt an attempt; the adapter's timeouts bound it."""

    def __init__(
        self,
        inner: Connector,
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: Callable[[], float] | None = None,
    ) -> None:
        """`clock` is monotonic, in seconds; `rng` is uniform in [0, 1)."""
        super().__init__(inner)
        self._deadline_s = deadline_s
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or SystemRandom().random

    def _around(self, verb: str, act: Callable[[], T]) -> T:
        patience_s = self._deadline_s
        if verb == "check":
            patience_s = min(patience_s, CHECK_DEADLINE_S)
        ends = min(self._clock() + patience_s, until())
        attempt = 0
        while True:
            try:
                return act()
            except CacheFSError as error:
                wait_s = pause_s(attempt, self._rng())
                if not error.retryable or self._clock() + wait_s >= ends:
                    raise
            self._sleep(wait_s)
            attempt += 1

    def _body(self, open_body: Callable[[], Body]) -> Body:
        return self._around("read", lambda: StartedBody(open_body()))


class StartedBody:
    """A body whose first chunk is received. The constructor raises the errors of that chunk."""

    def __init__(self, inner: Body) -> None:
        self._inner = inner
        self._chunks = iter(inner)
        try:
            self._first = next(self._chunks, None)
        except BaseException:
            inner.close()
            raise

    def __iter__(self) -> Iterator[memoryview]:
        first, self._first = self._first, None
        if first is not None:
            yield first
            del first
            yield from self._chunks

    def close(self) -> None:
        self._inner.close()
