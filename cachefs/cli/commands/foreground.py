"""A mount in the foreground: waits until it ends, and unmounts it on a signal."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Final

from cachefs.cli import detach
from cachefs.core.mountinfo import read_mounts
from cachefs.core.specs import ClientSpec
from cachefs.launcher import processes
from cachefs.launcher.processes import STOP_SIGNALS, ProcessId, Watch
from cachefs.launcher.state import MountRecord, StateHome

LOOK_S: Final = 3600.0
FOLLOW_S: Final = 10.0  # for a client to start the next supervisor
_PAUSE_S: Final = 0.05


class Foreground:
    """The wait for one mount. `pid` is the child: the supervisor, or else the client. Signals count
    from the construction on, which precedes the line that reports the mount."""

    def __init__(self, spec: ClientSpec, pid: int) -> None:
        self._spec = spec
        self._process = ProcessId(pid)
        self._is_supervised = spec.transport == "kernel"
        self._signals = 0
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)

    def stay(self) -> int:
        """Waits for the end of the mount and returns the exit code. The first signal unmounts. With
        a supervisor the second one no longer waits for readers. Later ones send SIGKILL."""
        code = processes.wait_child(self._process.pid)
        while (supervisor := self._next()) is not None:
            self._process, code = supervisor, 0
            self._wait(supervisor)
        left = read_mounts().at(self._spec.mountpoint)
        if left is not None and left.is_cachefs:
            detach.detach(self._spec.mountpoint, lazy=True)
        return 0 if self._signals else code

    def _wait(self, supervisor: ProcessId) -> None:
        with Watch(supervisor) as watch:
            if self._signals:  # received while no supervisor ran
                watch.signal(signal.SIGTERM)
            while not watch.ended(LOOK_S):
                pass

    def _next(self) -> ProcessId | None:
        """Returns the supervisor that follows a lost one; None when the mount has ended."""
        deadline = time.monotonic() + FOLLOW_S
        while self._is_supervised and time.monotonic() < deadline:
            record = self._record()
            if record is None or not record.is_served():
                return None
            found = record.supervisor_process
            if found.pid != self._process.pid and found.lives():
                return found
            time.sleep(_PAUSE_S)
        return None

    def _record(self) -> MountRecord | None:
        return StateHome(self._spec.home).find_mount(self._spec.mountpoint)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals <= (2 if self._is_supervised else 1):
            return _signal(self._process, signal.SIGTERM)
        _signal(self._process, signal.SIGKILL)
        record = self._record()
        if record is not None and self._is_supervised:
            _signal(record.client_process, signal.SIGKILL)


def _signal(process: ProcessId, number: signal.Signals) -> None:
    with Watch(process) as watch:
        watch.signal(number)
