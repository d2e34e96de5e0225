"""The share of a core that checks of reported names may cost."""

from __future__ import annotations

import pytest

from master.push.work_budget import (
    SAVED_S,
    SHARE,
    STAT_S,
    WorkBudget,
    listing_cost_s,
    most_worth_listing,
)


def test_a_burst_is_done_at_once_and_the_rest_at_the_share() -> None:
    budget = WorkBudget(0.0)
    burst = 0
    while budget.take(STAT_S, 0.0):
        burst += 1
    assert burst == pytest.approx(SAVED_S / STAT_S, abs=1)
    done, now = 0, 0.0
    while now < 100.0:
        now += budget.wait_s(now)
        assert budget.take(STAT_S, now), "the wait was long enough"
        done += 1
    assert done * STAT_S == pytest.approx(100.0 * SHARE, rel=0.55), "the wait is 1 ms of work more"


def test_large_work_is_paid_later() -> None:
    budget = WorkBudget(0.0)
    assert budget.take(2.0, 0.0)
    assert not budget.take(STAT_S, 1.0)
    assert budget.wait_s(1.0) == pytest.approx((2.0 - SAVED_S) / SHARE - 1.0, rel=0.01)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    budget = WorkBudget(100.0)
    budget.take(1.0, 100.0)
    assert not budget.take(STAT_S, 0.0)


@pytest.mark.parametrize("names", [3, 10, 100, 10_000])
def test_a_directory_is_listed_where_that_costs_less(names: int) -> None:
    most = most_worth_listing(names)
    assert listing_cost_s(most) <= names * STAT_S < listing_cost_s(most + 2)


def test_one_name_never_makes_a_listing() -> None:
    assert most_worth_listing(1) < 0
