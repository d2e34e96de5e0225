"""The log of a process whose disk, or whose reader of standard error, does not go on."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.launcher import log_writer
from cachefs.launcher.log_writer import MOST_LINES, LogWriter
from tests.services.processes import wait_until

LIMIT_S = 30.0
QUICK_S = 20.0  # 2,050 lines that are waited for take 205 s

# Standard error is a pipe that nobody reads: 64 KiB fit.
WRITES_MUCH = """
import logging
from cachefs.launcher.logs import log_to
log_to("", "INFO", to_stderr=True)
for number in range(200):
    logging.getLogger("test").info("%d %s", number, "x" * 1000)
print("all lines were logged", flush=True)
{end}
"""


class Sink(logging.Handler):
    """Keeps lines. Waits in each one while `goes_on` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert self.goes_on.wait(LIMIT_S)
        self.lines.append(record.getMessage())


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.goes_on.set()


@pytest.fixture
def log(sink: Sink) -> Iterator[logging.Logger]:
    log = logging.Logger("test")
    writer = LogWriter(sink)
    writer.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log.addHandler(writer)
    yield log
    sink.goes_on.set()
    writer.close()


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the thread that writes may be late by more than a caller waits."""
    monkeypatch.setattr(log_writer, "PATIENCE_S", LIMIT_S)


def test_a_line_is_written_when_the_call_returns(
    log: logging.Logger, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_patient(monkeypatch)
    for number in range(100):
        log.info("line %d", number)
        assert sink.lines[-1] == f"INFO line {number}"


def test_no_caller_waits_for_a_log_that_is_stuck(log: logging.Logger, sink: Sink) -> None:
    """What fits into the queue is written later, and the log says what was left out."""
    sink.goes_on.clear()
    since = time.monotonic()
    for number in range(MOST_LINES + 50):
        log.info("line %d", number)
    assert time.monotonic() - since < QUICK_S
    sink.goes_on.set()
    log.handlers[0].close()
    written = sink.lines[:-1]
    assert written == [f"INFO line {number}" for number in range(len(written))]
    assert MOST_LINES <= len(written) <= MOST_LINES + 1  # one is with the thread
    assert sink.lines[-1].startswith("WARNING this log could not be written for ")
    assert sink.lines[-1].endswith(f" s; {MOST_LINES + 50 - len(written)} lines were left out")


def test_lines_are_waited_for_again_afterwards(
    log: logging.Logger, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.goes_on.clear()
    log.info("late")
    sink.goes_on.set()

    def is_prompt() -> bool:
        log.info("line")
        return len(sink.lines) == next(sent)

    sent = itertools.count(2)
    wait_until(is_prompt, "a line is written when the call returns", LIMIT_S)
    be_patient(monkeypatch)
    for number in range(100):
        log.info("line %d", number)
        assert sink.lines[-1] == f"INFO line {number}"


@pytest.mark.parametrize("end", ["", "from cachefs.launcher.serving import quit_now; quit_now(0)"])
def test_a_process_ends_though_its_log_is_stuck(end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES_MUCH.format(end=end)]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # with it, standard error has no lock
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment
    ) as process:
        try:
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == b"all lines were logged\n"
