"""The thread that reads small files ends: each read is told once, and nothing is left."""

from __future__ import annotations

import os
import select
import threading

import pytest

from connectors.base import Ask
from connectors.streams import (
    CONNECTIONS,
    Streams,
)
from tests.unit.connectors.raw_http import LIMIT_S as WAIT_S
from tests.unit.connectors.raw_http import (
    Request,
    Rig,
    answer,
    is_given_back,
    rig,
)


@pytest.mark.parametrize("count", [0, 1, CONNECTIONS + 100])
def test_close_gives_everything_back(rig: Rig, count: int) -> None:
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    reads = [rig.start(f"/{number}/10") for number in range(count)]
    rig.server.wait(lambda: len(rig.server.requests) == min(count, CONNECTIONS), "not asked")
    assert rig.streams.close(WAIT_S)
    assert rig.streams.close(0)
    assert [read.taken for read in reads] == [[None]] * count
    assert sum(read.asked for read in reads) == min(count, CONNECTIONS)
    assert not rig.start("/after/10").started
    over.set()


def test_close_does_not_wait_for_ever(rig: Rig) -> None:
    taking, over = threading.Event(), threading.Event()

    def taken(_: memoryview | None) -> None:
        taking.set()
        over.wait(WAIT_S)

    assert rig.streams.start(lambda: None, taken)
    assert taking.wait(WAIT_S)
    assert not rig.streams.close(0.01)
    over.set()


def test_reads_that_start_beside_the_end_are_told_once_or_refused() -> None:
    for _ in range(20):
        with rig() as made:
            ready = threading.Barrier(5)

            def start(made: Rig = made, ready: threading.Barrier = ready) -> None:
                ready.wait(WAIT_S)
                for number in range(50):
                    made.start(f"/{number}/10")

            threads = [threading.Thread(target=start) for _ in range(4)]
            for thread in threads:
                thread.start()
            ready.wait(WAIT_S)
            assert made.streams.close(WAIT_S)
            for thread in threads:
                thread.join(WAIT_S)
            assert len(made.reads) == 200


def fail() -> None:
    raise ZeroDivisionError("nobody expected it")


def test_an_error_of_prepare_ends_it(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    assert rig.is_right(rig.start("/first/10"))
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    under_way = [rig.start(f"/{number}/10") for number in range(5)]
    rig.server.wait(lambda: len(rig.server.requests) == 6, "not asked")
    assert rig.streams._thread is not None
    bad = [rig.start("/bad/10", then=fail) for _ in range(3)]
    rig.streams._thread.join(WAIT_S)
    assert bad[0].started
    assert all(read.taken == [None] for read in under_way + bad if read.started)
    assert not rig.start("/after/10").started
    assert "read by threads" in caplog.text
    over.set()


@pytest.mark.parametrize("which", ["taken", "ended", "is_it"])
def test_an_error_of_what_it_calls_ends_it(
    rig: Rig, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the same read is told no second time."""
    called: list[str] = []

    def call(name: str) -> None:
        called.append(name)
        if name == which:
            fail()

    def is_it(*_: object) -> bool:
        call("is_it")
        return True

    def prepare() -> Ask:
        head = b"GET /f/10 HTTP/1.1\r\n\r\n"
        return Ask(rig.server.address, head, 10, is_it, lambda *_: call("ended"))

    assert rig.streams.start(prepare, lambda _: call("taken"))
    thread = rig.streams._thread
    assert thread is not None
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert called == ["is_it", "ended", "taken"]
    assert not rig.start("/after/10").started


def test_an_error_as_a_connection_is_replaced_ends_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(request: Request) -> bool:
        return not request.number and answer(request)

    rig.server.script = script
    assert rig.is_right(rig.start("/a/10"))
    monkeypatch.setattr("connectors.streams.Connection", lambda _: fail())
    read = rig.start("/b/10")
    assert is_given_back(read)
    rig.server.wait(lambda: rig.server.ended == 1, "the connection is kept")


def test_all_others_are_told_where_one_of_them_fails_at_the_end(rig: Rig) -> None:
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    before = [rig.start(f"/a{number}/10") for number in range(3)]

    def taken(_: memoryview | None) -> None:
        fail()

    head = b"GET /f/10 HTTP/1.1\r\n\r\n"
    ask = Ask(rig.server.address, head, 10, lambda *_: True, lambda *_: None)
    assert rig.streams.start(lambda: ask, taken)
    behind = [rig.start(f"/b{number}/10") for number in range(CONNECTIONS)]
    rig.server.wait(lambda: len(rig.server.requests) == CONNECTIONS, "not asked")
    assert rig.streams.close(WAIT_S)
    assert all(read.taken == [None] for read in before + behind)
    over.set()


def test_it_cannot_begin_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> select.epoll:
        raise OSError(24, "Too many open files")

    streams = Streams("streams", lambda: 0.0)
    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(select, "epoll", none_left)
        assert not streams.start(lambda: None, lambda _: None)
    assert set(os.listdir("/proc/self/fd")) == before
    done = threading.Event()
    assert streams.start(lambda: None, lambda _: done.set())
    assert done.wait(WAIT_S)
    assert streams.close(WAIT_S)


@pytest.mark.parametrize("how", ["close", "error"])
def test_no_descriptor_is_left(how: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with rig() as made:
        assert all(made.is_right(made.start(f"/{number}/10")) for number in range(3))
        over = threading.Event()
        made.server.script = lambda _: over.wait(WAIT_S)
        reads = [made.start(f"/{number}/10") for number in range(5)]
        made.server.wait(lambda: len(made.server.requests) == 8, "not asked")
        thread = made.streams._thread
        assert thread is not None
        if how == "error":
            made.start("/bad/10", then=fail)
            thread.join(WAIT_S)
        else:
            assert made.streams.close(WAIT_S)
        assert [read.result() for read in reads] == [None] * 5
        over.set()
    assert set(os.listdir("/proc/self/fd")) == before
