"""Calls that hang: their caller goes on, threads are bounded, and nothing is started in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cachefs.core.errors import NotFound, Unreachable
from connectors.base import Body
from connectors.call_deadline import Deadline
from connectors.call_threads import CallThreads
from connectors.compose import decorate
from connectors.deadline import bounded
from connectors.meter import Meter
from connectors.pages import closing
from tests.services.memory import MemoryConnector
from tests.services.processes import wait_until

SOON_S = 0.05
LATER_S = 20.0
FILES = {b"d/%04d" % number: b"%04d" % number for number in range(25)}


@pytest.fixture
def memory() -> Iterator[MemoryConnector]:
    made = MemoryConnector(FILES, page_entries=10)
    yield made
    made.unblock()


def over(memory: MemoryConnector, attempt_s: float = LATER_S, **threads: int) -> Deadline:
    return Deadline(memory, attempt_s=attempt_s, threads=CallThreads(**threads))


def names(source: Deadline) -> list[bytes]:
    return [entry.name for page in source.list_dir(b"d") for entry in page.entries]


def hang(memory: MemoryConnector, verb: str, act: Callable[[], object]) -> None:
    """A call that hangs at the store raises Unreachable in its caller. Only this call has little
    time: on a busy machine one that does not hang may take longer than that."""
    memory.block(verb)
    with (
        bounded(time.monotonic() + SOON_S),
        pytest.raises(Unreachable, match="did not answer in time"),
    ):
        act()


def test_what_answers_is_passed_on(memory: MemoryConnector) -> None:
    source = over(memory)
    version = source.stat(b"d/0001").fingerprint
    assert b"".join(source.read(b"d/0001", 1, 3, version)) == b"001"
    assert source.read_all(b"d/0001", version) == b"0001"
    assert names(source) == [b"%04d" % number for number in range(25)]
    with pytest.raises(NotFound):
        source.stat(b"nothing")
    source.close()
    source.close()
    with pytest.raises(Unreachable, match="closed"):
        source.check()


def test_a_call_that_hangs_is_left_and_its_thread_counted(memory: MemoryConnector) -> None:
    source = over(memory)
    threads = source._threads
    hang(memory, "stat", lambda: source.stat(b"d/0001"))
    assert threads.lost == 1
    source.check()
    memory.unblock()
    wait_until(lambda: threads.lost == 0, "no lost thread")
    assert source.stat(b"d/0001").fingerprint.size == 4


def test_the_caller_s_own_deadline_is_shorter(memory: MemoryConnector) -> None:
    source = over(memory)
    memory.block("stat")
    started_s = time.monotonic()
    with bounded(started_s + SOON_S), pytest.raises(Unreachable):
        source.stat(b"d/0001")
    assert time.monotonic() - started_s < LATER_S / 2


def test_the_deadline_holds_in_the_call_s_thread(memory: MemoryConnector) -> None:
    seen: list[float] = []
    threads = CallThreads()
    with bounded(time.monotonic() + LATER_S):
        source = Deadline(memory, threads=threads)
        until_s = source._until()
        threads.run(lambda: seen.append(_until_of_this_thread()), until_s, lambda _: None)
    assert seen == [until_s]
    threads.close()


def _until_of_this_thread() -> float:
    from connectors.deadline import until

    return until()


def test_with_too_many_lost_threads_calls_fail_at_once(memory: MemoryConnector) -> None:
    source = over(memory, threads=4, most_lost=2)
    for _ in range(2):
        hang(memory, "stat", lambda: source.stat(b"d/0001"))
    calls = memory.calls.copy()
    with pytest.raises(Unreachable, match="2 calls of the client library hang"):
        source.check()
    assert memory.calls == calls
    memory.unblock()
    wait_until(lambda: source._threads.lost == 0, "no lost thread")
    source.check()


def test_the_number_of_threads_is_bounded(memory: MemoryConnector) -> None:
    """Eight callers, two threads: the first two calls hang, the others wait their turn in vain."""
    source = over(memory, SOON_S, threads=2, most_lost=2)
    before = threading.active_count()
    memory.block("stat")
    errors: list[str] = []

    def call() -> None:
        try:
            source.stat(b"d/0001")
        except Unreachable as error:
            errors.append(error.cause)

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LATER_S)
    assert len(errors) == 8
    assert memory.calls["stat"] <= 4
    assert threading.active_count() - before <= 4
    memory.unblock()
    wait_until(lambda: source._threads.lost == 0, "no lost thread")


def test_a_page_that_hangs_is_waited_for_again(memory: MemoryConnector) -> None:
    source = over(memory)
    listing = source.list_dir(b"d")
    first = next(listing)
    for _ in range(3):
        hang(memory, "page", lambda: next(listing))
    assert memory.calls["page"] == 1
    assert source._threads.lost == 1
    memory.unblock()
    wait_until(lambda: source._threads.lost == 0, "no lost thread")
    found = [entry.name for page in (first, *listing) for entry in page.entries]
    assert found == [b"%04d" % number for number in range(25)]
    assert memory.calls["page"] == 2


def test_a_closed_listing_has_no_more_pages_and_leaves_one_that_hangs(
    memory: MemoryConnector,
) -> None:
    source = over(memory)
    with closing(source.list_dir(b"d")) as listing:
        next(listing)
    assert [*listing] == []
    with closing(source.list_dir(b"d")) as listing:
        next(listing)
        hang(memory, "page", lambda: next(listing))
    assert source._threads.lost == 1
    memory.unblock()
    wait_until(lambda: source._threads.lost == 0, "no lost thread")
    assert memory.calls["page"] == 1


class StuckBody:
    """A body whose second chunk comes when the test says so."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.closed_by: list[str] = []
        self.fails = False

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(b"first")
        assert self.go_on.wait(LATER_S)
        if self.fails:
            raise Unreachable("the second chunk failed")
        yield memoryview(b"second")

    def close(self) -> None:
        self.closed_by.append(threading.current_thread().name)


class OneBody(MemoryConnector):
    body = StuckBody()

    def read(self, *_: Any) -> Body:
        self.script.enter("read", b"")
        return self.body


@pytest.mark.parametrize("fails", [False, True])
def test_a_chunk_that_hangs_ends_the_body(fails: bool) -> None:
    """Nobody closes a body while a thread is in it: that thread does, when it comes back."""
    memory = OneBody(FILES)
    memory.body = StuckBody()
    memory.body.fails = fails
    source = over(memory)
    body = source.read(b"d/0001", 0, 4, memory.stat(b"d/0001").fingerprint)
    chunks = iter(body)
    assert bytes(next(chunks)) == b"first"
    with bounded(time.monotonic() + SOON_S), pytest.raises(Unreachable, match="in time"):
        next(chunks)
    body.close()
    assert memory.body.closed_by == []
    memory.body.go_on.set()
    wait_until(lambda: memory.body.closed_by == ["connector-call"], "the body is closed")


def test_a_body_that_opens_too_late_is_closed() -> None:
    memory = OneBody(FILES)
    memory.body = StuckBody()
    source = over(memory)
    version = memory.stat(b"d/0001").fingerprint
    hang(memory, "read", lambda: source.read(b"d/0001", 0, 4, version))
    memory.unblock()
    wait_until(lambda: memory.body.closed_by == ["connector-call"], "the body is closed")


def test_under_the_other_decorators_a_hung_call_costs_its_deadline(memory: MemoryConnector) -> None:
    """As a stopped server: the caller gets an error in the deadline of all attempts."""
    source = decorate(
        over(memory, SOON_S, most_lost=16), deadline_s=0.5, meter=Meter(), in_flight=4
    )
    memory.block("stat")
    started_s = time.monotonic()
    with pytest.raises(Unreachable):
        source.stat(b"d/0001")
    assert time.monotonic() - started_s < LATER_S / 2
    memory.unblock()
    assert source.stat(b"d/0001").fingerprint.size == 4
