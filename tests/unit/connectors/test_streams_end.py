"""The reading of small files ends: each read is told once, and nothing is left."""

from __future__ import annotations

import os
import threading

import pytest

from connectors.streams import CONNECTIONS
from tests.unit.connectors.raw_http import LIMIT_S as WAIT_S
from tests.unit.connectors.raw_http import Came, Rig, answer, is_given_back, rig


@pytest.mark.parametrize("count", [0, 1, CONNECTIONS + 100])
def test_the_end_gives_everything_back(rig: Rig, count: int) -> None:
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    reads = [rig.start(f"/{number}/10") for number in range(count)]
    rig.server.wait(lambda: len(rig.server.requests) == min(count, CONNECTIONS), "not asked")
    rig.thread.close(WAIT_S)
    assert [read.taken for read in reads] == [[None]] * count
    assert len(rig.server.requests) == min(count, CONNECTIONS)
    over.set()


def fail() -> None:
    raise ZeroDivisionError("nobody expected it")


def test_an_error_of_who_is_told_ends_it(rig: Rig) -> None:
    """And the same read is told no second time."""
    assert rig.is_right(rig.start("/first/10"))
    over = threading.Event()
    rig.server.script = lambda came: answer(came) if came.target == "/bad/10" else over.wait(WAIT_S)
    under_way = [rig.start(f"/{number}/10") for number in range(5)]
    rig.server.wait(lambda: len(rig.server.requests) == 6, "not asked")
    calls: list[str] = []

    def taken() -> None:
        calls.append("bad")
        fail()

    bad = rig.start("/bad/10", taken=taken)
    rig.thread.thread.join(WAIT_S)
    rig.reads.remove(bad)
    assert calls == ["bad"]
    assert isinstance(rig.thread.error, ZeroDivisionError)
    assert all(read.taken == [None] for read in under_way)
    over.set()


def test_an_error_as_a_connection_is_replaced_ends_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(request: Came) -> bool:
        return not request.number and answer(request)

    rig.server.script = script
    assert rig.is_right(rig.start("/a/10"))
    monkeypatch.setattr("connectors.streams.Connection", lambda _: fail())
    read = rig.start("/b/10")
    assert is_given_back(read)
    rig.server.wait(lambda: rig.server.ended == 1, "the connection is kept")
    assert isinstance(rig.thread.error, ZeroDivisionError)


def test_all_others_are_told_where_one_of_them_fails_at_the_end(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    rig.server.script = lambda _: over.wait(WAIT_S)
    before = [rig.start(f"/a{number}/10") for number in range(3)]
    bad = rig.start("/bad/10", taken=fail)
    behind = [rig.start(f"/b{number}/10") for number in range(CONNECTIONS)]
    rig.server.wait(lambda: len(rig.server.requests) == CONNECTIONS, "not asked")
    rig.thread.close(WAIT_S)
    rig.reads.remove(bad)
    assert all(read.taken == [None] for read in before + behind)
    assert "could not be given back" in caplog.text
    over.set()


@pytest.mark.parametrize("how", ["close", "error"])
def test_no_descriptor_is_left(how: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with rig() as made:
        assert all(made.is_right(made.start(f"/{number}/10")) for number in range(3))
        over = threading.Event()
        made.server.script = lambda came: (
            answer(came) if came.target == "/bad/10" else over.wait(WAIT_S)
        )
        reads = [made.start(f"/{number}/10") for number in range(5)]
        made.server.wait(lambda: len(made.server.requests) == 8, "not asked")
        if how == "error":
            made.reads.remove(made.start("/bad/10", taken=fail))
            made.thread.thread.join(WAIT_S)
        else:
            made.thread.close(WAIT_S)
        assert [read.result() for read in reads] == [None] * 5
        over.set()
    assert set(os.listdir("/proc/self/fd")) == before
