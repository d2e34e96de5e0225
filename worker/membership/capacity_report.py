"""The decision when a worker reports a changed capacity to the cluster. Pure.

A tier that is lost or restored changes the data that a worker should own; a short outage must not
move data. So a new capacity is reported once it has lasted for `STAYS_S`.
"""

from __future__ import annotations

from typing import Final

STAYS_S: Final = 60.0
GIB: Final = 1 << 30


class CapacityReport:
    """The last reported capacity, and the present one with its time."""

    def __init__(self, reported_bytes: int, now: float) -> None:
        self.reported_bytes = self._former_bytes = reported_bytes
        self._seen_bytes = reported_bytes
        self._since_s = now

    def handle(self, capacity_bytes: int, now: float) -> bool:
        """Records the present capacity. Returns whether to report it now."""
        if capacity_bytes != self._seen_bytes:
            self._seen_bytes, self._since_s = capacity_bytes, now
        if capacity_bytes == self.reported_bytes or now - self._since_s < STAYS_S:
            return False
        self._former_bytes, self.reported_bytes = self.reported_bytes, capacity_bytes
        return True

    def failed(self, now: float) -> None:
        """Notes that the master did not get the last report: another follows `STAYS_S` later."""
        self.reported_bytes, self._since_s = self._former_bytes, now


def weight_of(capacity_bytes: int) -> float:
    """Returns the weight `auto`: the capacity in GiB."""
    return round(capacity_bytes / GIB, 3)
