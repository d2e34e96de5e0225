"""The rate of a load job and its remaining time, from the last seconds. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

RATE_S: Final = 10.0

Progress = tuple[int, int]  # bytes, files


class RateEstimator:
    """Progress noted about once a second. Times are monotonic seconds."""

    def __init__(self, now: float, progress: Progress) -> None:
        self._samples = deque([(now, progress)])

    def note(self, now: float, progress: Progress) -> None:
        self._samples.append((now, progress))
        while self._samples[0][0] < now - RATE_S and len(self._samples) > 2:
            self._samples.popleft()

    def rates(self, now: float, progress: Progress) -> tuple[float, float]:
        """Returns bytes and files per second."""
        at_s, before = self._samples[0]
        took_s = now - at_s
        if took_s <= 0:
            return 0.0, 0.0
        size, files = (
            max(0.0, (new - old) / took_s) for new, old in zip(progress, before, strict=True)
        )
        return size, files

    def eta_s(self, now: float, progress: Progress, goal: Progress) -> float | None:
        """Returns the longer of the estimates by bytes and by files; None while there is none.
        While bytes of large files arrive and no file ends, only the bytes count."""
        both = zip(goal, progress, self.rates(now, progress), strict=True)
        by_bytes_s, by_files_s = (_left_s(end - at, rate) for end, at, rate in both)
        if by_bytes_s > 0 and by_files_s == math.inf:
            by_files_s = 0.0
        longer_s = max(by_bytes_s, by_files_s)
        return round(longer_s, 1) if longer_s < math.inf else None


def _left_s(left: int, rate: float) -> float:
    """Returns the time for what is left; infinity: it does not progress."""
    if left <= 0:
        return 0.0
    return left / rate if rate else math.inf
