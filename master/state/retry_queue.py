"""A queue of failed parts that wait for a retry. Pure; times are monotonic seconds."""

from __future__ import annotations

import heapq

from master.state.window import Part


class RetryQueue:
    """The waiting parts of one job, bounded by its window."""

    def __init__(self) -> None:
        self._parts: list[tuple[float, int, Part]] = []
        self._count = 0

    def put(self, due_s: float, part: Part) -> None:
        self._count += 1
        heapq.heappush(self._parts, (due_s, self._count, part))

    def due(self, now: float) -> list[Part]:
        """Removes and returns the parts that are due; drops void ones."""
        due = []
        while self._parts and self._parts[0][0] <= now:
            part = heapq.heappop(self._parts)[2]
            if not part.is_void:
                due.append(part)
        return due

    def clear(self) -> None:
        self._parts.clear()
