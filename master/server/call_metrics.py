"""The counters of the HTTP edge: calls by kind, failures by code, and the time of replies."""

from __future__ import annotations

from collections import Counter

from cachefs.core.histogram import Histogram


class CallMetrics:
    """Counters of one process; see `master.server.metrics` for their names."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.took_s = Histogram()  # without long polls
        self.in_flight = 0

    def answered(self, kind: str, took_s: float | None) -> None:
        """Counts a reply. `took_s` is None for a long poll."""
        self.calls[kind] += 1
        if took_s is not None:
            self.took_s.observe(took_s)

    def failed(self, code: str) -> None:
        self.failures[code] += 1
