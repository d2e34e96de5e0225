"""The slowest fills of the last minute, a few of them. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

KEPT: Final = 8
WINDOW_S: Final = 60.0


class Slowest:
    """The slowest fills, at most `KEPT`. Times are monotonic, in s."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, float, str, int]] = []  # took, ended at, path, bytes

    def note(self, took_s: float, path: Callable[[], str], size_bytes: int, now: float) -> None:
        """Records the end of a fill. `path` is called only if the fill is among the slowest."""
        if len(self._heap) >= KEPT:
            if took_s <= self._heap[0][0] and self._heap[0][1] > now - WINDOW_S:
                return
            self._forget(now)
        heapq.heappush(self._heap, (took_s, now, path(), size_bytes))
        if len(self._heap) > KEPT:
            heapq.heappop(self._heap)

    def rows(self, now: float) -> dict[str, dict[str, float]]:
        """Returns by path, the slowest first: the fill's seconds, its bytes, the seconds since."""
        self._forget(now)
        found: dict[str, dict[str, float]] = {}
        for took_s, ended_at_s, path, size_bytes in sorted(self._heap, reverse=True):
            row = {
                "took_s": round(took_s, 3),
                "bytes": size_bytes,
                "ago_s": round(now - ended_at_s),
            }
            found.setdefault(path, row)
        return found

    def _forget(self, now: float) -> None:
        self._heap = [one for one in self._heap if one[1] > now - WINDOW_S]
        heapq.heapify(self._heap)
