"""A command in the foreground, and the signals that reach it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cachefs.cli import settings
from cachefs.cli.commands import master, mount, serving
from cachefs.core.errors import BadConfig
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec, Started
from cachefs.launcher.local import LocalClusterStarter
from cachefs.launcher.processes import STOP_SIGNALS, Server
from cachefs.launcher.state import StateHome
from tests.unit.cli.test_commands import Run


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the handlers of this process."""
    former = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def test_a_signal_after_the_end_of_the_process_is_passed_to_nobody() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.returncode = serving.Child(process.pid).stay()
    assert process.returncode == 3
    signal.raise_signal(signal.SIGTERM)


def test_a_signal_between_start_and_wait_is_passed_on() -> None:
    """The default handlers would end the command alone, and leave the child."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    command = [sys.executable, "-c", "print(flush=True); input()  # cachefs"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        with serving.interruptible():
            child = serving.Child(process.pid)
        assert signal.getsignal(signal.SIGTERM) == child._stop
        signal.raise_signal(signal.SIGTERM)
        process.returncode = child.stay()
    assert process.returncode == 128 + signal.SIGTERM


class Waited:
    """Stands for the wait for a child; knows whether it began before the start had ended."""

    begun: ClassVar[list[bool]] = []

    def __init__(self, *_: object) -> None:
        self.begun.append(signal.getsignal(signal.SIGTERM) is signal.default_int_handler)

    def stay(self) -> int:
        return 0


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(Waited, "begun", [])
    return Waited.begun


def test_a_master_is_waited_for_from_its_start_on(
    run: Run, begun: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "start_master", lambda *_: Started(1, url="http://127.0.0.1:7"))
    monkeypatch.setattr(serving, "Child", Waited)
    assert run("master")[0] == 0
    assert begun == [True]


def test_a_mount_is_waited_for_from_its_start_on(
    home: StateHome, begun: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = ClientSpec(str(home.path), "", UfsSpec("file:///x"), str(tmp_path / "mnt"))
    monkeypatch.setattr(mount, "plan", lambda *_, **__: spec)
    monkeypatch.setattr(mount, "_start", lambda *_: (Server("", False, ""), Started(1)))
    monkeypatch.setattr(mount, "Foreground", Waited)
    chosen = settings.load_settings({}, None, {})
    assert mount.perform("file:///x", spec.mountpoint, chosen, foreground=True) == 0
    assert begun == [True]


def test_a_signal_ends_what_up_is_starting(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    seen = []

    def start(*_: object) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        raise BadConfig("enough")

    monkeypatch.setattr(LocalClusterStarter, "run", start)
    assert run("up")[0] == 1
    assert seen == [signal.default_int_handler]


def test_a_signal_interrupts_a_start_alone() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with serving.interruptible():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
