"""A server in the foreground: waits for its end, and forwards the signals that stop it."""

from __future__ import annotations

import os
import signal
from types import FrameType

from cachefs.launcher import processes
from cachefs.launcher.processes import STOP_SIGNALS


def stay(pid: int) -> int:
    """Waits for a child; returns its exit code. The first signal sends it SIGTERM, others
    SIGKILL."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        os.kill(pid, signal.SIGTERM if len(received) == 1 else signal.SIGKILL)

    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    return processes.wait_child(pid)
