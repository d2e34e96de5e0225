"""Which inode numbers a start of a store leaves out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.model import MAX_INO
from master.state.numbers import NUMBERS_PER_S, SKIPPED, first_of_start, skipped

NOW = 1_700_000_000.0


def test_two_starts_of_one_state_begin_at_different_numbers() -> None:
    first, second = first_of_start(500, NOW), first_of_start(500, NOW + 1)
    assert second - first == NUMBERS_PER_S
    assert first_of_start(500, NOW + 0.5) - first == NUMBERS_PER_S // 2, "also within a second"


def test_a_start_leaves_out_what_a_run_of_the_same_second_may_have_given() -> None:
    busy = first_of_start(500, NOW) + 7_000_000  # more than a second has room for
    assert first_of_start(busy, NOW) == busy + SKIPPED


def test_a_clock_that_is_wrong_by_a_century_uses_no_numbers_up() -> None:
    assert first_of_start(500, float(1 << 33)) == first_of_start(500, -5.0) == 500 + SKIPPED


def test_the_last_numbers_are_not_left_out() -> None:
    assert skipped(MAX_INO - 5) == MAX_INO - 5


@given(st.integers(2, MAX_INO), st.floats(0, 4e9))
def test_numbers_never_go_back_and_stay_in_range(next_ino: int, now_s: float) -> None:
    assert next_ino <= first_of_start(next_ino, now_s) <= MAX_INO
