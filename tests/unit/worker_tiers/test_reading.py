"""Calls to one tier's disk for another: in time or not at all, and nothing is left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefs.core.model import ContentId, NamespaceId, Origin
from worker.cache import tier_source as source_module
from worker.fill.source import Purpose
from worker.store.cached_file import Run
from worker.tier import guarded_reads as reading
from worker.tier.guarded_reads import MOST_THREADS, DiskReader, GivenUp

LIMIT_S = 20.0


def tier(*, in_memory: bool = False) -> Any:
    return SimpleNamespace(directory=SimpleNamespace(in_memory=in_memory), outside=set())


def ignore(result: object) -> None:
    pass


def fail() -> int:
    raise OSError(5, "a bad sector")


@pytest.mark.parametrize("in_memory", [True, False])
def test_results_and_errors_come_back(in_memory: bool) -> None:
    reader, disk = DiskReader(), tier(in_memory=in_memory)
    for number in range(20):
        assert reader.call(disk, lambda number=number: number, ignore) == number
    with pytest.raises(OSError, match="a bad sector"):
        reader.call(disk, fail, ignore)
    assert disk.outside == set()
    assert len(reader._threads) == (0 if in_memory else 1), "one after the other"
    reader.close()


def hanging(function: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[], None]]:
    """The function, which returns once the other one was called."""
    gate = threading.Event()

    def wait() -> Any:
        assert gate.wait(LIMIT_S)
        return function()

    return wait, gate.set


def test_a_disk_that_hangs_is_given_up_and_its_results_are_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "CALL_S", 0.05)
    reader, disk = DiskReader(), tier()
    right, answers = hanging(lambda: "late")
    wrong, answers_wrongly = hanging(fail)
    discarded: list[str | None] = []
    for _ in range(MOST_THREADS + 2):
        with pytest.raises(GivenUp):
            reader.call(disk, right, discarded.append)
    with pytest.raises(GivenUp):
        reader.call(disk, wrong, discarded.append)
    assert disk.outside == set()
    assert len(reader._threads) == MOST_THREADS
    answers()
    answers_wrongly()
    reader.close()
    for thread in reader._threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert sorted(discarded, key=str) == [None] + ["late"] * (MOST_THREADS + 2)


def test_what_is_under_way_can_be_seen() -> None:
    """By whoever watches that disk."""
    reader, disk = DiskReader(), tier()
    function, answers = hanging(lambda: 7)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(reader.call(disk, function, ignore)))
    thread.start()
    pause = threading.Event()
    for _ in range(1000):
        if disk.outside:
            break
        pause.wait(0.01)
    assert len(disk.outside) == 1
    answers()
    thread.join(LIMIT_S)
    assert disk.outside == set()
    assert found == [7]
    reader.close()


def test_without_a_thread_the_disk_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes come from the next source, until the system has threads again."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader, disk = DiskReader(), tier()
    discarded: list[int | None] = []
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        with pytest.raises(GivenUp):
            reader.call(disk, lambda: 7, discarded.append)
    assert discarded == [None]
    assert reader.call(disk, lambda: 7, ignore) == 7
    assert disk.outside == set()
    reader.close()


def test_nothing_begins_after_the_end() -> None:
    reader, disk = DiskReader(), tier(in_memory=True)
    reader.close()
    discarded: list[int | None] = []
    with pytest.raises(GivenUp):
        reader.call(disk, fail, discarded.append)
    assert disk.outside == set()
    assert discarded == [None], "what the call would have used is let go"


def test_a_call_that_meets_the_end_is_refused_at_once() -> None:
    """Behind what ends the threads nobody would take it: who closes would wait for its limit."""
    reader = DiskReader()
    assert reader.call(tier(), lambda: 1, ignore) == 1

    class Closing:
        @property
        def in_memory(self) -> bool:
            reader.close()
            return False

    disk: Any = SimpleNamespace(directory=Closing(), outside=set())
    with pytest.raises(GivenUp, match="closing"):
        reader.call(disk, lambda: 2, ignore)
    assert disk.outside == set()


@pytest.mark.parametrize("closes", [False, True])
def test_a_page_that_is_given_up_and_fails_later_keeps_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """The file is closed when nothing reads from it any more, and what is wanted comes from the
    next source; also where the reader ends before."""
    monkeypatch.setattr(reading, "CALL_S", 0.05)
    wait, answers = hanging(fail)
    monkeypatch.setattr(source_module, "_fill", lambda *_: wait())
    (tmp_path / "file").write_bytes(b"x" * 10)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    reader, disk = DiskReader(), tier()
    disk.directory.path = "/tier"
    if closes:
        reader.close()
    source: Any = SimpleNamespace(reader=reader, then=SimpleNamespace(read=lambda *_: [b"y" * 10]))
    origin = Origin(ContentId(NamespaceId(b"n" * 16), 1, 0, 1), "u", b"p", "e", 10, 0)
    found = Run(fd, 10, [0])
    body = source_module._Body(source, disk, origin, 0, 10, found, Purpose.READ)
    assert list(body) == [b"y" * 10]
    answers()
    reader.close()
    for thread in reader._threads:
        thread.join(LIMIT_S)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
