"""The pauses before a view is built again: they grow while it changes often. Pure."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 1.0
MOST_S: Final = 600.0
QUIET_TIMES: Final = 10  # as many times the last pause without a change make the next one short


class RebuildPace:
    """The pauses of one view, in monotonic seconds."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._pause_s = 0.0
        self._since_s = float("-inf")  # of the end of the last pause

    def next_s(self, now_s: float) -> float:
        """Returns the time at which a view that was uncovered, or could not be built, is due."""
        quiet_s = now_s - self._since_s
        if quiet_s > QUIET_TIMES * self._pause_s:
            self._pause_s = self._first_s
        else:
            self._pause_s = min(2 * self._pause_s, self._most_s)
        self._since_s = now_s + self._pause_s
        return self._since_s
