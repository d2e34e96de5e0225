"""A capacity counts once it has stayed for a while."""

from __future__ import annotations

from worker.membership.capacity_report import STAYS_S, CapacityReport, weight_of


def test_a_tier_that_is_away_for_a_moment_changes_nothing() -> None:
    weighing = CapacityReport(100, 0.0)
    assert not weighing.handle(40, 10.0)
    assert not weighing.handle(40, 10.0 + STAYS_S / 2)
    assert not weighing.handle(100, 10.0 + STAYS_S)
    assert not weighing.handle(40, 20.0 + STAYS_S), "it was there in between"


def test_one_that_is_lost_is_told_once() -> None:
    weighing = CapacityReport(100, 0.0)
    assert not weighing.handle(40, 1.0)
    assert weighing.handle(40, 1.0 + STAYS_S)
    assert not weighing.handle(40, 2.0 + 2 * STAYS_S)
    assert not weighing.handle(100, 3.0 + 2 * STAYS_S)
    assert weighing.handle(100, 3.0 + 3 * STAYS_S), "and so is its return"


def test_a_report_that_the_master_did_not_get_is_repeated() -> None:
    weighing = CapacityReport(100, 0.0)
    weighing.handle(40, 1.0)
    assert weighing.handle(40, 1.0 + STAYS_S)
    assert not weighing.handle(40, 3.0 + STAYS_S), "it is in flight"
    weighing.failed(5.0 + STAYS_S)
    assert not weighing.handle(40, 7.0 + STAYS_S), "the master may be away for long"
    assert weighing.handle(40, 5.0 + 2 * STAYS_S)
    weighing.failed(9.0 + 2 * STAYS_S)
    assert not weighing.handle(100, 9.0 + 4 * STAYS_S), "the master knows this one"


def test_weights_are_capacities() -> None:
    assert weight_of(3 << 30) == 3.0
    assert weight_of(1 << 29) == 0.5
