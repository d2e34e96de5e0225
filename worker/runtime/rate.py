"""How fast bytes may go: a bucket of tokens that is filled at a rate. Pure."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.1  # a longer burst would be most of a small load: its rate was never kept


class TokenBucket:
    """Bytes are charged when their number is known, which may be after they went: the bucket then
    owes them, and nothing more may go until it is out of debt. What may go at once after a pause is
    `BURST_S` of the rate."""

    def __init__(self, bytes_per_s: float) -> None:
        """Raises ValueError for a rate that is not positive."""
        if bytes_per_s <= 0:
            raise ValueError("the rate must be positive")
        self._rate = bytes_per_s
        self._tokens = self._burst
        self._at_s: float | None = None

    def is_open(self, now_s: float) -> bool:
        """Something may go now."""
        return self.wait_s(now_s) <= 0

    def wait_s(self, now_s: float) -> float:
        """How long until something may go; 0: now."""
        self._fill(now_s)
        return max(0.0, -self._tokens / self._rate)

    def charge(self, size_bytes: float, now_s: float) -> None:
        """So many bytes go, or went. Negative: they did not, after all."""
        self._fill(now_s)
        self._tokens -= size_bytes

    def set_rate(self, bytes_per_s: float, now_s: float) -> None:
        """From now on so fast; what is owed stays owed, and nothing is given. Raises ValueError for
        a rate that is not positive."""
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
