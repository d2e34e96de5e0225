"""Runs command lines of `cachefs` in forks of a process that has imported their code already:
`python -I cachefs_commands.py FD`. An import takes a quarter of a second of CPU time, and the tests
run more than a thousand commands.

FD is a SOCK_SEQPACKET socket. A request is JSON (`argv`, `env`, `cwd`) with three descriptors: the
command's standard output and error, and a socket for the answer: the pid, and at the end the exit
status as `os.waitpid` has it. This process has one thread, and ends when FD is closed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import socket
import sys
from typing import Any, Final

from cachefs.cli import app, main

REQUEST_BYTES: Final = 128 << 10
_FDS: Final = 3


def import_commands() -> None:
    """Imports what the commands import when they run; no garbage collection of a fork visits it."""
    gc.disable()
    for module, _ in app.COMMANDS.values():
        importlib.import_module(f"cachefs.cli.commands.{module}")
    gc.freeze()
    gc.enable()


class Forks:
    """The requests and the commands under way: by pidfd the pid, and where the answer goes."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> list[str]:
        """Returns in each fork, with the arguments of its command; exits when nobody asks more."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._running:
                    self._ended(key.fd)
                    continue
                data, fds, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES, _FDS)
                if not data:
                    sys.exit(0)
                if self._is_fork(fds):
                    return become(json.loads(data), fds)

    def _is_fork(self, fds: list[int]) -> bool:
        """Forks. Returns whether this is the fork, which has none of the others' descriptors."""
        if pid := os.fork():
            answer = socket.socket(fileno=fds.pop())
            for fd in fds:
                os.close(fd)
            tell(answer, pid)
            pidfd = os.pidfd_open(pid)
            self._running[pidfd] = (pid, answer)
            self._selector.register(pidfd, selectors.EVENT_READ)
            return False
        self._selector.close()
        self._requests.close()
        for pidfd, (_, answer) in self._running.items():
            os.close(pidfd)
            answer.close()
        return True

    def _ended(self, pidfd: int) -> None:
        pid, answer = self._running.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with answer:
            tell(answer, status)


def tell(answer: socket.socket, number: int) -> None:
    """Sends a number, unless the test has given up."""
    with contextlib.suppress(OSError):
        answer.send(str(number).encode())


def become(request: dict[str, Any], fds: list[int]) -> list[str]:
    """Makes this fork what a process is that has just been started; its arguments."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((null, 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(fd, standard)
    for fd in (null, *fds):
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [*request["argv"]]
    return sys.argv[1:]


if __name__ == "__main__":
    import_commands()
    sys.exit(main.main(Forks(socket.socket(fileno=int(sys.argv[1]))).serve()))
