"""The line of a command that waits: only on a terminal, and only after a while."""

from __future__ import annotations

import io
import threading

import pytest

from cachefs.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_wait_is_announced_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said, shown = threading.Event(), Terminal()
    monkeypatch.setattr(output, "WAIT_S", 0.0)
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(output.click, "echo", lambda text, err: (shown.write(text), said.set()))
    with output.announced("waiting for s3://bucket"):
        assert said.wait(10.0)
    assert shown.getvalue() == "cachefs: waiting for s3://bucket"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_short_wait_and_a_script_get_no_line(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    monkeypatch.setattr(output, "WAIT_S", 600.0 if stream.isatty() else 0.0)
    monkeypatch.setattr("sys.stderr", stream)
    before = {*threading.enumerate()}
    with output.announced("waiting for s3://bucket"):
        assert len({*threading.enumerate()} - before) == stream.isatty()
    assert stream.getvalue() == ""
