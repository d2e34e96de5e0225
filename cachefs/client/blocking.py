"""A blocking client of a node's server: requests and their replies, no events."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Final

import cachefs
from cachefs.client.sockets import connect_socket, listener_pid, listener_uid
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, DeadlineExceeded, ProtocolError, Unreachable

CALL_TIMEOUT_S: Final = 60.0


class BlockingClient:
    """A session with the role "cli". Belongs to one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._last_id = 0
        self._expected: set[int] = set()  # requests whose reply has not arrived
        self._replies: dict[int, m.Message] = {}  # that arrived before `reply_to` was called
        self.welcome = m.Welcome(pid=0)

    @classmethod
    def connect(
        cls, path: str | os.PathLike[str], timeout_s: float = 5.0, *, owner: int = -1
    ) -> BlockingClient:
        """Connects and sends Hello. `owner`: the user whose server is accepted; -1: any. Raises
        Unreachable, DeadlineExceeded, ProtocolError, AccessDenied."""
        client = cls(connect_socket(os.fspath(path)))
        try:
            client._check_owner(owner)
            hello = m.Hello(role="cli", pid=os.getpid(), version=cachefs.__version__)
            reply = client.call(hello, timeout_s)
            if not isinstance(reply, m.Welcome):
                raise ProtocolError(f"unexpected reply {type(reply).__name__} to Hello")
            client.welcome = reply
        except BaseException:
            client.close()
            raise
        return client

    @property
    def listener(self) -> int:
        """The pid of the server from the kernel; 0 if it is in another pid namespace."""
        return listener_pid(self._sock)

    def call(
        self, body: m.Message, timeout_s: float = CALL_TIMEOUT_S, fd: int | None = None
    ) -> m.Message:
        """Returns the reply to `body`, which is sent with a descriptor if `fd` is one. Raises the
        typed error of a Failure, DeadlineExceeded after `timeout_s` (and cancels the request),
        Unreachable when the server has ended."""
        deadline = time.monotonic() + timeout_s
        id = self.send(body, timeout_s, fd)
        return self.reply_to(id, deadline - time.monotonic())

    def send(
        self, body: m.Message, timeout_s: float = CALL_TIMEOUT_S, fd: int | None = None
    ) -> int:
        """Sends a request. Returns its id, with which the caller calls `reply_to`. Raises
        DeadlineExceeded if the server does not read it, Unreachable."""
        self._last_id += 1
        try:
            self._sock.settimeout(timeout_s)
            socket.send_fds(self._sock, [m.encode(self._last_id, body)], [] if fd is None else [fd])
        except TimeoutError as err:
            raise _late(timeout_s) from err
        except OSError as err:
            raise _cut(err) from err
        self._expected.add(self._last_id)
        return self._last_id

    def reply_to(self, id: int, timeout_s: float = CALL_TIMEOUT_S) -> m.Message:
        """Returns the reply to a request, and keeps those to others. Raises as `call`."""
        deadline = time.monotonic() + timeout_s
        try:
            while id not in self._replies:
                self._receive(deadline)
        except TimeoutError as err:
            self._cancel(id)
            raise _late(timeout_s) from err
        except OSError as err:
            raise _cut(err) from err
        reply = self._replies.pop(id)
        if isinstance(reply, m.Failure):
            raise m.error_of(reply)
        return reply

    @property
    def is_over(self) -> bool:
        """Whether the server has ended the session, as far as this side knows without waiting."""
        self._sock.setblocking(False)  # a timeout would be waited for despite MSG_DONTWAIT
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Ends the session; idempotent."""
        self._sock.close()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, deadline: float) -> None:
        """Receives a frame. Keeps the reply to a request; drops an event, and the late reply to a
        cancelled request."""
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining_s)
        data = self._sock.recv(m.MAX_FRAME_BYTES)  # the kernel closes a descriptor with it
        if not data:
            raise Unreachable("the server ended the connection")
        frame = m.decode(data)
        if frame.id in self._expected:
            self._expected.discard(frame.id)
            self._replies[frame.id] = frame.body

    def _check_owner(self, owner: int) -> None:
        uid = listener_uid(self._sock)
        if owner not in (-1, uid):
            cause = f"a process of user {uid} listens on the socket of a mount of user {owner}"
            raise AccessDenied(cause, remedy="check which process that is")

    def _cancel(self, id: int) -> None:
        self._expected.discard(id)
        with contextlib.suppress(OSError):
            self._sock.send(m.encode(0, m.Cancel(id)), socket.MSG_DONTWAIT)


def _late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"no answer from the server within {timeout_s:g} s")


def _cut(err: OSError) -> Unreachable:
    return Unreachable(f"the server cut the connection: {err.strerror}")
