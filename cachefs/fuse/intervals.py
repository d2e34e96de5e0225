"""A small set of half-open byte ranges: what of a partial file this client may read. Pure.

Invariant: the ranges are sorted, not empty, and do not touch each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MAX_RANGES = 512  # of one open file; beyond it the oldest knowledge is not worth its memory


class Intervals:
    """Ranges [start, end) that were added. Forgets the smallest one beyond `MAX_RANGES`, which
    costs a question to the server and never a wrong answer; never the one that was added last:
    somebody is about to read it."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Adds [start, end), joined with what it touches."""
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
        """The end of the range that holds `position`; `position` itself when none does."""
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
