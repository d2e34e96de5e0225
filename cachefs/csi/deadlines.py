"""Calls that may hang in the kernel, with deadlines: `Probes` queries a mount in a child process,
and `Apart` runs a call in a thread that its caller can leave behind."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import DeadlineExceeded, InUse, Unreachable

_SLICE_S: Final = 0.2  # after which a waiting probe sees that the driver ends
_KILL_S: Final = 0.5  # for the end of a killed child, if the kernel lets it end
# stat may be answered from the kernel's cache; statfs never is. The exit status is the errno.
_QUERY: Final = """
import os, sys
try:
    os.stat(sys.argv[1]), os.statvfs(sys.argv[1])
except OSError as err:
    os._exit(err.errno)
os._exit(0)
"""


class Answer(enum.Enum):
    """What a mount answered."""

    ALIVE = "alive"
    DEAD = "dead"  # no process holds its descriptor, or it was aborted
    NONE = "none"  # within the deadline


class Probes:
    """The children that query mounts. `close` ends the waits. Threads may share this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[subprocess.Popen[bytes]] = []  # killed; the kernel holds them still
        self._closed = False

    def query(
        self, place: str, deadline_s: float, is_hopeless: Callable[[], bool] = lambda: False
    ) -> Answer:
        """Returns what the root of the mount at this place answers: NONE early if `is_hopeless`.
        Raises the OSError of stat for any other failure than the death of the mount."""
        self.reap()
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _QUERY, place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        if not self._wait(child, deadline_s, is_hopeless):
            self._leave(child)
            return Answer.NONE
        match child.wait():
            case 0:
                return Answer.ALIVE
            case errno.ENOTCONN | errno.ECONNABORTED:
                return Answer.DEAD
            case status if status > 0:
                raise OSError(status, os.strerror(status), place)
        return Answer.NONE  # a signal ended it

    def reap(self) -> None:
        """Forgets those killed children that have ended."""
        with self._lock:
            self._left = [child for child in self._left if child.poll() is None]

    def close(self) -> None:
        """Ends every wait: it answers NONE. Idempotent."""
        self._closed = True

    def _wait(
        self,
        child: subprocess.Popen[bytes],
        deadline_s: float,
        is_hopeless: Callable[[], bool],
    ) -> bool:
        end = time.monotonic() + deadline_s
        fd = os.pidfd_open(child.pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while not self._closed and (left_s := end - time.monotonic()) > 0:
                if poll.poll(1000 * min(left_s, _SLICE_S)):
                    return True
                if is_hopeless():
                    return False
            return False
        finally:
            os.close(fd)

    def _leave(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_S)
            return
        with self._lock:
            self._left.append(child)


class Apart:
    """Runs calls in threads, one at a time for each name. Threads may share this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[str] = set()

    def run(self, name: str, call: Callable[[], None], deadline_s: float) -> None:
        """Runs a call and raises what it raises. Raises InUse if an earlier call of this name still
        runs, DeadlineExceeded if it does not end in time; the call then continues; Unreachable
        if no thread can be started."""
        done, failures = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                call()
            except BaseException as err:  # noqa: BLE001 - its caller raises it
                failures.append(err)
            finally:
                with self._lock:
                    self._running.discard(name)
                done.set()

        with self._lock:
            if name in self._running:
                raise InUse("an earlier operation on it has not ended", path=name)
            self._running.add(name)
        try:
            threading.Thread(target=work, name=f"apart {name}", daemon=True).start()
        except RuntimeError as err:  # the limit of the container's processes
            with self._lock:
                self._running.discard(name)
            raise Unreachable("the driver can start no more threads", path=name) from err
        if not done.wait(deadline_s):
            raise DeadlineExceeded(f"the kernel did not answer within {deadline_s:g} s", path=name)
        if failures:
            raise failures[0]
