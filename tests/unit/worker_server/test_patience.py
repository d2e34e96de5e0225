"""How long a session's requests may wait: each has a deadline, and those of one system call share
it."""

from __future__ import annotations

import pytest

from cachefs.core import messages as m
from cachefs.core.model import Inode, Kind, NamespaceId
from worker.server.request_deadlines import (
    CHAIN_S,
    GRACE_S,
    LEAST_S,
    MOST_DEADLINES,
    RequestDeadlines,
)
from worker.stats.arrivals import NEVER_S

NAMESPACE = NamespaceId(b"n" * 16)
DEADLINE_S = 30.0
FOUND = m.Found(Inode(7, Kind.FILE), 5.0)
FAILED = m.Failure("deadline", "no answer")


def lasts(
    patience: RequestDeadlines, body: m.Message, now: float, id: int = 99, moved_s: float = NEVER_S
) -> float:
    """How long a request would wait that begins now, in seconds. `moved_s`: when the source sent
    a page last."""
    patience.begin(id, body, now)
    low, high = 0.0, 1000.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        if id in patience.overdue(now + middle, lambda body: moved_s):
            high = middle
        else:
            low = middle
    return round(high, 1)


def test_a_request_ends_at_the_deadline() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    assert lasts(patience, m.Open(NAMESPACE, 7), 1000.0) == DEADLINE_S + GRACE_S
    assert patience.about(99) == m.Open(NAMESPACE, 7)
    patience.end(99, FAILED, 1010.0)
    assert patience.about(99) is None
    assert patience.overdue(9999.0, lambda body: 9999.0) == []


def test_what_no_system_call_asks_for_has_no_deadline() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    patience.begin(1, m.Status(), 1000.0)
    assert patience.overdue(9999.0, lambda body: 9999.0) == []


def test_the_requests_of_one_system_call_share_a_deadline() -> None:
    """A name on the way, the name of the file, and its open."""
    patience = RequestDeadlines(DEADLINE_S)
    patience.begin(1, m.Lookup(NAMESPACE, 1, b"dir"), 1000.0)
    patience.end(1, m.Found(Inode(5, Kind.DIRECTORY), 5.0), 1010.0)
    patience.begin(2, m.Lookup(NAMESPACE, 5, b"file"), 1010.1)
    patience.end(2, FOUND, 1025.1)
    left_s = DEADLINE_S + GRACE_S - 25
    assert lasts(patience, m.Open(NAMESPACE, 7), 1025.2) == left_s
    assert lasts(patience, m.Open(NAMESPACE, 8), 1025.2) == DEADLINE_S + GRACE_S


def test_a_later_system_call_has_its_own() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    patience.begin(1, m.Lookup(NAMESPACE, 1, b"file"), 1000.0)
    patience.end(1, FOUND, 1025.0)
    full_s = DEADLINE_S + GRACE_S
    assert lasts(patience, m.Open(NAMESPACE, 7), 1025.1 + CHAIN_S) == full_s


def test_calls_that_ask_again_and_again_have_one_each() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    now = 1000.0
    for id in range(20):
        patience.begin(id, m.GetAttr(NAMESPACE, 7), now)
        now += 5.0
        patience.end(id, FOUND, now)
    assert lasts(patience, m.GetAttr(NAMESPACE, 7), now) == DEADLINE_S + GRACE_S


def test_a_read_that_failed_is_asked_for_once_more_and_not_waited_for_again() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    patience.begin(1, m.Ensure(3, 0, 1 << 20), 1000.0)
    patience.end(1, FAILED, 1000.0 + DEADLINE_S + GRACE_S)
    now = 1000.1 + DEADLINE_S + GRACE_S
    assert lasts(patience, m.Ensure(3, 0, 4096), now) == LEAST_S
    assert lasts(patience, m.Ensure(4, 0, 4096), now, 98) == DEADLINE_S + GRACE_S
    patience.end(99, FAILED, now + LEAST_S)
    later = now + LEAST_S + CHAIN_S
    assert lasts(patience, m.Ensure(3, 0, 4096), later, 97) == DEADLINE_S + GRACE_S


def test_a_read_that_succeeded_costs_the_next_one_nothing() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    patience.begin(1, m.Ensure(3, 0, 1 << 20), 1000.0)
    patience.end(1, m.Ensured(0, 1 << 20), 1020.0)
    assert lasts(patience, m.Ensure(3, 1 << 20, 4096), 1020.1) == DEADLINE_S + GRACE_S


OPEN, READ = m.Open(NAMESPACE, 7), m.Ensure(3, 0, 1 << 20)


@pytest.mark.parametrize("body", [OPEN, READ])
def test_a_wait_for_bytes_counts_from_the_last_page_of_the_source(body: m.Message) -> None:
    patience, full_s = RequestDeadlines(DEADLINE_S), DEADLINE_S + GRACE_S
    assert lasts(patience, body, 1000.0, moved_s=1020.0) == 20.0 + full_s
    assert lasts(patience, body, 1000.0, moved_s=990.0) == full_s
    assert lasts(patience, body, 1000.0, moved_s=1900.0) == MOST_DEADLINES * full_s


def test_a_wait_for_a_name_does_not() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    body = m.GetAttr(NAMESPACE, 7)
    assert lasts(patience, body, 1000.0, moved_s=1020.0) == DEADLINE_S + GRACE_S


def test_the_second_request_of_a_failed_read_does_not() -> None:
    patience = RequestDeadlines(DEADLINE_S)
    patience.begin(1, READ, 1000.0)
    patience.end(1, FAILED, 1031.0)
    assert lasts(patience, m.Ensure(3, 0, 4096), 1031.1, moved_s=1031.0) == LEAST_S


def test_a_wait_is_taken_off_one_request_only() -> None:
    """Another process asks for names in the same directory."""
    patience = RequestDeadlines(DEADLINE_S)
    patience.begin(1, m.Lookup(NAMESPACE, 1, b"dir"), 1000.0)
    patience.end(1, m.Found(Inode(5, Kind.DIRECTORY), 5.0), 1025.0)
    left_s = DEADLINE_S + GRACE_S - 25
    assert lasts(patience, m.Lookup(NAMESPACE, 5, b"file"), 1025.1, 2) == left_s
    for id in range(3, 10):
        full_s = DEADLINE_S + GRACE_S
        assert lasts(patience, m.Lookup(NAMESPACE, 5, b"other"), 1025.1, id) == full_s
    patience.end(2, FOUND, 1025.2)  # at once: the wait goes on to the next request of that call
    assert lasts(patience, m.Open(NAMESPACE, 7), 1025.3) == left_s
