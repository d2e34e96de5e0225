"""A connected socket with one deadline for all its operations, for `http.client`.

A socket timeout limits each receive separately, so a peer that sends a byte now and then could keep
a call open for ever. A `DeadlineSocket` limits each operation to the time left.
"""

from __future__ import annotations

import io
import socket
from typing import TYPE_CHECKING, Any

from cachefs.network.checked_connect import left_s

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class DeadlineSocket:
    """The part of a socket that `http.client` uses. `deadline` (monotonic) may be changed for each
    call. Every operation raises TimeoutError after the deadline, and OSError as the socket does."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.deadline = deadline
        self._sock = sock

    def limit(self) -> None:
        """Limits the next operation to the time left."""
        self._sock.settimeout(left_s(self.deadline))

    def sendall(self, data: ReadableBuffer) -> None:
        self.limit()
        self._sock.sendall(data)

    def makefile(self, mode: str, *_: Any) -> io.BufferedReader:
        """Returns a file for reading, which keeps the socket open until it is closed."""
        assert mode == "rb"
        return io.BufferedReader(_Receives(self, self._sock.makefile("rb", buffering=0)))

    def close(self) -> None:
        self._sock.close()


class _Receives(io.RawIOBase):
    """The receiving side of a DeadlineSocket."""

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
