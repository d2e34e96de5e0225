"""Searches the largest number of accelerators that are busy enough. Pure."""

from __future__ import annotations

from typing import Final

BUSY: Final = 0.9  # the least utilisation that MLPerf Storage accepts


class AcceleratorSearch:
    """Doubles the number until the utilisation is too low, then halves the interval."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.best = 0  # the largest number that was busy
        self._least_idle = most + 1  # the smallest number that was not

    def next(self) -> int | None:
        """Returns the number to measure next; None: the search has ended."""
        if self._least_idle <= self.best + 1:
            return None
        if self._least_idle > self._most:
            return min(self._most, max(1, 2 * self.best))
        return (self.best + self._least_idle) // 2

    def is_open(self, accelerators: int) -> bool:
        """Returns whether it is not known of a number whether it is busy."""
        return self.best < accelerators < self._least_idle

    def measured(self, accelerators: int, utilisation: float) -> None:
        if utilisation >= BUSY:
            self.best = max(self.best, accelerators)
        else:
            self._least_idle = min(self._least_idle, accelerators)
