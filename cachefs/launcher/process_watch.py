"""Checks of processes (CacheFS or not, stopped, of a user), and the wait for the end of one.

A record outlives a process that is killed, and another process gets its pid, or one of its threads
does: soon after a restart of the machine or of a container, where pids begin again. So records have
the pid and the birth of a process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
from pathlib import Path
from typing import Final, NamedTuple

_START_FIELD: Final = 19  # `starttime`, counted from the state; see proc(5)


def birth_of(pid: int) -> str:
    """Returns the boot and the time in it at which a process started; "" if there is none."""
    fields = _stat_fields(pid)
    return f"{_boot_id()}:{fields[_START_FIELD]}" if len(fields) > _START_FIELD else ""


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat_fields(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; none if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


class ProcessId(NamedTuple):
    """A process as a record names it. `born` "": not known, as in records of earlier versions."""

    pid: int
    born: str = ""

    def lives(self) -> bool:
        """Returns whether this is a live process of CacheFS, and not one that reused the pid."""
        if self.born and birth_of(self.pid) != self.born:
            return False
        try:
            title = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return False
        return b"cachefs" in title


def is_stopped(pid: int) -> bool:
    """Returns whether a signal (SIGSTOP, SIGTSTP) or a debugger stopped the process."""
    return _stat_fields(pid)[:1] in (["T"], ["t"])


def is_of_user(pid: int, uid: int) -> bool:
    """Returns whether a process runs as a user, by its real user id."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return any(line.split()[1] == str(uid) for line in status.splitlines() if line[:4] == "Uid:")


class Watch:
    """Watches a process through a pidfd, so that a reused pid is never mistaken for it."""

    def __init__(self, process: ProcessId) -> None:
        self.pid, self._fd = process.pid, -1
        with contextlib.suppress(OSError):
            self._fd = os.pidfd_open(process.pid)
        if not process.lives():  # asked later: what lives has this descriptor
            self.__exit__()

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
