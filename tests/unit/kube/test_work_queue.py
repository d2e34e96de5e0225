"""The queue gives each object to one caller at a time, and never loses one."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cachefs.kube.work_queue import FIRST_S, MOST_S, Item, Queue

ONE, TWO = Item("Dataset", "ml", "one"), Item("Dataset", "ml", "two")


def test_keys_are_due_in_time_and_once() -> None:
    queue = Queue()
    queue.add(ONE, 5.0)
    queue.add(TWO, 3.0)
    queue.add(ONE, 4.0)
    queue.add(ONE, 9.0)
    assert (queue.take(2.0), queue.next_at()) == (None, 3.0)
    assert [queue.take(4.0), queue.take(4.0), queue.take(99.0)] == [TWO, ONE, None]


def test_a_key_that_is_handled_waits_until_that_is_done() -> None:
    queue = Queue()
    queue.add(ONE, 0.0)
    assert queue.take(0.0) == ONE
    queue.add(ONE, 0.0)
    assert (queue.take(1.0), queue.next_at()) == (None, math.inf)
    queue.done(ONE, 1.0)
    assert queue.take(1.0) == ONE


def test_failures_wait_ever_longer_until_a_success() -> None:
    queue, now, waits = Queue(), 0.0, []
    queue.add(ONE, now)
    for _ in range(9):
        assert queue.take(now) == ONE
        queue.failed(ONE, now)
        waits.append(queue.next_at() - now)
        now = queue.next_at()
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits[-1] == MOST_S
    assert queue.take(now) == ONE
    queue.done(ONE, now, 5.0)
    assert queue.next_at() == now + 5.0


@given(st.lists(st.tuples(st.sampled_from("atd"), st.sampled_from([ONE, TWO]), st.integers(0, 9))))
def test_no_added_key_is_lost(calls: list[tuple[str, Item, int]]) -> None:
    queue, now, handled, owed = Queue(), 0, set[Item](), set[Item]()
    for call, item, value in calls:
        if call == "a":
            queue.add(item, now + value)
            owed.add(item)
        elif call == "t":
            now += value
            taken = queue.take(now)
            if taken is not None:
                assert taken not in handled
                handled.add(taken)
                owed.discard(taken)
        elif item in handled:
            handled.remove(item)
            queue.done(item, now)
        queue.check_invariants()
    for item in handled:
        queue.done(item, now)
    assert {queue.take(now + 100) for _ in range(len(owed))} == owed
    assert queue.take(now + 100) is None
