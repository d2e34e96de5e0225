"""Names of a directory that are reported one after the other count together, for a while."""

from __future__ import annotations

import pytest

from master.push import recent_reports
from master.push.recent_reports import PERIOD_S, RecentReports

ONE, OTHER = 1, 2
LEAST = 8


def crowded(reports: RecentReports) -> set[int]:
    return set(reports.crowded([ONE, OTHER], LEAST))


def test_names_that_are_reported_one_by_one_are_a_crowd() -> None:
    reports = RecentReports()
    for number in range(LEAST):
        assert crowded(reports) == set()
        reports.add([ONE], 10.0 + number * PERIOD_S / LEAST)
    assert crowded(reports) == {ONE}


def test_names_of_other_directories_do_not_count() -> None:
    reports = RecentReports()
    reports.add([ONE] * (LEAST - 1) + [OTHER], 10.0)
    assert crowded(reports) == set()


def test_a_crowd_lasts_for_the_next_period() -> None:
    reports = RecentReports()
    reports.add([ONE] * LEAST, 10.0)
    reports.add([ONE], 10.0 + PERIOD_S)
    assert crowded(reports) == {ONE}
    reports.add([ONE], 10.0 + 2 * PERIOD_S)
    assert crowded(reports) == set()


def test_reports_after_a_quiet_time_are_no_crowd() -> None:
    reports = RecentReports()
    reports.add([ONE] * LEAST, 10.0)
    reports.add([ONE], 10.0 + 2 * PERIOD_S)
    assert crowded(reports) == set()


def test_many_directories_end_a_period_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_reports, "MOST_DIRECTORIES", 10)
    reports = RecentReports()
    for directory in range(100):
        reports.add([directory], 10.0)
    assert len(reports._present) <= 11
    assert len(reports._before) <= 11
