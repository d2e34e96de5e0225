"""Unmounts by the commands of the system."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.services.processes import wait_until

LIMIT_S: Final = 30.0


def unmount(mountpoint: Path, command: Sequence[str] = ("umount",)) -> None:
    """Unmounts by a command. Tries again while the mount is busy: a client that has just taken it
    over, and commands of tests beside this one, look at it for a moment. Raises NotInTime."""
    line = [*command, str(mountpoint)]

    def is_done() -> bool:
        return subprocess.run(line, timeout=LIMIT_S, check=False).returncode == 0

    wait_until(is_done, f"{command[0]} of {mountpoint}", LIMIT_S)
