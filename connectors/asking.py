"""When small files of a source are read by `connectors.fetch.many`, without a thread for each.

A thread has to have read a file of the source: then the region and credentials are known, for a
while. Where a read by `many` does not come, it and those after it are left to the threads, until
one of them has succeeded; twice as many each time that nothing has come in between. So an origin
that always answers otherwise than `many` expects is not asked twice for each file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from connectors.fetch.request import NOT_SENT

MOST_FAILURES: Final = 8  # that count: 256 reads by threads

T = TypeVar("T")


class Turns(Generic[T]):
    """Whose turn it is: the threads', or `many` with what `current` returns. Thread-safe."""

    def __init__(self, kept_s: float, clock: Callable[[], float]) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._lock = threading.Lock()
        self._means: T | None = None
        self._until_s = 0.0
        self._wait = 1  # reads by threads until the next turn of `many`
        self._failures = 0  # in a row
        self._is_closed = False

    def current(self) -> T | None:
        """Returns the means of `many`; None: it is the threads' turn."""
        with self._lock:
            if self._means is not None and self._clock() > self._until_s:
                self._means, self._wait = None, 1
            return self._means

    def succeeded(self, means: T) -> None:
        """A thread has read a file by these means."""
        with self._lock:
            self._wait -= 1
            if self._means is None and self._wait <= 0 and not self._is_closed:
                self._means, self._until_s = means, self._clock() + self._kept_s

    def ended(self, means: T, error: str) -> None:
        """`many` has read a file, or not. Many that fail at once are one failure."""
        with self._lock:
            if not error:
                self._failures = 0
            elif error != NOT_SENT and self._means is means:
                self._means = None
                self._wait = 1 << self._failures
                self._failures = min(self._failures + 1, MOST_FAILURES)

    def close(self) -> None:
        with self._lock:
            self._means, self._is_closed = None, True
