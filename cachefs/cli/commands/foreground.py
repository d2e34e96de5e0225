"""A mount in the foreground: waits until it ends, and unmounts it on a signal."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import Final

from cachefs.cli import detach
from cachefs.core.mountinfo import read_mounts
from cachefs.core.specs import ClientSpec
from cachefs.launcher import processes
from cachefs.launcher.processes import STOP_SIGNALS, Watch, is_ours, is_served
from cachefs.launcher.state import MountRecord, StateHome

LOOK_S: Final = 3600.0
FOLLOW_S: Final = 10.0  # for a client to start the next supervisor
_PAUSE_S: Final = 0.05


class Foreground:
    """The wait for one mount. `pid` is the child: the supervisor, or else the client. Signals count
    from the construction on, which precedes the line that reports the mount."""

    def __init__(self, spec: ClientSpec, pid: int) -> None:
        self._spec = spec
        self._pid = pid
        self._is_supervised = spec.transport == "kernel"
        self._signals = 0
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop)

    def stay(self) -> int:
        """Waits for the end of the mount and returns the exit code. The first signal unmounts. With
        a supervisor the second one no longer waits for readers. Later ones send SIGKILL."""
        code = processes.wait_child(self._pid)
        while (supervisor := self._next()) > 0:
            self._pid, code = supervisor, 0
            self._wait(supervisor)
        left = read_mounts().at(self._spec.mountpoint)
        if left is not None and left.is_cachefs:
            detach.detach(self._spec.mountpoint, lazy=True)
        return 0 if self._signals else code

    def _wait(self, supervisor: int) -> None:
        with Watch(supervisor) as watch:
            if self._signals:  # received while no supervisor ran
                watch.signal(signal.SIGTERM)
            while not watch.ended(LOOK_S):
                pass

    def _next(self) -> int:
        """Returns the pid of the supervisor that follows a lost one; 0 when the mount has ended."""
        deadline = time.monotonic() + FOLLOW_S
        while self._is_supervised and time.monotonic() < deadline:
            record = self._record()
            if record is None or not is_served(record):
                return 0
            follows = is_ours(record.supervisor, record.supervisor_born)
            if record.supervisor != self._pid and follows:
                return record.supervisor
            time.sleep(_PAUSE_S)
        return 0

    def _record(self) -> MountRecord | None:
        return StateHome(self._spec.home).find_mount(self._spec.mountpoint)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals <= (2 if self._is_supervised else 1):
            return self._signal(self._pid, signal.SIGTERM)
        self._signal(self._pid, signal.SIGKILL)
        record = self._record()
        if record is not None and self._is_supervised:
            self._signal(record.pid, signal.SIGKILL, record.born)

    @staticmethod
    def _signal(pid: int, number: signal.Signals, born: str = "") -> None:
        if is_ours(pid, born):
            os.kill(pid, number)
