"""The sync interval: what it means for what was checked at some time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.state.freshness import MAX_VALID_S, valid_for

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("checked_at", "interval_s", "expected_s"),
    [
        (NOW, 60.0, 60.0),
        (NOW - 59.0, 60.0, 1.0),
        (NOW - 60.0, 60.0, 0.0),
        (NOW - 1e6, 60.0, 0.0),
        (NOW, 0.0, 0.0),
        (NOW - 1e9, -1.0, MAX_VALID_S),
        (NOW, 1e9, MAX_VALID_S),
        (0.0, -1.0, 0.0),
        (0.0, 60.0, 0.0),
    ],
)
def test_validity(checked_at: float, interval_s: float, expected_s: float) -> None:
    assert valid_for(checked_at, interval_s, NOW) == expected_s


@given(st.floats(0.001, 1e9), st.sampled_from([-1.0, 0.0, 1.0, 60.0, 1e6]))
def test_a_clock_that_jumped_back_makes_everything_stale(ahead_s: float, interval_s: float) -> None:
    assert valid_for(NOW + ahead_s, interval_s, NOW) == 0.0


@given(st.floats(0, 2e5), st.floats(0.001, 2e5))
def test_never_valid_beyond_the_interval(age_s: float, interval_s: float) -> None:
    valid_s = valid_for(NOW - age_s, interval_s, NOW)
    assert 0 <= valid_s <= max(0.0, interval_s - age_s) + 1e-3
    assert valid_s <= MAX_VALID_S
