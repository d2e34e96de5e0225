"""Checks of processes (CacheFS or not, stopped, of a user), and the wait for the end of one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path


def is_ours(pid: int) -> bool:
    """Returns whether this is a live process of CacheFS, and not one that reused the pid."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"cachefs" in title


def is_stopped(pid: int) -> bool:
    """Returns whether a signal (SIGSTOP, SIGTSTP) or a debugger stopped the process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[:1] in (["T"], ["t"])


def is_of_user(pid: int, uid: int) -> bool:
    """Returns whether a process runs as a user, by its real user id."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return any(line.split()[1] == str(uid) for line in status.splitlines() if line[:4] == "Uid:")


class Watch:
    """Watches a process through a pidfd, so that a reused pid is never mistaken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._fd = os.pidfd_open(pid) if is_ours(pid) else -1
        except OSError:
            self._fd = -1

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def ended(self, timeout_s: float) -> bool:
        """Returns whether the process ends within the time. Blocks."""
        if self._fd < 0:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal. Does nothing if the process has ended."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)
