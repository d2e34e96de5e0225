"""A small set of half-open byte ranges: the part of a partial file that is readable. Pure.

Invariant: the ranges are sorted, not empty, and do not touch each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MAX_RANGES = 512  # of one open file; bounds its memory


class Intervals:
    """The ranges [start, end) that were added. Above `MAX_RANGES` the smallest one is dropped: a
    read of it costs a request. The last one added stays: a read of it follows."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Adds [start, end), merged with the ranges that it touches."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if len(self._starts) > MAX_RANGES:
            self._forget_smallest(but=first)

    def end_of(self, position: int) -> int:
        """Returns the end of the range that holds `position`, or `position` if none does."""
        index = bisect_right(self._starts, position) - 1
        return max(position, self._ends[index]) if index >= 0 else position

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def _forget_smallest(self, but: int) -> None:
        others = (index for index in range(len(self._starts)) if index != but)
        index = min(others, key=lambda one: self._ends[one] - self._starts[one])
        del self._starts[index], self._ends[index]
