"""The origins that a node could not read lately."""

from __future__ import annotations

from cachefs.core.errors import CacheFSError, DeadlineExceeded, NotFound, Unreachable
from worker.stats.origin_failures import MOST, WITHIN_S, OriginFailures

WALL = 1_700_000_000.0


def failing(*errors: CacheFSError) -> OriginFailures:
    it = OriginFailures()
    for n, error in enumerate(errors):
        it.failed("s3://b", error, 10.0 + n, WALL + n)
    return it


def test_the_last_failure_counts_since_the_first_one() -> None:
    it = failing(Unreachable("no route"), DeadlineExceeded("late", remedy="see to it"))
    (row,) = it.rows(12.0)
    assert (row["down_code"], row["down_cause"], row["down_remedy"]) == (
        "deadline", "late", "see to it",
    )  # fmt: skip
    assert row["down_since_s"] == WALL
    assert row["origin_down"] is True


def test_what_concerns_one_file_is_no_failure_of_the_origin() -> None:
    assert failing(NotFound("no such key")).rows(11.0) == []


def test_bytes_that_arrive_and_time_end_it() -> None:
    it = failing(Unreachable("no route"))
    assert it.rows(10.0 + WITHIN_S - 1)
    assert it.rows(10.0 + WITHIN_S) == []
    it = failing(Unreachable("no route"))
    it.succeeded("s3://other")
    assert it.rows(11.0)
    it.succeeded("s3://b")
    assert it.rows(11.0) == []


def test_so_many_origins_are_known() -> None:
    it = OriginFailures()
    for n in range(MOST + 5):
        it.failed(f"s3://{n}", Unreachable("no route"), 10.0, WALL)
    assert len(it.rows(10.0)) == MOST
