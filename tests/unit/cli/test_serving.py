"""A command in the foreground, and the signals that reach it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cachefs.cli.commands import serving
from cachefs.launcher.processes import STOP_SIGNALS


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the handlers of this process."""
    former = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def test_a_signal_after_the_end_of_the_process_is_passed_to_nobody() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    child.returncode = serving.stay(child.pid)
    assert child.returncode == 3
    signal.raise_signal(signal.SIGTERM)


def test_a_signal_interrupts_a_start_alone() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with serving.interruptible():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
