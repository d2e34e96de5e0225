"""The backoff of log lines about a lasting condition: one at its begin, then ever fewer. Pure."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0


class LogBackoff:
    """The log times of one condition. The caller logs if `is_due`, and calls `over` at its end."""

    def __init__(self) -> None:
        self._due_at_s = float("-inf")
        self._pause_s = FIRST_PAUSE_S

    def is_due(self, now_s: float) -> bool:
        """Returns True the first time, and then after pauses that double."""
        if now_s < self._due_at_s:
            return False
        self._due_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True

    def over(self) -> None:
        """Resets the pauses, at the end of the condition."""
        self._due_at_s = float("-inf")
        self._pause_s = FIRST_PAUSE_S
