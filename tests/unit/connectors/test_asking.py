"""Whose turn it is to read small files: threads', or the one thread's for many."""

from __future__ import annotations

import random

import pytest

from connectors.small_read_choice import MOST_FAILURES, SmallReadChoice

KEPT_S = 60.0
SEED = random.SystemRandom().getrandbits(32)


class Rig:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns: SmallReadChoice[str] = SmallReadChoice(KEPT_S, lambda: self.now_s)

    def reads_by_threads(self, means: str = "means") -> int:
        """Returns how many come before the turn of the one thread."""
        for count in range(1, 1000):
            self.turns.succeeded(means)
            if self.turns.current() is not None:
                return count
        raise AssertionError("never")


def test_one_read_by_a_thread_comes_first() -> None:
    rig = Rig()
    assert rig.turns.current() is None
    assert rig.reads_by_threads() == 1
    assert rig.turns.current() == "means"


def test_it_holds_for_a_while() -> None:
    rig = Rig()
    rig.reads_by_threads("old")
    rig.now_s = KEPT_S
    assert rig.turns.current() == "old"
    rig.now_s += 0.1
    assert rig.turns.current() is None
    assert rig.reads_by_threads("new") == 1
    assert rig.turns.current() == "new"


def test_after_a_failure_it_is_tried_ever_less_often() -> None:
    rig = Rig()
    waits = []
    for _ in range(MOST_FAILURES + 4):
        waits.append(rig.reads_by_threads())
        rig.turns.ended("means", "unreachable")
    assert waits == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]


def test_one_that_comes_makes_up_for_failures() -> None:
    rig = Rig()
    for _ in range(5):
        rig.reads_by_threads()
        rig.turns.ended("means", "unreachable")
    rig.reads_by_threads()
    rig.turns.ended("means", "")
    rig.turns.ended("means", "unreachable")
    assert rig.reads_by_threads() == 1


def test_many_that_fail_at_once_are_one_failure() -> None:
    rig = Rig()
    rig.reads_by_threads()
    for _ in range(100):
        rig.turns.ended("means", "unreachable")
    assert rig.reads_by_threads() == 1


def test_what_was_asked_for_before_says_nothing_of_now() -> None:
    rig = Rig()
    rig.reads_by_threads("old")
    rig.now_s = KEPT_S + 1
    assert rig.turns.current() is None
    rig.reads_by_threads("new")
    rig.turns.ended("old", "unreachable")
    assert rig.turns.current() == "new"


@pytest.mark.parametrize("has_turn", [False, True])
def test_there_is_none_after_the_end(has_turn: bool) -> None:
    rig = Rig()
    if has_turn:
        rig.reads_by_threads()
    rig.turns.close()
    rig.turns.succeeded("late")
    assert rig.turns.current() is None
