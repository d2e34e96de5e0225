"""A rate limit of bytes: a token bucket. Pure."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.1  # a longer burst would cover a small load, which then ignores the rate


class TokenBucket:
    """A token bucket that may be in debt. Bytes are charged once their number is known, which may
    be after the transfer; the next transfer then waits for the debt. After a pause the burst is
    `BURST_S` of the rate."""

    def __init__(self, bytes_per_s: float) -> None:
        """Raises ValueError for a rate that is not positive."""
        if bytes_per_s <= 0:
            raise ValueError("the rate must be positive")
        self._rate = bytes_per_s
        self._tokens = self._burst
        self._at_s: float | None = None

    def is_open(self, now_s: float) -> bool:
        """Returns whether a transfer may start now."""
        return self.wait_s(now_s) <= 0

    def wait_s(self, now_s: float) -> float:
        """Returns the time until a transfer may start; 0: now."""
        self._fill(now_s)
        return max(0.0, -self._tokens / self._rate)

    def charge(self, size_bytes: float, now_s: float) -> None:
        """Charges the bytes of a transfer; a negative number cancels an earlier charge."""
        self._fill(now_s)
        self._tokens -= size_bytes

    def set_rate(self, bytes_per_s: float, now_s: float) -> None:
        """Changes the rate; a debt remains, and no tokens are added. Raises ValueError for a rate
        that is not positive."""
        if bytes_per_s <= 0:
            raise ValueError("the rate must be positive")
        self._fill(now_s)
        self._rate = bytes_per_s
        self._tokens = min(self._tokens, self._burst)

    @property
    def _burst(self) -> float:
        return self._rate * BURST_S

    def _fill(self, now_s: float) -> None:
        if self._at_s is not None and now_s > self._at_s:
            self._tokens += (now_s - self._at_s) * self._rate
        self._tokens = min(self._tokens, self._burst)
        self._at_s = now_s if self._at_s is None else max(now_s, self._at_s)
