"""The files, processes and mounts of the demo, and their removal.

One folder holds all files (the server's, the state home, the cache). Every process of the demo
inherits a variable that names the folder, so that the clean-up finds all of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MARK = "CACHEFS_DEMO"
ROOM_BYTES = 2 << 30
END_LIMIT_S = 10.0


def _roomy_folder() -> str:
    """Returns a folder in memory if it has enough space, so that no disk limits the rates."""
    if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free >= ROOM_BYTES:
        return "/dev/shm"
    return tempfile.gettempdir()


def wait_until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Polls every 20 ms until the limit; returns the last result."""
    end = time.monotonic() + limit_s
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.02)
    return held


def is_running(pid: int) -> bool:
    """Returns True while the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Sandbox:
    """A folder, an environment, a mount point. `close` removes all of it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cachefs-demo-", dir=_roomy_folder()))
        self.mountpoint = self.folder / "mnt"
        self.cache = self.folder / "cache"
        self.mountpoint.mkdir()
        self.cache.mkdir(mode=0o700)
        os.environ[MARK] = str(self.folder)
        os.environ["XDG_CACHE_HOME"] = str(self.folder / "home")
        os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
        for name in [n for n in os.environ if n.startswith("AWS_") and not n.endswith("_FILE")]:
            del os.environ[name]

    def mounts(self) -> list[str]:
        """Returns the mount points below the folder by the kernel's table: touches no dead
        mount."""
        table = Path("/proc/self/mountinfo").read_text()
        points = [line.split()[4] for line in table.splitlines()]
        return [point for point in points if point.startswith(f"{self.folder}/")]

    def processes(self) -> list[int]:
        """Returns the processes that this demo started, except itself."""
        found = []
        mark = f"{MARK}={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return [pid for pid in found if is_running(pid)]

    def kill(self, pids: list[int]) -> None:
        """Stops all processes, so that none starts another, kills them, and waits for their end."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        wait_until(lambda: not any(map(is_running, pids)), END_LIMIT_S)

    def close(self) -> None:
        """Removes everything, in any state."""
        self.kill(self.processes())
        for point in self.mounts():
            subprocess.run(["fusermount3", "-uz", point], check=True)
        shutil.rmtree(self.folder)
