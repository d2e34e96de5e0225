"""Which files are brought before they are opened: those that come next, never more than a bounded
number of those that nobody wants."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.services.examples import examples
from worker.prefetch.open_runs import (
    LEAST_OPENS,
    LIST_AFTER,
    MOST_FILES,
    MOST_GAPS,
    MOST_HERE,
    MOST_RUNS,
    MOST_SPAN,
    OpenRun,
    OpenRuns,
)

SIZE = 1000


def take(ahead: OpenRuns, most: int = 10_000) -> list[int]:
    """Begins to bring all that is wanted."""
    inos: list[int] = []
    while len(inos) < most and (found := ahead.next()) is not None:
        run, ino = found
        ahead.begun(run, ino, SIZE)
        inos.append(ino)
    return inos


def read(ahead: OpenRuns, inos: list[int]) -> list[int]:
    """Opens in this order, as a reader of an empty cache; what was brought, and what was not
    waited for when it was opened."""
    brought: list[int] = []
    for ino in inos:
        if ino in brought:
            ahead.used(ino)
        else:
            ahead.opened(ino, b"d")
        brought += take(ahead)
    return brought


def none(ahead: OpenRuns, run: OpenRun, count: int) -> None:
    """The next numbers are no small files."""
    for _ in range(count):
        assert ahead.next() is not None or run.at_end
        ahead.record_not_small(run)


def one_run(ahead: OpenRuns, opens: int = LEAST_OPENS) -> OpenRun:
    for ino in range(1, opens + 1):
        ahead.opened(ino, b"d")
    found = ahead.next()
    assert found is not None
    return found[0]


def test_what_comes_next_is_brought_once_and_in_order() -> None:
    inos = [*range(100, 1100)]
    brought = read(OpenRuns(), inos)
    assert brought == [*range(100 + LEAST_OPENS, brought[-1] + 1)]
    assert 1099 <= brought[-1] <= 1099 + MOST_FILES


def test_the_window_grows_with_what_was_opened() -> None:
    ahead = OpenRuns()
    for ino in range(1, LEAST_OPENS + 1):
        assert take(ahead) == []
        ahead.opened(ino, b"d")
    assert take(ahead) == [*range(LEAST_OPENS + 1, 3 * LEAST_OPENS + 1)]
    ahead.used(LEAST_OPENS + 1)
    assert take(ahead) == [3 * LEAST_OPENS + 1, 3 * LEAST_OPENS + 2, 3 * LEAST_OPENS + 3]


@pytest.mark.parametrize("readers", [2, 16, 60])
def test_several_readers_of_every_nth_file_are_one_run(readers: int) -> None:
    order = random.Random(readers)
    inos: list[int] = []
    for first in range(1, 2001, readers):
        together = [*range(first, first + readers)]
        order.shuffle(together)
        inos += together
    brought = read(OpenRuns(), inos)
    assert len(brought) == len(set(brought))
    assert len({*brought} & {*inos}) > 0.9 * len(inos)


def test_readers_of_a_part_each_are_a_run_each() -> None:
    parts = [[*range(1000 * part, 1000 * part + 300)] for part in range(8)]
    inos = [ino for together in zip(*parts, strict=True) for ino in together]
    brought = read(OpenRuns(), inos)
    assert len({*brought} & {*inos}) > 0.9 * len(inos)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_order_brings_next_to_nothing(seed: int) -> None:
    inos = [*range(1, 100_001)]
    random.Random(seed).shuffle(inos)
    assert len(read(OpenRuns(), inos[:5000])) < 50


def test_every_fourth_file_brings_nothing() -> None:
    assert read(OpenRuns(), [*range(1, 4000, 4)]) == []


def test_a_file_that_is_opened_again_and_again_is_no_run() -> None:
    assert read(OpenRuns(), [5] * 100) == []


def test_another_directory_is_crossed_into_by_an_open_alone() -> None:
    ahead = OpenRuns()
    run = one_run(ahead)
    assert not ahead.may_prefetch(run, LEAST_OPENS + 1, b"e")
    ahead.used(LEAST_OPENS)
    assert take(ahead) == []
    ahead.opened(LEAST_OPENS + 1, b"e")
    assert take(ahead, 1) == [LEAST_OPENS + 2]


def crossed(ahead: OpenRuns) -> int:
    """A run that has crossed into the directory e; the last number that was opened there."""
    run = one_run(ahead, MOST_GAPS)
    assert not ahead.may_prefetch(run, MOST_GAPS + 1, b"e")
    last = MOST_GAPS + 4
    ahead.to_list()
    for ino in range(MOST_GAPS + 1, last + 1):
        ahead.opened(ino, b"e")
    return last


def test_a_run_that_has_crossed_goes_on_into_one_more_directory() -> None:
    ahead = OpenRuns()
    last = crossed(ahead)
    found = ahead.next()
    assert found is not None
    run, ino = found
    assert ahead.may_prefetch(run, ino, b"f")
    assert run.bringing == b"f"
    ahead.begun(run, ino, SIZE)
    assert ahead.may_prefetch(run, ino + 1, b"f")
    assert not ahead.may_prefetch(run, ino + 2, b"g"), "one at a time"
    assert ahead.next() is None
    ahead.used(last + 1)
    assert run.directory == b"f", "what was opened there was cached"


def test_a_run_in_its_first_directory_does_not_go_on_into_another() -> None:
    ahead = OpenRuns()
    run = one_run(ahead)
    assert not ahead.may_prefetch(run, LEAST_OPENS + 1, b"e")


def test_a_reader_who_is_late_in_the_directory_before_stops_nothing() -> None:
    ahead = OpenRuns()
    last = crossed(ahead)
    ahead.opened(MOST_GAPS - 1, b"d")
    found = ahead.next()
    assert found is not None
    run, ino = found
    assert ino == last + 1
    assert ahead.may_prefetch(run, ino, b"e")


def test_the_next_directory_is_listed_once_on_the_way_through_one() -> None:
    ahead = OpenRuns()
    listed = 0
    for ino in range(1, 1000):
        ahead.opened(ino, b"d")
        listed += len(ahead.to_list())
        assert listed == (ino >= LIST_AFTER)


def test_a_run_that_has_crossed_has_the_next_directory_listed_at_once() -> None:
    ahead = OpenRuns()
    last = crossed(ahead)
    (run,) = ahead.to_list()
    assert run.at == last
    ahead.opened(last + 1, b"e")
    assert ahead.to_list() == []


def test_where_a_directory_ends_the_next_is_listed_and_gone_on_with() -> None:
    """Its numbers are known only then. Where none comes, nobody asks again."""
    ahead = OpenRuns()
    last = crossed(ahead)
    (run,) = ahead.to_list()
    for _ in range(2):
        none(ahead, run, MOST_GAPS)
        assert ahead.next() is None
        assert ahead.to_list() in ([run], [])
        ahead.listed(run)
    assert [run.at_end, run.next] == [False, last + 1]
    none(ahead, run, MOST_GAPS)
    assert ahead.to_list() == []
    ahead.listed(run)
    assert take(ahead, 1) == [last + 1]


def test_of_several_ends_the_first_counts() -> None:
    ahead = OpenRuns()
    run = one_run(ahead)
    for ino in (LEAST_OPENS + 3, LEAST_OPENS + 1, LEAST_OPENS + 2):
        assert not ahead.may_prefetch(run, ino, b"e")
    ahead.opened(LEAST_OPENS + 1, b"e")
    assert take(ahead, 1) == [LEAST_OPENS + 2]


def test_where_all_is_cached_the_run_ends() -> None:
    ahead = OpenRuns()
    looks = 0
    for ino in range(1, 1000):
        (ahead.used if ino > LEAST_OPENS else lambda ino: ahead.opened(ino, b"d"))(ino)
        while (found := ahead.next()) is not None:
            looks += 1
            ahead.record_cached(found[0])
    assert looks == MOST_HERE
    assert len(ahead) == 0


def test_numbers_that_are_no_small_files_are_passed_over() -> None:
    ahead = OpenRuns()
    run = one_run(ahead)
    ahead.record_not_small(run)
    assert take(ahead, 1) == [LEAST_OPENS + 2]


def test_behind_many_numbers_that_are_no_small_files_a_run_waits_for_an_open() -> None:
    ahead = OpenRuns()
    run = one_run(ahead, MOST_GAPS)
    ahead.record_not_small(run)
    none(ahead, run, MOST_GAPS - 1)
    ahead.used(MOST_GAPS)
    assert (run.at_end, ahead.next()) == (True, None)
    ahead.opened(MOST_GAPS + 1, b"d")
    assert take(ahead, 2) == [MOST_GAPS + 2, MOST_GAPS + 3]


def test_a_run_without_room_is_given_up_and_begins_anew() -> None:
    ahead = OpenRuns()
    ahead.drop(one_run(ahead))
    assert ahead.next() is None
    for ino in range(50, 50 + LEAST_OPENS):
        ahead.opened(ino, b"d")
    assert take(ahead, 1) == [50 + LEAST_OPENS]


def test_nothing_is_brought_where_nothing_may() -> None:
    assert read(OpenRuns(most_files=0), [*range(1, 200)]) == []


STEPS = ["opened", "used", "next", "here", "none", "elsewhere", "listed", "drop"]
Step = st.tuples(st.sampled_from(STEPS), st.integers(1, 3000), st.integers(1, 40))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(Step, max_size=60))
def test_bounds_hold_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    ahead = OpenRuns()
    seen: dict[int, OpenRun] = {}
    for what, ino, count in steps:
        for one in range(ino, ino + count):
            if what == "opened":
                ahead.opened(one, b"%d" % (one // 500))
            elif what == "used":
                ahead.used(one)
            elif (found := ahead.next()) is not None:
                run, at = found
                assert run.at < at <= run.at + MOST_FILES
                seen[id(run)] = run
                outcome = {
                    "here": ahead.record_cached,
                    "none": ahead.record_not_small,
                    "drop": ahead.drop,
                }
                if what == "next":
                    ahead.begun(run, at, SIZE)
                elif what == "elsewhere":
                    ahead.may_prefetch(run, at, b"%d" % (at // 500))
                elif what == "listed":
                    ahead.listed(run)
                else:
                    outcome[what](run)
        if count % 3 == 0:
            assert len(ahead.to_list()) <= len(seen) + MOST_RUNS
        runs = [*ahead._runs.values()]
        assert len(runs) <= MOST_RUNS
        assert ahead.unread_bytes == sum(sum(run.unread.values()) for run in runs)
        for run in seen.values():
            assert not run.unread or run in runs
            assert len(run.unread) <= MOST_FILES + MOST_SPAN
            assert 0 < run.count <= run.at - run.first + 1 <= MOST_SPAN + 40 + 64
