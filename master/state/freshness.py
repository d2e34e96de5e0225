"""The freshness of stored metadata under a sync interval. Pure.

The interval is -1 (never check again after the first listing), 0 (check at every access) or
seconds. Times are wall clock seconds, kept in the store; metadata with a time of 0 or in the future
(the clock was set back) is stale.
"""

from __future__ import annotations

from typing import Final

NEVER_S: Final = -1.0
MAX_VALID_S: Final = 86400.0
DEGRADED_VALID_S: Final = 5.0  # for unchecked replies while the origin is down


def valid_for(checked_at: float, interval_s: float, now: float) -> float:
    """Returns for how many seconds metadata is still fresh; 0: the caller must ask the origin."""
    if interval_s == 0 or checked_at <= 0 or checked_at > now:
        return 0.0
    if interval_s < 0:
        return MAX_VALID_S
    return min(MAX_VALID_S, max(0.0, checked_at + interval_s - now))
