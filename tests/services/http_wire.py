"""HTTP/1.1 messages over a blocking socket: heads are parsed, bodies are moved in large pieces."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

MAX_HEAD_BYTES = 256 << 10
BUFFER_BYTES = 64 << 10
PIPE_BYTES = 1 << 20

Sink = Callable[[memoryview], None]


class Target(Protocol):
    """Where a body goes: bytes, or what is in a pipe."""

    def __call__(self, piece: memoryview) -> None: ...

    def splice(self, reader: int, count: int) -> None: ...


class WireError(Exception):
    """The peer closed in mid-message, or what it sent is no HTTP/1.1."""


@dataclass
class Head:
    """A start line and its headers, in the order and the letters in which they came."""

    start: bytes
    headers: list[tuple[bytes, bytes]]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        start, *lines = raw.rstrip(b"\r\n").split(b"\r\n")
        pairs = (line.partition(b":") for line in lines)
        return cls(start, [(name, value.strip()) for name, _, value in pairs])

    def encode(self) -> bytes:
        lines = [self.start, *(name + b": " + value for name, value in self.headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def get(self, name: bytes) -> bytes | None:
        """The first value of `name` (lower case), or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def set(self, name: bytes, value: bytes) -> None:
        """Replaces every `name` by one header; its place stays where the first one was."""
        at = next((i for i, (k, _) in enumerate(self.headers) if k.lower() == name.lower()), None)
        kept = [pair for pair in self.headers if pair[0].lower() != name.lower()]
        kept.insert(len(kept) if at is None else at, (name, value))
        self.headers = kept

    def remove(self, *names: bytes) -> None:
        self.headers = [pair for pair in self.headers if pair[0].lower() not in names]

    @property
    def length_bytes(self) -> int | None:
        value = self.get(b"content-length")
        return None if value is None else int(value)

    @property
    def chunked(self) -> bool:
        return (self.get(b"transfer-encoding") or b"").lower().endswith(b"chunked")

    @property
    def closes(self) -> bool:
        """Will the sender close the connection after this message?"""
        connection = (self.get(b"connection") or b"").lower()
        return b"close" in connection or (b"HTTP/1.0" in self.start and connection != b"keep-alive")

    @property
    def status(self) -> int:
        """Of a response."""
        return int(self.start.split(b" ", 2)[1])


class Stream:
    """One socket with what was read too far. Not thread-safe; `wake` alone may come from others."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._ahead = b""
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._pipe: tuple[int, int] | None = None

    def wake(self) -> None:
        """Ends the connection; its owner's waiting call returns, and the owner closes. A TLS
        socket's own `shutdown` would let the owner send plain text from then on."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self.wake()
        self.sock.close()
        pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)

    def send(self, data: bytes | memoryview) -> None:
        self.sock.sendall(data)

    def read_head(self) -> Head | None:
        """The next message's head; None when the peer closed between messages."""
        raw = self._read_until(b"\r\n\r\n")
        return None if raw is None else Head.parse(raw)

    def _read_until(self, mark: bytes) -> bytes | None:
        data = self._ahead
        while (end := data.find(mark)) < 0:
            more = self.sock.recv(64 << 10)
            if not more and not data:
                return None
            if not more or len(data) > MAX_HEAD_BYTES:
                raise WireError("closed in a head" if not more else "head too long")
            data += more
        end += len(mark)
        self._ahead = data[end:]
        return data[:end]

    def move(self, count: int, sink: Sink, piece_bytes: Callable[[], int]) -> None:
        """Hands the next `count` bytes to `sink` in pieces. Raises WireError at an early end."""
        while count:
            piece = self._read_piece(min(count, piece_bytes(), BUFFER_BYTES))
            if not piece:
                raise WireError(f"closed with {count} bytes of the body to come")
            sink(piece)
            count -= len(piece)

    def pour(self, count: int, target: Target, piece_bytes: Callable[[], int]) -> None:
        """Like `move`, through a pipe: what did not come with the head is never copied to us. What
        comes over TLS is."""
        while count:
            limit = min(count, piece_bytes(), PIPE_BYTES)
            if self._ahead or isinstance(self.sock, ssl.SSLSocket):
                piece = self._read_piece(limit)
                done = len(piece)
                target(piece)
            else:
                reader, writer = self._pipe_ends()
                done = os.splice(self.sock.fileno(), writer, limit)
                if not done:
                    raise WireError(f"closed with {count} bytes of the body to come")
                target.splice(reader, done)
            count -= done

    def take_from(self, reader: int, count: int) -> None:
        """Sends `count` bytes that are in a pipe."""
        if isinstance(self.sock, ssl.SSLSocket):
            return self._encrypt_from(reader, count)
        while count:
            count -= os.splice(reader, self.sock.fileno(), count)

    def _encrypt_from(self, reader: int, count: int) -> None:
        """Sends what is in a pipe over TLS, which takes bytes from memory only."""
        while count:
            size = os.readv(reader, [self._buffer[:count]])
            self.sock.sendall(self._buffer[:size])
            count -= size

    def _pipe_ends(self) -> tuple[int, int]:
        if self._pipe is None:
            self._pipe = os.pipe()
            with contextlib.suppress(PermissionError):  # a user's pipes may be limited
                fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return self._pipe

    def move_to_end(self, sink: Sink) -> None:
        while piece := self._read_piece(BUFFER_BYTES):
            sink(piece)

    def _read_piece(self, limit: int) -> memoryview:
        if self._ahead:
            piece, self._ahead = self._ahead[:limit], self._ahead[limit:]
            return memoryview(piece)
        return self._buffer[: self.sock.recv_into(self._buffer, limit)]

    def move_chunked(self, sink: Sink, raw: Sink, piece_bytes: Callable[[], int]) -> None:
        """Payload goes to `sink`, framing to `raw`, so that the body leaves as it came."""
        while True:
            line = self._line()
            raw(memoryview(line))
            size = int(line.split(b";")[0], 16)
            if size == 0:
                break
            self.move(size, sink, piece_bytes)
            raw(memoryview(self._line()))
        while True:
            trailer = self._line()
            raw(memoryview(trailer))
            if trailer == b"\r\n":
                return

    def _line(self) -> bytes:
        line = self._read_until(b"\r\n")
        if line is None:
            raise WireError("closed in a chunked body")
        return line
