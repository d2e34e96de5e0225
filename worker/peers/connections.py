"""Connections to peers: the little of HTTP/1.1 that is spoken with them, from threads, and kept for
the next request.

Why not `http.client`: it parses headers as mail, which costs as much as all else of a request for a
small file, and reads in many small pieces. Here a page is one call, which the kernel fills.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cachefs.doors.outgoing import Judge, any_process, connect

CONNECT_S: Final = 1.0
KEPT_PER_PEER: Final = 32
KEPT_S: Final = 20.0  # less than a server keeps them
HEAD_BYTES: Final = 4096  # read at a time while the head comes
MOST_HEAD_BYTES: Final = 64 << 10
PART_S: Final = 20.0  # for a head, or a page: a peer that sends a little now and then is given up

_TIMEVAL: Final = struct.Struct("@ll")


class BadAnswer(OSError):
    """What came is no HTTP, or none that a peer speaks."""


class ClosedBefore(ConnectionError):
    """The peer closed the connection before the first byte of an answer: if it was used before, it
    may have been on its way out."""


class Head(NamedTuple):
    """Of an answer. Names in lower case. `length`: of the body, in bytes."""

    status: int
    headers: Mapping[str, str]
    length: int

    @property
    def is_last(self) -> bool:
        """The peer closes the connection after it."""
        return self.headers.get("connection", "").lower() == "close"


class Connection:
    """One request at a time: `ask`, `head`, then `read_into` as much as its length. All raise
    OSError, TimeoutError after `timeout_s` without a byte."""

    def __init__(self, sock: socket.socket, host: str, timeout_s: float) -> None:
        self._sock = sock
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        self._came = memoryview(b"")  # behind the head
        self._host = host
        if self._is_plain:  # blocking, so that the kernel fills a page in one call
            sock.settimeout(None)
            limit = _TIMEVAL.pack(int(timeout_s), int(timeout_s % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            sock.settimeout(timeout_s)

    def fileno(self) -> int:
        return self._sock.fileno()

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        with _timed():
            self._sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def head(self) -> Head:
        """Raises BadAnswer, ClosedBefore."""
        came, until = bytearray(), time.monotonic() + PART_S
        while (end := came.find(b"\r\n\r\n")) < 0:
            if len(came) > MOST_HEAD_BYTES:
                raise BadAnswer("a head without an end")
            _check(until)
            with _timed():
                part = self._sock.recv(HEAD_BYTES)
            if not part:
                raise ConnectionResetError("closed within the head") if came else ClosedBefore()
            came += part
        self._came = memoryview(came)[end + 4 :]
        return _parsed(bytes(came[:end]))

    def read_into(self, view: memoryview) -> None:
        """Exactly as much."""
        done = min(len(self._came), len(view))
        view[:done] = self._came[:done]
        self._came = self._came[done:]
        flags = socket.MSG_WAITALL if self._is_plain else 0
        until = time.monotonic() + PART_S
        while done < len(view):
            _check(until)
            with _timed():
                size = self._sock.recv_into(view[done:], 0, flags)
            if not size:
                raise ConnectionResetError("the body ended early")
            done += size

    @property
    def has_ended(self) -> bool:
        """While nothing is asked: the peer closed it."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def shut(self) -> None:
        """From any thread: whoever reads from it stops."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError("it comes too slowly")


class _timed:
    """The kernel tells a time-out of a blocking socket as EAGAIN."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BlockingIOError):
            raise TimeoutError("nothing came in time") from error


def _parsed(data: bytes) -> Head:
    """Raises BadAnswer."""
    first, *lines = data.decode("latin-1").split("\r\n")
    try:
        protocol, status = first.split(" ", 2)[:2]
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in pairs}
        head = Head(int(status), headers, int(headers.get("content-length", "")))
    except ValueError as err:
        raise BadAnswer(f"no answer of a peer: {data[:100]!r}") from err
    if not protocol.startswith("HTTP/1.") or head.length < 0:
        raise BadAnswer(f"no answer of a peer: {data[:100]!r}")
    return head


class Connections:
    """Of one node, to all its peers. Thread-safe. `timeout_s`: how long a peer may say nothing once
    something is expected of it."""

    def __init__(
        self,
        timeout_s: float,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        presents_to: Judge = any_process,
    ) -> None:
        self._presents_to = presents_to
        self._timeout_s = timeout_s
        self._ssl_context = ssl_context
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[Connection, float]]] = {}
        self._closed = False
        self._swept_at = clock()

    def take(self, url: str, *, fresh: bool = False) -> tuple[Connection, bool]:
        """A connection, and whether it was used before (then the peer may have closed it). Raises
        OSError."""
        while not fresh and (kept := self._pop(url)) is not None:
            connection, since_s = kept
            if self._clock() - since_s < KEPT_S and not connection.has_ended:
                return connection, True
            connection.close()
        return self._connect(url), False

    def _pop(self, url: str) -> tuple[Connection, float] | None:
        with self._lock:
            idle = self._idle.get(url)
            return idle.pop() if idle else None

    def _connect(self, url: str) -> Connection:
        parts = urlsplit(url)
        host, tls = parts.hostname or "", parts.scheme == "https"
        sock = connect(host, parts.port or (443 if tls else 80), CONNECT_S, self._presents_to)
        try:
            if tls:
                context = self._ssl_context or ssl.create_default_context()
                sock = context.wrap_socket(sock, server_hostname=host)
            return Connection(sock, parts.netloc, self._timeout_s)
        except BaseException:
            sock.close()
            raise

    def give(self, url: str, connection: Connection) -> None:
        """Takes one back whose last answer was read to its end."""
        now, gone = self._clock(), []
        with self._lock:
            if now - self._swept_at >= KEPT_S:
                gone = self._sweep(now)
            idle = self._idle.setdefault(url, [])
            if not self._closed and len(idle) < KEPT_PER_PEER:
                idle.append((connection, now))
            else:
                gone.append(connection)
        for one in gone:
            one.close()

    def _sweep(self, now: float) -> list[Connection]:
        """Those that nobody took for `KEPT_S`, of all peers: they are not kept any more."""
        self._swept_at = now
        everything, self._idle = self._idle, {}
        gone = []
        for url, idle in everything.items():
            gone += [connection for connection, since_s in idle if now - since_s >= KEPT_S]
            if young := [one for one in idle if now - one[1] < KEPT_S]:
                self._idle[url] = young
        return gone

    def keep(self, urls: set[str]) -> None:
        """Closes those to all other peers."""
        with self._lock:
            gone = [self._idle.pop(url) for url in [*self._idle] if url not in urls]
        for idle in gone:
            for connection, _ in idle:
                connection.close()

    def close(self) -> None:
        """Idempotent. Those in use are closed as they are given back."""
        with self._lock:
            self._closed = True
        self.keep(set())
