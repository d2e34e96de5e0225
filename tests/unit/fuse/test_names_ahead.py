"""Directories whose names are asked for one by one are read whole, once per validity."""

from __future__ import annotations

from cachefs.fuse.listing_prefetch import MAX_DIRECTORIES, MISSES, ListingPrefetch


def test_the_last_of_some_misses_reads_the_directory_once() -> None:
    ahead = ListingPrefetch()
    answers = [ahead.missed(5, now, 60.0) for now in range(20)]
    assert answers == [number == MISSES - 1 for number in range(20)]


def test_misses_of_another_period_or_directory_do_not_count() -> None:
    ahead = ListingPrefetch()
    for number in range(MISSES - 1):
        assert not ahead.missed(5, 0.0, 10.0)
        assert not ahead.missed(6 + number, 0.0, 10.0)
    assert not ahead.missed(5, 11.0, 21.0)


def test_answers_that_hold_no_time_read_nothing() -> None:
    ahead = ListingPrefetch()
    assert not any(ahead.missed(5, now, now) for now in range(20))


def test_directories_are_bounded() -> None:
    ahead = ListingPrefetch()
    for ino in range(3 * MAX_DIRECTORIES):
        ahead.missed(ino, 0.0, 60.0)
    assert len(ahead._directories) == MAX_DIRECTORIES
