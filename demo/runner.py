"""The run of a demo: its time limit, signals, errors, and what it leaves, which is nothing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable

from demo.console import DemoFailed
from demo.readers import WrongBytes
from demo.sandbox import Sandbox

DEMO_LIMIT_S = 170
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


def run(play: Callable[[Sandbox], None]) -> int:
    """Runs a demo in a sandbox; returns 1 if a check failed. Removes everything in any case."""
    box = Sandbox()
    with contextlib.closing(box):
        _stop_on_signals(box)
        try:
            play(box)
        except (DemoFailed, WrongBytes, RuntimeError, subprocess.TimeoutExpired) as err:
            print(f"demo failed: {err}", file=sys.stderr)
            return 1
    return 0


def _stop_on_signals(box: Sandbox) -> None:
    """Installs a handler for Ctrl-C, other signals and the time limit. It kills all processes
    first, so that no command waits for their replies, and then cleans up."""

    def stop(number: int, frame: object) -> None:
        for other in STOPS:
            signal.signal(other, signal.SIG_IGN)
        box.kill(box.processes())
        name = "took too long" if number == signal.SIGALRM else signal.Signals(number).name
        print(f"demo stopped: {name}", file=sys.stderr)
        raise SystemExit(128 + number)

    for number in STOPS:
        signal.signal(number, stop)
    signal.alarm(DEMO_LIMIT_S)
