"""A server process that is to end and does not says why, and ends."""

from __future__ import annotations

import subprocess
import sys

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
