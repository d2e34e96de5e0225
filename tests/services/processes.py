"""What tests and benches ask of processes (do they run, what do they wait for), and how to wait."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PAUSE_S = 0.02
CREDENTIAL_MARKS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL", "AWS_")


class NotInTime(Exception):
    """Something did not come about within its limit; the text says what."""


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = 30.0) -> Any:
    """Polls until `condition` is true and returns what it gave. Raises NotInTime naming `what`.

    It pauses as long as the question took: many ask by a command, which takes CPU time from what
    they wait for."""
    pause, deadline = threading.Event(), time.monotonic() + limit_s
    while True:
        asked = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        if now > deadline:
            raise NotInTime(f"not within {limit_s:g} s: {what}")
        pause.wait(max(PAUSE_S, now - asked))


def stat_fields(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` after the name, the state first. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def stop(pid: int) -> None:
    """Stops a process, and waits until each of its threads is stopped: one may answer until the
    process's first thread had its turn."""
    os.kill(pid, signal.SIGSTOP)

    def is_stopped() -> bool:
        tasks = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
        return all(map(_rests, tasks))

    wait_until(is_stopped, f"process {pid} is stopped")


def _rests(task: int) -> bool:
    """Is this thread stopped, or has it ended?"""
    try:
        return stat_fields(task)[0] in "TZ"
    except OSError:
        return True


def tcp_sockets(pid: int) -> set[str]:
    """The TCP sockets among the descriptors of a process, of whatever state."""
    lines = [
        line
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    of_namespace = {f"socket:[{line.split()[9]}]" for line in lines}
    own: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(link))
    return of_namespace & own


def credentials(pid: int) -> list[str]:
    """The names in the environment of a process that look like those of credentials."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    names = [pair.partition("=")[0] for pair in pairs]
    return [name for name in names if any(mark in name.upper() for mark in CREDENTIAL_MARKS)]


def is_running(pid: int) -> bool:
    """Is this process there, and no zombie?"""
    try:
        return stat_fields(pid)[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> set[int]:
    """The processes that this one started, whichever of its threads did; none if it has ended."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended
                found |= {int(child) for child in path.read_text().split()}
    return found


def next_child(pid: int, before: set[int], limit_s: float = 60.0) -> int:
    """The pid of the next process that this one starts. Raises NotInTime."""
    started: set[int] = wait_until(lambda: children(pid) - before, "another child", limit_s)
    return next(iter(started))


def families(pids: Iterable[int]) -> set[int]:
    """These processes, and all below them that run now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int(stat_fields(int(entry.name))[1]), []).append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, left = set(), [*pids]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def waits(pid: int) -> str:
    """What each thread of a process does now, a line each: of one that should have ended."""
    lines = []
    for task in _tasks(pid):
        try:
            name = (task / "comm").read_text().strip()
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            lines.append(f"  thread {task.name} {name}: {state} in {_where(task)}")
        except OSError:  # it has ended
            continue
    return "\n".join(lines)


def _tasks(pid: int) -> list[Path]:
    """The threads of a process; none if it has ended."""
    try:
        return sorted(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _where(task: Path) -> str:
    try:
        return ", ".join(line.split()[-1] for line in (task / "stack").read_text().splitlines())
    except OSError:  # not everybody may look
        return (task / "wchan").read_text()
