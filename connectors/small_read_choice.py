"""The choice between `connectors.fetch.batch_reader` and the thread pool for the small files of a
source.

`many` may read once a thread has read a file: the region and the credentials are then known for
`kept_s` seconds. After a failure of `many`, the source falls back to the thread pool until N reads
succeed there. N doubles with each consecutive failure, so an origin whose replies `many` never
accepts does not get two requests for each file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from connectors.fetch.request import NOT_SENT

MOST_FAILURES: Final = 8  # the backoff ends at 2**8 reads by threads

T = TypeVar("T")


class SmallReadChoice(Generic[T]):
    """The state of one source: its means for `many`, or the reads left to threads. Thread-safe."""

    def __init__(self, kept_s: float, clock: Callable[[], float]) -> None:
        self._kept_s = kept_s
        self._clock = clock
        self._lock = threading.Lock()
        self._means: T | None = None
        self._until_s = 0.0
        self._thread_reads_left = 1  # successful ones, until `many` may read
        self._failures = 0  # in a row
        self._is_closed = False

    def current(self) -> T | None:
        """Returns the means for `many`, or None if a thread has to read."""
        with self._lock:
            if self._means is not None and self._clock() > self._until_s:
                self._means, self._thread_reads_left = None, 1
            return self._means

    def succeeded(self, means: T) -> None:
        """Records that a thread has read a file by these means."""
        with self._lock:
            self._thread_reads_left -= 1
            if self._means is None and self._thread_reads_left <= 0 and not self._is_closed:
                self._means, self._until_s = means, self._clock() + self._kept_s

    def ended(self, means: T, error: str) -> None:
        """Records the end of a read by `many`. Reads that fail together count as one failure."""
        with self._lock:
            if not error:
                self._failures = 0
            elif error != NOT_SENT and self._means is means:
                self._means = None
                self._thread_reads_left = 1 << self._failures
                self._failures = min(self._failures + 1, MOST_FAILURES)

    def close(self) -> None:
        with self._lock:
            self._means, self._is_closed = None, True
