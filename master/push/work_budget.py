"""How much work of the master the checks of reported names may cost. Pure."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.05  # of a core
SAVED_S: Final = 0.2  # of work, after a quiet time
STAT_S: Final = 0.002  # of one name
LISTING_S: Final = 0.005  # of a listing without names
LISTED_NAME_S: Final = 15e-6


class WorkBudget:
    """A token bucket, in seconds of CPU."""

    def __init__(self, now: float) -> None:
        self._free_s = SAVED_S
        self._at = now

    def take(self, work_s: float, now: float) -> bool:
        """Takes the work if some is free. Work may be larger than what is free: the rest is
        taken from what comes."""
        self._refill(now)
        if self._free_s <= 0:
            return False
        self._free_s -= work_s
        return True

    def spend(self, work_s: float, now: float) -> None:
        """Takes work that was done already: later work has less."""
        self._refill(now)
        self._free_s -= work_s

    def wait_s(self, now: float) -> float:
        """Returns after how many seconds `take` succeeds."""
        self._refill(now)
        return 0.0 if self._free_s > 0 else (1e-3 - self._free_s) / SHARE

    def _refill(self, now: float) -> None:
        self._free_s = min(SAVED_S, self._free_s + max(0.0, now - self._at) * SHARE)
        self._at = now


def listing_cost_s(in_directory: int) -> float:
    """Returns what one listing costs."""
    return LISTING_S + in_directory * LISTED_NAME_S


def most_worth_listing(names: int) -> int:
    """Returns how large a directory may be so that one listing costs less than a stat of each of
    these names; -1 if none is that small."""
    return max(-1, int((names * STAT_S - LISTING_S) / LISTED_NAME_S))
