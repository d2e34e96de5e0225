"""Retries: which errors, how often, how long."""

from __future__ import annotations

import pytest

from cachefs.core.errors import (
    AccessDenied,
    BadBody,
    CacheFSError,
    DeadlineExceeded,
    Throttled,
    Unreachable,
)
from connectors.deadline import NEVER_S, bounded, futile_when, until
from connectors.limit import Limit
from connectors.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, Retry, pause_s
from tests.services.memory import MemoryConnector


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def memory() -> MemoryConnector:
    return MemoryConnector({b"d/%04d" % n: b"x" * n for n in range(25)}, page_entries=10)


@pytest.fixture
def time() -> Time:
    return Time()


def retry(memory: MemoryConnector, time: Time, deadline_s: float = 10.0) -> Retry:
    return Retry(
        memory, deadline_s=deadline_s, clock=lambda: time.now, sleep=time.sleep, rng=lambda: 1.0
    )


def test_the_pause_doubles_up_to_its_limit() -> None:
    assert [pause_s(n, 1.0) for n in range(3)] == [FIRST_PAUSE_S * 2**n for n in range(3)]
    assert pause_s(1000, 1.0) == LONGEST_PAUSE_S
    assert pause_s(3, 0.0) == 0.0


def test_what_passes_is_tried_again(memory: MemoryConnector, time: Time) -> None:
    memory.fail("stat", b"d/0001", Throttled("slow down"), times=3)
    assert retry(memory, time).stat(b"d/0001").fingerprint.size == 1
    assert memory.calls["stat"] == 4
    assert time.pauses == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("verb", ["check", "stat", "list_dir", "read"])
def test_what_does_not_pass_is_not(memory: MemoryConnector, time: Time, verb: str) -> None:
    version = memory.stat(b"d/0001").fingerprint
    memory.calls.clear()
    memory.fail(verb, None, AccessDenied("no"), times=9)
    source = retry(memory, time)
    calls = {
        "check": source.check,
        "stat": lambda: source.stat(b"d/0001"),
        "list_dir": lambda: list(source.list_dir(b"d")),
        "read": lambda: source.read(b"d/0001", 0, 1, version),
    }
    with pytest.raises(AccessDenied):
        calls[verb]()
    assert memory.calls[verb] == 1


def test_the_deadline_ends_it_with_the_last_error(memory: MemoryConnector, time: Time) -> None:
    memory.fail("check", None, Unreachable("first"))
    memory.fail("check", None, Unreachable("last"), times=99)
    with pytest.raises(Unreachable, match="last"):
        retry(memory, time, deadline_s=2.0).check()
    assert time.pauses == [0.1, 0.2, 0.4, 0.8]
    assert time.now < 102.0


def test_a_later_page_is_tried_again(memory: MemoryConnector, time: Time) -> None:
    memory.fail("page", b"d", Unreachable("cut"), times=2)
    listing = retry(memory, time).list_dir(b"d")
    names = [entry.name for page in listing for entry in page.entries]
    assert names == [b"%04d" % n for n in range(25)]


def test_a_listing_that_failed_for_good_is_not_taken_for_its_end(
    memory: MemoryConnector, time: Time
) -> None:
    memory.fail("page", b"d", Unreachable("cut"), times=99)
    listing = retry(memory, time, deadline_s=1.0).list_dir(b"d")
    assert len(next(listing).entries) == 10
    for _ in range(2):
        with pytest.raises(Unreachable):
            next(listing)


def test_a_body_is_tried_again_before_its_first_bytes(memory: MemoryConnector, time: Time) -> None:
    version = memory.put(b"big", b"b" * (3 << 20))
    memory.cut(b"big", 0, times=2)
    body = retry(memory, time).read(b"big", 0, 3 << 20, version)
    assert sum(len(chunk) for chunk in body) == 3 << 20
    assert memory.calls["read"] == 3


def test_a_body_that_breaks_later_is_the_callers(memory: MemoryConnector, time: Time) -> None:
    version = memory.put(b"big", b"b" * (3 << 20))
    memory.cut(b"big", (1 << 20) + 5)
    chunks: list[int] = []
    body = retry(memory, time).read(b"big", 0, 3 << 20, version)
    with pytest.raises(BadBody):
        chunks.extend(len(chunk) for chunk in body)
    assert (sum(chunks), memory.calls["read"], time.pauses) == ((1 << 20) + 5, 1, [])


def test_an_empty_body(memory: MemoryConnector, time: Time) -> None:
    version = memory.put(b"empty", b"")
    assert list(retry(memory, time).read(b"empty", 0, 0, version)) == []


def test_every_error_says_whether_to_retry() -> None:
    assert not CacheFSError("any").retryable


def test_the_callers_deadline_ends_the_attempts(memory: MemoryConnector, time: Time) -> None:
    """Also where the deadline of this layer is later, and only for the caller's thread."""
    memory.fail("stat", None, Unreachable("down"), times=99)
    source = retry(memory, time, deadline_s=1000.0)
    with bounded(time.now + 5.0), bounded(time.now + 500.0), pytest.raises(Unreachable):
        source.stat(b"d/0001")
    assert time.now <= 105.0
    assert until() == NEVER_S


def test_what_the_caller_gets_elsewhere_is_not_tried_again(
    memory: MemoryConnector, time: Time
) -> None:
    """From the failure on that shows it."""
    memory.fail("stat", b"d/0001", Unreachable("away"), times=9)
    with futile_when(lambda: memory.calls["stat"] >= 3), pytest.raises(Unreachable):
        retry(memory, time).stat(b"d/0001")
    assert memory.calls["stat"] == 3
    assert retry(memory, time, 1e6).stat(b"d/0001").fingerprint.size == 1


def test_a_wait_for_a_place_ends_at_the_callers_deadline(memory: MemoryConnector) -> None:
    limited = Limit(memory, in_flight=1, wait_limit_s=1000.0, clock=lambda: 100.0)
    body = limited.read(b"d/0001", 0, 1, memory.stat(b"d/0001").fingerprint)
    with bounded(100.05), pytest.raises(DeadlineExceeded):
        limited.stat(b"d/0001")
    body.close()
    assert limited.stat(b"d/0001").fingerprint.size == 1
