"""How far ahead of a reader to fetch, per open handle. Pure.

Sequential reads double the window up to a cap; a jump elsewhere closes it, and it opens again only
after two reads that continue each other, so that random reads fetch nothing that nobody asked for.
Small jumps forward count as sequential while the window is open (a reader that skips parts of
records). Fetching starts again when half of the window is used up, so that requests stay large.
"""

from __future__ import annotations

from typing import Final

FIRST_WINDOW_BYTES: Final = 2 << 20
MOST_WINDOW_BYTES: Final = 64 << 20
BACK_BYTES: Final = 1 << 20  # a small step back is no jump: several reads in flight come unordered
NEAR_BYTES: Final = 256 << 10  # a forward step of up to this always continues
SKIP_BYTES: Final = 8 << 20  # the longest one that continues in an open window
STREAK: Final = 2  # reads that continue each other before the window opens


class ReadAhead:
    """One handle's pattern. `plan` is asked once per request of the reader that was not granted
    before; `granted` hears how far the answer reached."""

    __slots__ = ("_ahead", "_expected", "_streak", "_window_bytes")

    def __init__(self) -> None:
        self._expected = 0  # where a sequential reader asks next
        self._ahead = 0  # up to here pages were asked for already
        self._streak = 0
        self._window_bytes = 0

    @property
    def sequential(self) -> bool:
        return self._window_bytes > 0

    def plan(self, offset: int, size_bytes: int, most_bytes: int = MOST_WINDOW_BYTES) -> int:
        """The offset up to which to fetch now, at least `offset + size_bytes`. `most_bytes` caps
        the window (pressure): below the first window nothing is fetched ahead."""
        demand = offset + size_bytes
        self._watch(offset, demand)
        window = min(self._window_bytes, most_bytes)
        if window < FIRST_WINDOW_BYTES:
            self._ahead = demand
        elif self._ahead - offset <= window // 2:
            self._ahead = max(demand, offset + window)
        return max(demand, self._ahead)

    def granted(self, end: int) -> None:
        """The reader may read up to `end` without asking."""
        self._expected = max(self._expected, end)

    def _watch(self, offset: int, demand: int) -> None:
        forward = max(NEAR_BYTES, min(self._window_bytes, SKIP_BYTES))
        if offset == 0:  # most who start at the beginning go on
            self._streak, self._window_bytes, self._ahead = STREAK - 1, 0, demand
        elif self._expected - BACK_BYTES <= offset <= self._expected + forward:
            self._streak += 1
        else:
            self._streak, self._window_bytes, self._ahead = 0, 0, demand
        if self._streak >= STREAK:
            doubled = max(2 * self._window_bytes, FIRST_WINDOW_BYTES)
            self._window_bytes = min(doubled, MOST_WINDOW_BYTES)
        self._expected = demand
