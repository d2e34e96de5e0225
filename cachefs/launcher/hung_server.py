"""Kills a server that does not answer, so that the normal handling of a dead server replaces it.

A process is killed only through a pidfd that was opened while the process was known to listen on
the server's socket: a reused pid is never killed.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from pathlib import Path
from typing import Final

from cachefs.client.sockets import connect_socket, listener_pid
from cachefs.core.errors import Unreachable
from cachefs.launcher.process_watch import ProcessId, Watch, is_stopped
from cachefs.launcher.state import read_pointer

log = logging.getLogger(__name__)

END_S: Final = 5.0  # after SIGKILL; the kernel holds a process that takes longer
_LISTED: Final = 8  # threads that a message names


def find_server(socket_path: str, pid: int) -> Watch | None:
    """Returns the process `pid`, which listens on a server's socket, if mounts may kill it. None
    for a worker that stays without mounts, and for a process that the pointer does not name."""
    pointer = read_pointer(Path(socket_path).parent)
    if pointer is None or pointer.stays or pointer.pid != pid:
        return None
    return Watch(ProcessId(pid))


def unanswered(pid: int, path: str) -> Unreachable:
    """Returns the error of a server whose process lives and does not answer, with its remedy. A
    stopped process handles no signal but SIGCONT and SIGKILL."""
    if is_stopped(pid):
        cause, remedy = "is stopped, and does not answer", f"resume it: kill -CONT {pid}"
    else:
        cause, remedy = "does not answer", f"see its log, or end it: kill -KILL {pid}"
    return Unreachable(f"the server (pid {pid}) {cause}", remedy=remedy, path=path)


def end_listener(socket_path: str) -> bool:
    """Kills the server that listens on a socket, if mounts may. Returns whether it ended."""
    try:
        with connect_socket(socket_path) as sock:
            pid = listener_pid(sock)
            found = find_server(socket_path, pid)
    except Unreachable:
        return False
    if found is None:
        return False
    with found as watch:
        return end(watch)


def end(watch: Watch) -> bool:
    """Kills a server with SIGKILL, which also ends a stopped one. Returns False, and logs the
    cause, if it does not end: one of its threads waits in the kernel."""
    watch.signal(signal.SIGKILL)
    if watch.ended(END_S):
        return True
    log.error(
        "the server (pid %d) was killed and does not end: %s; "
        "its mounts wait until it has ended and is replaced",
        watch.pid, _held(watch.pid) or "its threads cannot be read",
    )  # fmt: skip
    return False


def _held(pid: int) -> str:
    """Returns the threads of a process in uninterruptible sleep, with their wait channels."""
    tasks: list[Path] = []
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir())[:64]
    return ", ".join([place for task in tasks if (place := _place(task))][:_LISTED])


def _place(task: Path) -> str:
    """Returns where a thread in uninterruptible sleep waits; empty for any other thread."""
    try:
        if (task / "stat").read_text().rpartition(")")[2].split()[0] != "D":
            return ""
        return f"thread {task.name} is in {(task / 'wchan').read_text() or '?'}"
    except OSError:
        return ""
