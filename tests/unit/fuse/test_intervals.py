"""What may be read of a partial file is exactly what was granted."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cachefs.fuse.intervals import MAX_RANGES, Intervals

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=30)


@given(RANGES, st.integers(0, 70))
def test_as_a_set_of_bytes(ranges: list[tuple[int, int]], position: int) -> None:
    intervals, model = Intervals(), set()
    for start, end in ranges:
        intervals.add(start, end)
        model |= set(range(start, end))
    end = intervals.end_of(position)
    assert all(byte in model for byte in range(position, end))
    assert end not in model
    kept = intervals.ranges()
    assert all(a < b for a, b in kept)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(kept))


def test_memory_is_bounded_and_the_smallest_range_goes() -> None:
    intervals = Intervals()
    for number in range(MAX_RANGES):
        intervals.add(10 * number, 10 * number + 5 - (number == 7))
    intervals.add(10 * MAX_RANGES, 10 * MAX_RANGES + 9)
    assert len(intervals.ranges()) == MAX_RANGES
    assert intervals.end_of(0) == 5
    assert intervals.end_of(70) == 70, "asked again, never guessed"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_what_was_just_added_is_kept(sizes: list[int]) -> None:
    """It was granted to somebody who reads it now, however small it is."""
    intervals = Intervals()
    for number in range(MAX_RANGES):
        intervals.add(10 * number, 10 * number + 5)
    for number, size in enumerate(sizes, MAX_RANGES):
        intervals.add(10 * number, 10 * number + size)
        assert intervals.end_of(10 * number) == 10 * number + size
        assert len(intervals.ranges()) == MAX_RANGES
