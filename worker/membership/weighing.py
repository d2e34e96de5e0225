"""When a worker tells its cluster of another capacity. Pure.

A tier that is lost for good, or comes back, changes how much a worker should own; one that is away
for a moment must not move data about. So a new capacity counts once it has stayed for a while.
"""

from __future__ import annotations

from typing import Final

STAYS_S: Final = 60.0
GIB: Final = 1 << 30


class Weighing:
    """`told_bytes` is what the cluster knows."""

    def __init__(self, told_bytes: int, now: float) -> None:
        self.told_bytes = told_bytes
        self._seen_bytes = told_bytes
        self._since_s = now

    def handle(self, capacity_bytes: int, now: float) -> bool:
        """The capacity is this now: is the cluster to be told?"""
        if capacity_bytes != self._seen_bytes:
            self._seen_bytes, self._since_s = capacity_bytes, now
        if capacity_bytes == self.told_bytes or now - self._since_s < STAYS_S:
            return False
        self.told_bytes = capacity_bytes
        return True


def weight_of(capacity_bytes: int) -> float:
    """The weight `auto`: in GiB."""
    return round(capacity_bytes / GIB, 3)
