"""A server in the foreground: waits for its end and passes on the signals that ask for it."""

from __future__ import annotations

import os
import signal
from types import FrameType

from cachefs.launcher import processes
from cachefs.launcher.processes import STOP_SIGNALS


def stay(pid: int) -> int:
    """Waits for a child of ours; the exit code. The first signal asks it to end, the second one
    ends it."""
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        os.kill(pid, signal.SIGTERM if len(asked) == 1 else signal.SIGKILL)

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    return processes.wait_child(pid)
