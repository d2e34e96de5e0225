"""The shared rate of a link: how long the next bytes must wait. Pure; time is a parameter."""

from __future__ import annotations

MIN_PIECE_BYTES = 16 << 10
MAX_PIECE_BYTES = 1 << 20
PIECE_S = 0.004


class Shaper:
    """A token bucket kept as the time at which the link is free again. A sleeper that wakes late is
    made up for by at most `burst_s` of credit, so that the long-run rate holds and stays smooth."""

    def __init__(self, rate_bytes_per_s: float | None = None, burst_s: float = 0.01) -> None:
        self.rate_bytes_per_s = rate_bytes_per_s
        self.burst_s = burst_s
        self._free_at_s = 0.0

    def piece_bytes(self) -> int:
        """How much to send at once: about 4 ms of the link."""
        if not self.rate_bytes_per_s:
            return MAX_PIECE_BYTES
        return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, int(self.rate_bytes_per_s * PIECE_S)))

    def reserve(self, count: int, now: float) -> float:
        """Books `count` bytes; returns the seconds until the last of them may have been sent."""
        if not self.rate_bytes_per_s:
            return 0.0
        start = max(self._free_at_s, now - self.burst_s)
        self._free_at_s = start + count / self.rate_bytes_per_s
        return max(0.0, self._free_at_s - now)
