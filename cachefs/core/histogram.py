"""A latency histogram in the form of Prometheus. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Final

LATENCY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """Counts of observations by ascending upper `bounds`, and of larger values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def status(self) -> dict[str, Any]:
        """Returns plain values. `buckets`: [upper bound, cumulative count], the last one "+Inf"."""
        buckets, seen = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            buckets.append([bound, seen])
        return {"buckets": buckets, "count": seen, "sum": self.total}
