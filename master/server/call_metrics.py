"""What the HTTP edge counts: calls by kind, failures by code, how long answers took."""

from __future__ import annotations

from collections import Counter

from cachefs.core.histogram import Histogram


class CallMetrics:
    """Counters of one process; see `master.server.metrics` for their names."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.took_s = Histogram()  # long polls are left out
        self.in_flight = 0

    def answered(self, kind: str, took_s: float | None) -> None:
        """`took_s` None: it waited for news."""
        self.calls[kind] += 1
        if took_s is not None:
            self.took_s.observe(took_s)

    def failed(self, code: str) -> None:
        self.failures[code] += 1
