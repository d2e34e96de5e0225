"""The rate of the listings of one source. Pure."""

from __future__ import annotations


class ListingRate:
    """At most `per_s` listings, evenly spaced. Seconds of a monotonic clock."""

    def __init__(self, per_s: float) -> None:
        self._spacing_s = 1.0 / per_s
        self._next_at = 0.0

    def take(self, now: float) -> None:
        """Counts a listing that began."""
        self._next_at = max(self._next_at, now) + self._spacing_s

    def wait_s(self, now: float) -> float:
        """Returns after how many seconds the next listing may begin."""
        return max(0.0, self._next_at - now)
