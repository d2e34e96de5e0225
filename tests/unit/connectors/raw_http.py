"""A server on loopback of which a test scripts every byte, over plain HTTP or TLS."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pycurl

from connectors.fetch.request import HttpRequest

LIMIT_S = 20.0  # of every wait


@dataclass
class Came:
    """What came, as the script sees it. `connection` and `number` count from 0, the latter on the
    connection."""

    head: bytes
    target: str
    connection: int
    number: int
    sock: socket.socket


Script = Callable[[Came], bool]
"""Answers; False: then the server closes."""


def content(target: str, size: int) -> bytes:
    return random.Random(target).randbytes(size)


def size_of(target: str) -> int:
    """A target is /name/size."""
    return int(target.rpartition("/")[2])


def reply(target: str, *more: str, status: str = "206 Partial Content") -> bytes:
    """A right one, with more headers."""
    size = size_of(target)
    lines = [
        f"HTTP/1.1 {status}",
        f'ETag: "{target}"',
        f"Content-Length: {size}",
        f"Content-Range: bytes 0-{size - 1}/{size}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content(target, size)


def answer(request: Came) -> bool:
    request.sock.sendall(reply(request.target))
    return True


def sends(data: bytes, target: str | None = None) -> Script:
    """Sends these bytes and closes. Answers requests for others than `target`, if that is given."""

    def script(request: Came) -> bool:
        if target not in (None, request.target):
            return answer(request)
        request.sock.sendall(data)
        return False

    return script


def in_pieces(seed: int, reply_to: Callable[[Came], bytes]) -> Script:
    """Sends each reply in pieces of random sizes."""

    def script(request: Came) -> bool:
        data, at = reply_to(request), 0
        pieces = random.Random(f"{seed}{request.target}")
        while at < len(data):
            end = at + int(len(data) ** pieces.uniform(0.5, 1))
            request.sock.sendall(data[at:end])
            at = end
        return True

    return script


class RawServer:
    """Runs until `close`. `requests`: the targets in the order in which they came."""

    def __init__(self, certificate: Path | None = None) -> None:
        """`certificate`: PEM with its key, for TLS."""
        self.certificate = certificate
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self.script: Script = answer
        self.requests: list[str] = []
        self.ended = 0  # connections
        self.resumed: list[bool] = []  # by handshake of TLS: whether it resumed a session
        self.changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """For something that requests, or ends of connections, make true."""
        with self.changed:
            assert self.changed.wait_for(holds, LIMIT_S), what

    def has_asked(self, count: int) -> bool:
        return len(self.requests) >= count

    def has_ended(self, count: int) -> bool:
        return self.ended >= count

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(
                target=self._serve, args=(sock, len(self._connections)), daemon=True
            )
            self._connections.append(sock)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        with contextlib.suppress(OSError), self._spoken(sock, connection) as sock:
            for number in itertools.count():
                head = _head(sock)
                if not head:
                    break
                target = head.split(b" ")[1].decode()
                with self.changed:
                    self.requests.append(target)
                    self.changed.notify_all()
                if not self.script(Came(head, target, connection, number, sock)):
                    break
        with self.changed:
            self.ended += 1
            self.changed.notify_all()

    def _spoken(self, sock: socket.socket, connection: int) -> socket.socket:
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self._connections[connection] = sock
            try:
                sock.do_handshake()
            except OSError:
                sock.close()
                raise
            self.resumed.append(bool(sock.session_reused))
        return sock

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(LIMIT_S)
        for sock in self._connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a script waits for ever"


def _head(sock: socket.socket) -> bytes:
    """Returns that of the next request; b"" where no other comes."""
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        piece = sock.recv(4096)
        if not piece:
            return b""
        got += piece
    return got


def get(server: RawServer, target: str) -> HttpRequest:
    """Returns a request for all of a file."""
    size = size_of(target)
    answer = ("etag", target), ("content-range", f"bytes 0-{size - 1}/{size}")
    options = {pycurl.PROXY: ""}
    if server.certificate is not None:
        options[pycurl.CAINFO] = str(server.certificate)
    return HttpRequest(server.url + target, ("X-Test: 1",), size, options, answer)
