"""Ends a server that does not answer, so that the ordinary path for a dead server replaces it.

A process is killed only by a pidfd that was opened while the process was known to be the one that
listens on the server's socket: a reused number is never mistaken for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Final

from cachefs.client.sockets import connect_socket, listener_of
from cachefs.core.errors import Unreachable
from cachefs.launcher.state import read_pointer
from cachefs.launcher.watches import Watch, is_stopped

log = logging.getLogger(__name__)

END_S: Final = 5.0  # after SIGKILL; a process that takes longer is held by the kernel
_LISTED: Final = 8  # threads that a message names


def find_server(socket_path: str, pid: int) -> Watch | None:
    """The process `pid`, which listens on a server's socket, where mounts may end it: None for a
    worker that a service manager watches, and for a process that the pointer does not name."""
    pointer = read_pointer(Path(socket_path).parent)
    if pointer is None or pointer.stays or pointer.pid != pid:
        return None
    return Watch(pid)


def unanswered(pid: int, path: str) -> Unreachable:
    """Returns the error of a server whose process lives and does not answer, with what to do. A
    stopped process takes no other signal than SIGCONT and SIGKILL."""
    if is_stopped(pid):
        cause, remedy = "is stopped, and does not answer", f"let it go on: kill -CONT {pid}"
    else:
        cause, remedy = "does not answer", f"see its log, or end it: kill -KILL {pid}"
    return Unreachable(f"the server (pid {pid}) {cause}", remedy=remedy, path=path)


def end_listener(socket_path: str) -> bool:
    """Kills the server that listens on a socket and does not answer. False where there is none, or
    where mounts may not end it, or where it does not end."""
    try:
        with connect_socket(socket_path) as sock:
            pid = listener_of(sock)
            found = find_server(socket_path, pid)
    except Unreachable:
        return False
    if found is None:
        return False
    with found as watch:
        return end(watch)


def end(watch: Watch) -> bool:
    """Kills a server by SIGKILL, which also ends one that is stopped. False, with the cause in the
    log, where it does not end: a thread of it waits in the kernel."""
    watch.signal(signal.SIGKILL)
    if watch.ended(END_S):
        return True
    log.error(
        "the server (pid %d) was killed and does not end: %s; "
        "what needs it waits, and it is replaced once it has ended",
        watch.pid, _held(watch.pid) or "no thread of it can be seen",
    )  # fmt: skip
    return False


def _held(pid: int) -> str:
    """The threads of a process that wait in the kernel uninterruptibly, and where."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"))[:64]:
        with contextlib.suppress(OSError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state == "D":
                where = (task / "wchan").read_text() or "?"
                found.append(f"thread {os.path.basename(task)} is in {where}")
    return ", ".join(found[:_LISTED])
