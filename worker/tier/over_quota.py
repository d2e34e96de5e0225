"""The message of a quota that refuses a request: the quota, with figures."""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import NoSpace
from cachefs.core.jobs import FullQuota
from cachefs.core.policies import shown
from cachefs.core.units import format_size

AGAIN_S: Final = 60.0  # between two lines of the log about one quota
MOST_KNOWN: Final = 1000  # quotas that were named


class OverQuota(NoSpace):
    """A quota refuses a file."""

    def __init__(self, full: FullQuota) -> None:
        share = f", this worker's share of {format_size(full.quota_bytes)}"
        super().__init__(
            f"the quota of {shown(full.path)} has no room for it: {format_size(full.used_bytes)}"
            f" of {format_size(full.limit_bytes)} are used"
            f"{share if full.limit_bytes < full.quota_bytes else ''}",
            remedy="give a larger one: cachefs quota PATH SIZE",
        )
        self.full = full


class Named:
    """The quotas that were logged recently. Pure."""

    def __init__(self) -> None:
        self._at_s: dict[bytes, float] = {}

    def is_news(self, full: FullQuota, now_s: float) -> bool:
        """Returns whether the quota is due to be logged, and records that it is."""
        if now_s - self._at_s.get(full.path, float("-inf")) < AGAIN_S:
            return False
        if len(self._at_s) >= MOST_KNOWN:
            self._at_s.clear()
        self._at_s[full.path] = now_s
        return True
