"""The upgrade socket of a supervisor, in the state home. It handles one request at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Final

from cachefs.client.sockets import connect_long
from cachefs.core.errors import CacheFSError, ProtocolError, Unreachable
from cachefs.core.messages import Failure, error_of
from cachefs.fuse.supervisor import wire as w
from cachefs.launcher.state import StateHome
from cachefs.network.unix_sockets import close_all, listen_in

log = logging.getLogger(__name__)

READ_S: Final = 2.0  # for the request
START_S: Final = 10.0  # for a supervisor that replaces a lost one
RETRY_S: Final = 0.05
WAIT_S: Final = 150.0  # for the reply: the new client may have to start a server
_BACKLOG: Final = 4


class Upgrades:
    """The socket and its pending request. `python` is the requested interpreter."""

    def __init__(self, home: StateHome, mountpoint: str) -> None:
        self.python = ""
        self._path = home.control_socket(mountpoint)
        self._listener: socket.socket | None = None
        self._waiting: socket.socket | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[socket.socket | None]:
        """Yields the listening socket; removes its name at the end unless a successor replaced it.
        Yields None if the socket cannot be created: the mount works without upgrades."""
        with contextlib.ExitStack() as stack:
            try:
                self._listener = stack.enter_context(self._bound())
            except OSError as err:
                log.warning("cannot create %s: this mount cannot be upgraded: %s", self._path, err)
            yield self._listener

    @contextlib.contextmanager
    def _bound(self) -> Iterator[socket.socket]:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with listen_in(directory, self._path.name, _BACKLOG) as listener:
                ino = os.stat(self._path.name, dir_fd=directory).st_ino
                yield listener
            with contextlib.suppress(OSError):
                if os.stat(self._path.name, dir_fd=directory).st_ino == ino:
                    os.unlink(self._path.name, dir_fd=directory)
        finally:
            os.close(directory)

    def accept(self, *, foreground: bool) -> bool:
        """Receives a request. Returns True if `answer` must follow; else replies with a failure."""
        assert self._listener is not None
        sock, _ = self._listener.accept()
        sock.settimeout(READ_S)
        try:
            note, fds = w.receive(sock)
            close_all(fds)
        except (OSError, ProtocolError) as err:
            log.info("a request cannot be read: %s", err)
            note = None
        cause = self._refusal(note, foreground)
        if cause or not isinstance(note, w.Upgrade):
            _reply(sock, w.Upgraded(0, Failure(CacheFSError.code, cause)))
            return False
        self._waiting, self.python = sock, note.python
        return True

    def _refusal(self, note: w.AnyControlMessage | None, foreground: bool) -> str:
        if not isinstance(note, w.Upgrade):
            return "the mount's supervisor does not know this request"
        if foreground:
            return "the mount runs in the foreground: end it and mount again"
        return "another upgrade is in progress" if self._waiting is not None else ""

    def answer(self, note: w.Upgraded) -> None:
        """Replies to the pending request, if there is one."""
        sock, self._waiting = self._waiting, None
        if sock is not None:
            _reply(sock, note)


def _reply(sock: socket.socket, note: w.Upgraded) -> None:
    with sock, contextlib.suppress(OSError):
        w.send(sock, note)


def ask(home: StateHome, mountpoint: str, python: str) -> int:
    """Requests an upgrade of a mount to a client of an interpreter. Returns the new client's pid.
    Raises Unreachable, or the supervisor's failure."""
    path, note = str(home.control_socket(mountpoint)), w.Upgrade(python)
    try:
        reply = _request(path, note)
        if reply is None:
            # An upgrade before this one replaces the supervisor after its answer: the former one
            # may end with our request in its queue.
            _pause()
            reply = _request(path, note)
    except OSError as err:
        raise Unreachable(
            f"the mount's supervisor does not answer: {err.strerror or err}",
            remedy="unmount and mount again",
            path=mountpoint,
        ) from err
    if not isinstance(reply, w.Upgraded):
        raise Unreachable("the mount's supervisor ended before it answered", path=mountpoint)
    if reply.failure is not None:
        raise error_of(reply.failure)
    return reply.pid


def _request(path: str, note: w.Upgrade) -> w.AnyControlMessage | None:
    """Returns the supervisor's reply; None if it ended before. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(WAIT_S)
        _connect(sock, path)
        try:
            w.send(sock, note)
            return w.receive(sock)[0]
        except (BrokenPipeError, ConnectionResetError):
            return None


def _connect(sock: socket.socket, path: str) -> None:
    """Connects; waits up to `START_S` for a supervisor that replaces a lost one."""
    for _ in range(int(START_S / RETRY_S)):
        try:
            return connect_long(sock, path)
        except (ConnectionRefusedError, FileNotFoundError):
            _pause()
    connect_long(sock, path)


def _pause() -> None:
    time.sleep(RETRY_S)


def is_listening(path: str) -> bool:
    """Returns whether a supervisor listens on this control socket, without a request to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(READ_S)
        try:
            connect_long(sock, path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # it does not answer now
    return True
