"""Which files are brought before they are opened: those that come next, never more than a bounded
number of those that nobody wants."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.state.filesahead import (
    LEAST_OPENS,
    MOST_FILES,
    MOST_GAPS,
    MOST_HERE,
    MOST_RUNS,
    MOST_SPAN,
    FilesAhead,
    Run,
)

SIZE = 1000


def take(ahead: FilesAhead, most: int = 10_000) -> list[int]:
    """Begins to bring all that is wanted."""
    inos: list[int] = []
    while len(inos) < most and (found := ahead.next()) is not None:
        run, ino = found
        ahead.begun(run, ino, SIZE)
        inos.append(ino)
    return inos


def read(ahead: FilesAhead, inos: list[int]) -> list[int]:
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


def one_run(ahead: FilesAhead) -> Run:
    for ino in range(1, LEAST_OPENS + 1):
        ahead.opened(ino, b"d")
    found = ahead.next()
    assert found is not None
    return found[0]


def test_what_comes_next_is_brought_once_and_in_order() -> None:
    inos = [*range(100, 1100)]
    brought = read(FilesAhead(), inos)
    assert brought == [*range(100 + LEAST_OPENS, brought[-1] + 1)]
    assert 1099 <= brought[-1] <= 1099 + MOST_FILES


def test_the_window_grows_with_what_was_opened() -> None:
    ahead = FilesAhead()
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
    brought = read(FilesAhead(), inos)
    assert len(brought) == len(set(brought))
    assert len({*brought} & {*inos}) > 0.9 * len(inos)


def test_readers_of_a_part_each_are_a_run_each() -> None:
    parts = [[*range(1000 * part, 1000 * part + 300)] for part in range(8)]
    inos = [ino for together in zip(*parts, strict=True) for ino in together]
    brought = read(FilesAhead(), inos)
    assert len({*brought} & {*inos}) > 0.9 * len(inos)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_order_brings_next_to_nothing(seed: int) -> None:
    inos = [*range(1, 100_001)]
    random.Random(seed).shuffle(inos)
    assert len(read(FilesAhead(), inos[:5000])) < 50


def test_every_fourth_file_brings_nothing() -> None:
    assert read(FilesAhead(), [*range(1, 4000, 4)]) == []


def test_a_file_that_is_opened_again_and_again_is_no_run() -> None:
    assert read(FilesAhead(), [5] * 100) == []


def test_another_directory_is_crossed_into_by_an_open_alone() -> None:
    ahead = FilesAhead()
    run = one_run(ahead)
    ahead.was_elsewhere(run, LEAST_OPENS + 1)
    ahead.used(LEAST_OPENS)
    assert take(ahead) == []
    ahead.opened(LEAST_OPENS + 1, b"e")
    assert take(ahead, 1) == [LEAST_OPENS + 2]


def test_where_all_is_cached_the_run_ends() -> None:
    ahead = FilesAhead()
    looks = 0
    for ino in range(1, 1000):
        (ahead.used if ino > LEAST_OPENS else lambda ino: ahead.opened(ino, b"d"))(ino)
        while (found := ahead.next()) is not None:
            looks += 1
            ahead.was_here(found[0])
    assert looks == MOST_HERE
    assert len(ahead) == 0


def test_numbers_that_are_no_small_files_are_passed_over() -> None:
    ahead = FilesAhead()
    run = one_run(ahead)
    ahead.was_none(run)
    assert take(ahead, 1) == [LEAST_OPENS + 2]
    for _ in range(MOST_GAPS):
        ahead.was_none(run)
    assert (len(ahead), ahead.next(), ahead.unread_bytes) == (0, None, 0)


def test_a_run_without_room_is_given_up_and_begins_anew() -> None:
    ahead = FilesAhead()
    ahead.drop(one_run(ahead))
    assert ahead.next() is None
    for ino in range(50, 50 + LEAST_OPENS):
        ahead.opened(ino, b"d")
    assert take(ahead, 1) == [50 + LEAST_OPENS]


def test_nothing_is_brought_where_nothing_may() -> None:
    assert read(FilesAhead(most_files=0), [*range(1, 200)]) == []


Step = st.tuples(st.sampled_from(["opened", "used", "next", "here", "none", "elsewhere", "drop"]),
                 st.integers(1, 3000), st.integers(1, 40))  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(Step, max_size=60))
def test_bounds_hold_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    ahead = FilesAhead()
    seen: dict[int, Run] = {}
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
                outcome = {"here": ahead.was_here, "none": ahead.was_none, "drop": ahead.drop}
                if what == "next":
                    ahead.begun(run, at, SIZE)
                elif what == "elsewhere":
                    ahead.was_elsewhere(run, at)
                else:
                    outcome[what](run)
        runs = [*ahead._runs.values()]
        assert len(runs) <= MOST_RUNS
        assert ahead.unread_bytes == sum(sum(run.unread.values()) for run in runs)
        for run in seen.values():
            assert not run.unread or run in runs
            assert len(run.unread) <= MOST_FILES + MOST_SPAN
            assert 0 < run.count <= run.at - run.first + 1 <= MOST_SPAN + 40 + 64
