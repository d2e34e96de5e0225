"""Latencies counted by bounds."""

from __future__ import annotations

from cachefs.core.histogram import Histogram


def test_observations_are_counted_up_to_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)
    assert histogram.status() == {
        "buckets": [["0.1", 2], ["1.0", 3], ["+Inf", 4]],
        "count": 4,
        "sum": 3.65,
    }


def test_nothing_observed() -> None:
    status = Histogram().status()
    assert status["count"] == 0
    assert {seen for _, seen in status["buckets"]} == {0}
