"""How often a condition that lasts is logged: when it begins, then at growing intervals. Pure."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0


class Pace:
    """`is_due` says whether to log now; `over` that the condition has ended."""

    def __init__(self) -> None:
        self._due_at_s = float("-inf")
        self._pause_s = FIRST_PAUSE_S

    def is_due(self, now_s: float) -> bool:
        """True the first time, and then after pauses that double."""
        if now_s < self._due_at_s:
            return False
        self._due_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return True

    def over(self) -> None:
        """The next time is a first one."""
        self._due_at_s = float("-inf")
        self._pause_s = FIRST_PAUSE_S
