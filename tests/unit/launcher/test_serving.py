"""A server process that is to end and does not says why, and ends."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachefs.launcher import serving, state

LIMIT_S = 30.0

ENDING = """
import asyncio, logging, sys, threading
from cachefs.launcher import serving

serving.TELL_S, serving.END_S = {tell_s}, {end_s}
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)

async def waits_for_nothing() -> None:
    await asyncio.Event().wait()

async def end() -> None:
    serving.limit_shutdown()
    {end}

asyncio.run(end())
serving.quit_now(0)
"""


def ending(end: str, tell_s: float, end_s: float) -> subprocess.CompletedProcess[str]:
    script = ENDING.format(end=end, tell_s=tell_s, end_s=end_s)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_an_end_that_does_not_come_is_explained_and_comes() -> None:
    done = ending("await asyncio.create_task(waits_for_nothing())", 0.05, 2.0)
    assert done.returncode == 1, done.stderr
    assert "WARNING not ended yet: <coroutine object waits_for_nothing" in done.stdout
    assert "at waits_for_nothing:" in done.stdout
    assert "ERROR the shutdown takes too long; thread MainThread" in done.stdout


def test_a_thread_that_keeps_the_loop_is_shown() -> None:
    done = ending("threading.Event().wait()", 0.05, 0.5)
    assert done.returncode == 1, done.stderr
    assert "in end" in done.stdout


def test_an_end_that_comes_says_nothing() -> None:
    done = ending("await asyncio.sleep(0)", LIMIT_S, LIMIT_S)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_pointer_that_cannot_be_removed_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state, "_CHANGE_S", 0.0)
    state.write_pointer(tmp_path, state.Pointer.of_this_process("/s"))
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    serving.forget_pointer(tmp_path)
    assert "the pointer to this server stays" in caplog.text
    os.close(directory)
    serving.forget_pointer(tmp_path)
    assert state.read_pointer(tmp_path) is None
