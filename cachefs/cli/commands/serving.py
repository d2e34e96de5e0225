"""A process that a command starts: the start ends with the command, and in the foreground the
command waits for the end of the process, and forwards the signals that stop it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from cachefs.cli import output
from cachefs.launcher import processes
from cachefs.launcher.processes import STOP_SIGNALS, ProcessId, Watch


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Has SIGTERM and SIGHUP raise KeyboardInterrupt in the block, as Ctrl-C does, unless they are
    ignored: what the block has started ends with it. Handlers that the block sets stay."""
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def even_unread() -> Iterator[None]:
    """Goes on after the block if nobody reads its output: the process that it reports is to be
    waited for."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        output.discard()


class Child:
    """The wait for a child. From the construction on, the first signal sends it SIGTERM, others
    SIGKILL."""

    def __init__(self, pid: int) -> None:
        self._process = ProcessId(pid)
        self._signals = 0
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)

    def stay(self) -> int:
        """Waits for the child; returns its exit code."""
        return processes.wait_child(self._process.pid)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        with Watch(self._process) as watch:  # it may have ended
            watch.signal(signal.SIGTERM if self._signals == 1 else signal.SIGKILL)
