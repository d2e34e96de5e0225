"""Which directories a round has to compare."""

from __future__ import annotations

import random

import pytest

from master.state.directory_times import NS, SKEW_S, DirectoryTimes

T = 1_000_000.0


def test_a_directory_that_changed_long_before_it_was_listed_is_not_compared() -> None:
    times = DirectoryTimes()
    assert not times.changed(2, int((T - SKEW_S - 1) * NS), T)
    assert times.changed(3, int((T - SKEW_S + 1) * NS), T), "the clocks may differ"


def test_a_change_is_compared_twice() -> None:
    times = DirectoryTimes()
    old = int((T - 2 * SKEW_S) * NS)
    assert not times.changed(2, old, T)
    times.end_round()
    assert times.changed(2, old + 5, T)
    times.end_round()
    assert times.changed(2, old + 5, T), "a change that followed may have the same time"
    times.end_round()
    assert not times.changed(2, old + 5, T)


def test_a_directory_that_a_round_did_not_see_is_forgotten() -> None:
    times = DirectoryTimes()
    times.changed(2, 1, T)
    times.end_round()
    assert len(times) == 1
    times.end_round()
    assert len(times) == 0


def test_a_round_that_ended_early_forgets_nothing() -> None:
    times = DirectoryTimes()
    for ino in (2, 3):
        times.changed(ino, 1, T)
    times.end_round()
    assert times.changed(2, 7, T)
    times.abandon_round()
    assert len(times) == 2
    assert times.changed(2, 7, T), "once more"
    assert not times.changed(3, 1, T)


def test_a_change_that_could_not_be_marked_is_compared_until_it_is() -> None:
    times = DirectoryTimes()
    old = int((T - 2 * SKEW_S) * NS)
    assert not times.changed(2, old, T)
    times.end_round()
    for _ in range(3):
        assert times.changed(2, old + 5, T)
        times.abandon_round([2])
    for _ in range(2):
        assert times.changed(2, old + 5, T)
        times.end_round()
    assert not times.changed(2, old + 5, T)


@pytest.mark.parametrize("seed", range(200))
def test_every_change_is_compared(seed: int) -> None:
    """A store whose times have a precision of a second, rounds each second or later: the last
    comparison of a directory is after its last change."""
    chance = random.Random(seed)
    times = DirectoryTimes()
    now, changed_at, compared_at = T, T - chance.choice((1.0, 2 * SKEW_S)), T
    for _ in range(30):
        for _ in range(chance.randint(0, 3)):
            now += chance.random() * 0.4
            if chance.random() < 0.4:
                changed_at = now
        if times.changed(2, int(changed_at) * NS, T):
            compared_at = now
        times.end_round()
        now += 1.0 + chance.random()
    for _ in range(2):
        if times.changed(2, int(changed_at) * NS, T):
            compared_at = now
        times.end_round()
        now += 1.0
    assert compared_at >= changed_at
