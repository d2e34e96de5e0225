"""An origin in memory whose files can be requested over HTTP too (`Connector.ask`), by a server of
its own that counts, holds answers back and breaks them.

    with SmallOrigin() as origin:
        ...        # use origin.connector; origin.connector.calls["read"] are the ordinary reads
        origin.fault(b"dir/2", "cut")
        assert origin.served == [b"dir/1"]
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from types import TracebackType
from typing import Final
from urllib.parse import quote

import pycurl

from cachefs.core.errors import NotFound
from cachefs.core.model import Fingerprint
from connectors.base import Body
from connectors.fetch.request import NOT_SENT, HttpRequest, RangeRequest, content_range
from connectors.small_read_choice import SmallReadChoice
from tests.services.memory import MemoryConnector

LIMIT_S: Final = 30.0
RANGE: Final = re.compile(rb"Range: bytes=(\d+)-(\d+)")
FAULTS: Final = ("cut", "cut-at-once", "503", "404", "412", "other-version", "other-length")


class AskedConnector(MemoryConnector):
    """Of a `SmallOrigin`. `asks` False: it has no other way than `read`."""

    def __init__(self, origin: SmallOrigin) -> None:
        super().__init__()
        self.asks = True
        self.turns = SmallReadChoice[object](60.0, time.monotonic)
        self._origin = origin

    def read(self, path: bytes, offset: int, size: int, version: Fingerprint) -> Body:
        body = super().read(path, offset, size, version)
        if self.asks:
            self.turns.succeeded(object())
        return body

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        turn = self.turns.current()
        if turn is None or not self.asks:
            return None

        def ended(size_bytes: int, error: str) -> None:
            self.turns.ended(turn, error)
            if error != NOT_SENT:
                self._origin.began.append(path)
                self._origin.ended.append((size_bytes, error))

        url = f"http://127.0.0.1:{self._origin.port}/{quote(path)}"
        headers = (f"Range: bytes={offset}-{offset + size - 1}",)
        answer = (
            ("etag", version.etag),
            ("content-range", content_range(offset, size, version.size)),
        )
        return RangeRequest(HttpRequest(url, headers, size, {pycurl.PROXY: ""}, answer), ended)


class SmallOrigin:
    """`began`: paths that were asked for; `served`: those that were answered with all of the body;
    `ended`: what the connector was told of them."""

    def __init__(self) -> None:
        self.connector = AskedConnector(self)
        self.began: list[bytes] = []
        self.served: list[bytes] = []
        self.ended: list[tuple[int, str]] = []
        self._faults: dict[bytes, list[str]] = {}
        self._changed = threading.Condition()
        self._held = False
        self._stalls: dict[bytes, int] = {}
        self._waiting = 0
        self._connections: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="small-origin", daemon=True)

    def fault(self, path: bytes, name: str, times: int = 1) -> None:
        """What happens to the next requests for a path, see `FAULTS`."""
        with self._changed:
            self._faults.setdefault(path, []).extend([name] * times)

    def hold(self) -> None:
        """Answers wait until `go_on`."""
        with self._changed:
            self._held = True

    def stall_after(self, path: bytes, size_bytes: int) -> None:
        """Answers for a path wait after so many bytes of the body until `go_on`."""
        with self._changed:
            self._stalls[path] = size_bytes

    def go_on(self) -> None:
        with self._changed:
            self._held = False
            self._stalls.clear()
            self._changed.notify_all()

    def wait_held(self, count: int) -> None:
        """Returns when so many answers wait."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= count, LIMIT_S)

    @property
    def connections(self) -> int:
        with self._changed:
            return len(self._connections)

    def __enter__(self) -> SmallOrigin:
        self._acceptor.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.go_on()
        self.connector.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(LIMIT_S)
        self._listener.close()
        with self._changed:
            for sock in self._connections:
                with contextlib.suppress(OSError):  # the other end has closed it
                    sock.shutdown(socket.SHUT_RDWR)
            assert self._changed.wait_for(lambda: not self._connections, LIMIT_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # shut down
                return
            with self._changed:
                self._connections.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                while head := _head(sock):
                    if not self._answer(sock, head.split(b" ", 2)[1][1:], head):
                        break
        finally:
            with self._changed:
                self._connections.discard(sock)
                sock.close()
                self._changed.notify_all()

    def _answer(self, sock: socket.socket, path: bytes, head: bytes) -> bool:
        """False when the connection is to end."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._held, LIMIT_S)
            self._waiting -= 1
            faults = self._faults.get(path)
            fault = faults.pop(0) if faults else ""
        if fault == "cut-at-once":
            return False
        answer = _status(fault) if fault.isdigit() else self._range(path, head)
        if fault == "cut":
            sock.sendall(answer[: len(answer) // 2])
            return False
        if fault == "other-version":
            answer = answer.replace(b"ETag: ", b"ETag: another-", 1)
        if fault == "other-length":
            answer = answer.replace(b"Content-Length: ", b"Content-Length: 1", 1)
        if not fault and answer.startswith(b"HTTP/1.1 206"):
            self.served.append(path)  # before a client can know
        self._send(sock, path, answer)
        return True

    def _send(self, sock: socket.socket, path: bytes, answer: bytes) -> None:
        with self._changed:
            size_bytes = self._stalls.get(path)
        if size_bytes is None:
            return sock.sendall(answer)
        stop = answer.index(b"\r\n\r\n") + 4 + size_bytes
        sock.sendall(answer[:stop])
        with self._changed:
            self._changed.wait_for(lambda: path not in self._stalls, LIMIT_S)
        sock.sendall(answer[stop:])

    def _range(self, path: bytes, head: bytes) -> bytes:
        try:
            with self.connector._lock:
                found = self.connector._entry(path)
                data = self.connector._objects[path].data
        except NotFound:
            return _status("404")
        etag = found.fingerprint.etag.encode()
        asked = RANGE.search(head)
        first, last = map(int, asked.groups()) if asked else (0, len(data) - 1)
        part = memoryview(data)[first : last + 1]
        return b"HTTP/1.1 206 OK\r\nContent-Length: %d\r\nETag: %s\r\n%s\r\n\r\n%s" % (
            len(part), etag, b"Content-Range: bytes %d-%d/%d" % (first, last, len(data)), part,
        )  # fmt: skip


def _status(number: str) -> bytes:
    return b"HTTP/1.1 %s Not so\r\nContent-Length: 5\r\n\r\nsorry" % number.encode()


def _head(sock: socket.socket) -> bytes:
    """Of the next request; empty at the end."""
    found = bytearray()
    while b"\r\n\r\n" not in found:
        if not (part := sock.recv(4096)):
            return b""
        found += part
    return bytes(found)
