"""The downward reads of one open handle: from the end of a file, or of a part of it. Pure.

The C library copies large blocks downwards where the copy has the higher address, so a program that
copies slices of a map reads each slice from its end to its beginning. Such a run is a stream whose
window opens below it. When the next run begins above the former one and has its length, slice
follows slice: then what is above is fetched, as for any other sequential reader.

The kernel reads around a page of a map that is missing: in two requests, which come in any order,
and which reach beyond both ends of a slice.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from worker.cache.readahead import BACK_BYTES, FIRST_WINDOW_BYTES, MOST_WINDOW_BYTES, NEAR_BYTES

STREAK: Final = 2  # reads that continue each other before the window opens
SLACK_BYTES: Final = 2 << 20  # by which runs of one length differ


class Span(NamedTuple):
    """Bytes [start, end) to fetch. `downwards`: the highest first."""

    start: int
    end: int
    downwards: bool


class Downward:
    """The downward stream of one handle."""

    __slots__ = ("_above", "_below", "_low", "_run_bytes", "_streak", "_top", "_window_bytes")

    def __init__(self) -> None:
        self._low = self._top = 0  # of the run
        self._below = self._above = 0  # what was requested
        self._streak = self._run_bytes = self._window_bytes = 0

    def plan(
        self, offset: int, size_bytes: int, most_bytes: int = MOST_WINDOW_BYTES
    ) -> Span | None:
        """Returns what to fetch beside the request itself; None if it continues no downward stream.
        `most_bytes` caps the window: below the first window nothing is fetched."""
        end = offset + size_bytes
        if offset < self._low and abs(end - self._low) <= BACK_BYTES:
            self._streak += 1
            self._low = offset
        elif self._is_next_run(end):
            self._run_bytes = self._run_bytes or self._top - self._low
            self._low, self._top = offset, end
        elif self._low <= offset <= self._top + NEAR_BYTES:
            self._top = max(self._top, end)
        else:
            self._begin(offset, end)
        if self._streak < STREAK:
            return None
        self._window_bytes = min(max(2 * self._window_bytes, FIRST_WINDOW_BYTES), most_bytes)
        if self._window_bytes < FIRST_WINDOW_BYTES:
            return None
        return self._next_runs() if self._run_bytes else self._rest_of_run(end)

    def _begin(self, offset: int, end: int) -> None:
        """Begins the first run of a stream, of which nothing is known yet."""
        self._low, self._top = offset, end
        self._below, self._above = offset, end
        self._streak = self._run_bytes = self._window_bytes = 0

    def _is_next_run(self, end: int) -> bool:
        """Returns whether a request begins a run above this one. All requests of a run may be
        missing: the client reads what an earlier reply granted without another request. So the
        length of the first run counts, and runs in between may be skipped."""
        if self._streak < STREAK:
            return False
        run_bytes = self._run_bytes or self._top - self._low
        runs = round((end - self._top) / run_bytes)
        most = 1 + MOST_WINDOW_BYTES // run_bytes if self._run_bytes else 1
        return 1 <= runs <= most and abs(end - self._top - runs * run_bytes) <= SLACK_BYTES

    def _rest_of_run(self, end: int) -> Span:
        if self._low - self._below <= self._window_bytes // 2:
            self._below = max(0, self._low - self._window_bytes)
        return Span(min(self._below, self._low), end, downwards=True)

    def _next_runs(self) -> Span:
        if self._above - self._top <= self._window_bytes // 2:
            self._above = self._top + self._window_bytes
        return Span(max(0, self._top - self._run_bytes), self._above, downwards=False)
