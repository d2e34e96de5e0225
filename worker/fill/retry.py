"""The pauses between the attempts of a fill. Pure.

The connector retries requests that never got a byte. A fill retries after bodies that broke off,
and while an origin is away. Only whole pages count as progress.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import CacheFSError

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0


def pause_s(
    error: CacheFSError, *, attempt: int, stuck_s: float, deadline_s: float, jitter: float
) -> float | None:
    """Returns the pause before the next attempt; None: give up. `attempt` counts failures since the
    last page arrived (0, the first, is retried at once); `stuck_s` is the time since then; `jitter`
    is uniform in [0, 1)."""
    if not error.retryable or stuck_s >= deadline_s:
        return None
    if attempt == 0:
        return 0.0
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt, 16)))
    return min(jitter * longest, deadline_s - stuck_s)
