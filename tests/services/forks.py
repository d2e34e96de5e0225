"""A process of tests that forks once for each request, after it has imported what the forks need.

A request is JSON on a SOCK_SEQPACKET socket, with descriptors; the last of them is a socket for the
answers: the pid, and at the end the exit status as `os.waitpid` has it. The process has one thread,
and ends when the socket is closed. It imports the standard library only.
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
from collections.abc import Callable, Iterable
from typing import Any, Final

REQUEST_BYTES: Final = 128 << 10
MOST_FDS: Final = 32


def import_all(modules: Iterable[str]) -> None:
    """Imports modules; no garbage collection of a fork visits what they have made."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()


class Forks:
    """The requests, and the forks that run: by pidfd the pid, and where the answer goes. `beside`:
    what else to call when a socket is readable."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, socket.socket]] = {}
        self._beside: dict[int, tuple[socket.socket, Callable[[socket.socket], None]]] = {}

    def once(self, sock: socket.socket, call: Callable[[socket.socket], None]) -> None:
        """Calls `call` when a socket has something to read for the first time, and closes it."""
        self._beside[sock.fileno()] = (sock, call)
        self._selector.register(sock, selectors.EVENT_READ)

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        """Returns in each fork, with its request and descriptors; exits when the socket is closed
        at its other end."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._running:
                    self._ended(key.fd)
                elif key.fd in self._beside:
                    self._call(key.fd)
                else:
                    data, fds, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES, MOST_FDS)
                    if not data:
                        sys.exit(0)
                    if self._is_fork(fds):
                        return json.loads(data), fds

    def _call(self, fd: int) -> None:
        sock, call = self._beside.pop(fd)
        self._selector.unregister(sock)
        with sock:
            call(sock)

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
        os.close(fds.pop())
        self._selector.close()
        self._requests.close()
        for pidfd, (_, answer) in self._running.items():
            os.close(pidfd)
            answer.close()
        for sock, _ in self._beside.values():
            sock.close()
        return True

    def _ended(self, pidfd: int) -> None:
        pid, answer = self._running.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with answer:
            tell(answer, status)


def tell(answer: socket.socket, number: int) -> None:
    """Sends a number, unless the requester has given up."""
    with contextlib.suppress(OSError):
        answer.send(str(number).encode())
