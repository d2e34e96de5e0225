"""A connected socket whose operations all end at one deadline, for `http.client`.

A timeout of a socket limits each receive alone: a peer that sends a byte now and then would keep a
call alive for ever. A `DeadlineSocket` allows each operation only what is left of the deadline.
"""

from __future__ import annotations

import io
import socket
from typing import TYPE_CHECKING, Any

from cachefs.doors.outgoing import left_s

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class DeadlineSocket:
    """What `http.client` uses of a socket. `deadline` (monotonic) may be set anew for each call.
    Every operation raises TimeoutError from the deadline on, and OSError as the socket does."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.deadline = deadline
        self._sock = sock

    def limit(self) -> None:
        """Gives the next operation what is left."""
        self._sock.settimeout(left_s(self.deadline))

    def sendall(self, data: ReadableBuffer) -> None:
        self.limit()
        self._sock.sendall(data)

    def makefile(self, mode: str, *_: Any) -> io.BufferedReader:
        """Returns a file to read from, which keeps the socket open until it is closed."""
        assert mode == "rb"
        return io.BufferedReader(_Receives(self, self._sock.makefile("rb", buffering=0)))

    def close(self) -> None:
        self._sock.close()


class _Receives(io.RawIOBase):
    """The receiving side."""

    def __init__(self, limited: DeadlineSocket, raw: socket.SocketIO) -> None:
        super().__init__()
        self._limited = limited
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        self._limited.limit()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
