"""A command that runs after a time, unless it is cancelled before: for what this process itself
could not do then, because all its threads are stuck."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_WAIT: Final = """
import subprocess, sys, time
time.sleep(float(sys.argv[1]))
subprocess.run(sys.argv[2:])
"""


class LateCommand:
    """Runs the command `after_s` from now."""

    def __init__(self, after_s: float, *command: str) -> None:
        line = [sys.executable, "-S", "-c", _WAIT, str(after_s), *command]
        self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL)

    def cancel(self) -> None:
        """Idempotent."""
        self._process.kill()
        self._process.wait()
