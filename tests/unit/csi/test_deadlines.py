"""Calls that may hang have deadlines, and are not started twice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cachefs.core.errors import DeadlineExceeded, InUse, Unreachable
from cachefs.csi.deadlines import Answer, Apart, Probes


def test_a_call_that_hangs_is_left_and_not_repeated() -> None:
    apart, hangs, runs = Apart(), threading.Event(), threading.Event()

    def call() -> None:
        runs.set()
        hangs.wait(10)

    with pytest.raises(DeadlineExceeded):
        apart.run("/a", call, 0.05)
    assert runs.is_set()
    with pytest.raises(InUse):
        apart.run("/a", call, 5)
    apart.run("/b", lambda: None, 5)
    hangs.set()


def test_a_call_raises_to_its_caller() -> None:
    def call() -> None:
        raise OSError(5, "broken")

    apart = Apart()
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            apart.run("/a", call, 5)


def test_a_probe_answers(tmp_path: Path) -> None:
    probes = Probes()
    assert probes.query(str(tmp_path), 10) is Answer.ALIVE
    assert probes.query(str(tmp_path), 0) is Answer.NONE
    with pytest.raises(FileNotFoundError):
        probes.query(str(tmp_path / "none"), 10)


def test_closed_probes_do_not_wait(tmp_path: Path) -> None:
    probes = Probes()
    probes.close()
    assert probes.query(str(tmp_path), 10) is Answer.NONE


def test_a_call_without_a_thread_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of processes of a container counts threads."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    apart, runs = Apart(), threading.Event()
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unreachable):
            apart.run("/a", runs.set, 5)
    apart.run("/a", runs.set, 5)
    assert runs.is_set()
