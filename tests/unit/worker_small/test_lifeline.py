"""The process that reads small files ends with its server, whatever state it is in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.processes import is_running, stat_fields, wait_until

ROOT = Path(__file__).parents[3]
SERVER = """
import sys, threading
from worker.fill.small.engine import Run, spawn
started = []
thread = threading.Thread(target=lambda: started.append(Run(spawn)))
thread.start()
thread.join()  # the thread that started it ends: it goes on
print(started[0].child.pid, flush=True)
sys.stdin.read()
"""


def kill(server: subprocess.Popen[str]) -> None:
    server.kill()


def end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()


@pytest.mark.parametrize("act", [kill, end])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_it_ends_with_its_server(
    act: Callable[[subprocess.Popen[str]], None], is_stopped: bool
) -> None:
    """[S-small-process] A process that is stopped cannot end by itself: the kernel ends it."""
    command = [sys.executable, "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as server:  # type: ignore[call-overload]
        pid = int(server.stdout.readline())
        try:
            assert is_running(pid), "it outlives the thread that started it"
            if is_stopped:
                os.kill(pid, signal.SIGSTOP)
                wait_until(lambda: stat_fields(pid)[0] == "T", "it is stopped")
            act(server)
            server.wait(20)
            wait_until(lambda: not is_running(pid), "it has ended")
        finally:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
            server.kill()
