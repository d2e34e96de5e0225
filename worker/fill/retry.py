"""When a fill that failed goes on. Pure.

The connector has its own retries for requests that never got a byte; this is about bodies that
broke off, and about origins that come back. Only whole pages count as progress.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.errors import CacheFSError

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0


def pause_s(
    error: CacheFSError, *, attempt: int, stuck_s: float, deadline_s: float, jitter: float
) -> float | None:
    """How long to wait before going on, None to give up. `attempt` counts failures since the last
    page came (0 is the first: it goes on at once), `stuck_s` is the time since then, `jitter` is
    uniform in [0, 1)."""
    if not error.retryable or stuck_s >= deadline_s:
        return None
    if attempt == 0:
        return 0.0
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt, 16)))
    return min(jitter * longest, deadline_s - stuck_s)
