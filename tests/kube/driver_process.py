"""`cachefs csi` as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.services.environment import environment_of

ROOT: Final = Path(__file__).parents[2]
END_S: Final = 10.0


def driver_command(kubelet_dir: Path, holder: str, *flags: str) -> list[str]:
    """Returns the command of a driver. It lacks `--master`."""
    command = [sys.executable, "-m", "cachefs.cli.main", "csi", "--node-id", "node1"]
    command += ["--endpoint", f"unix://{kubelet_dir}/plugins/csi.cachefs.io/csi.sock"]
    command += ["--kubelet-dir", str(kubelet_dir), "--holder", holder]
    return [*command, *flags]


class DriverProcess:
    """A driver that serves, from its start to `stop` or `kill`. Its log is appended to `log`."""

    def __init__(self, command: Sequence[str], home: Path, log: Path) -> None:
        with open(log, "ab") as errors:
            self.popen = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=environment_of(home),
                text=True,
            )
        assert self.popen.stdout is not None
        with self.popen.stdout as said:
            assert said.readline().startswith("OK"), log.read_text()

    @property
    def pid(self) -> int:
        return self.popen.pid

    def stop(self) -> None:
        """Ends it as the kubelet does, and waits until it has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it by SIGKILL, and waits until it has ended."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.popen.poll() is None:
            os.kill(self.pid, number)
            self.popen.wait(END_S)
