"""Keep-alive connections to peers, for threads: the subset of HTTP/1.1 that workers use.

`http.client` is not used: its header parser costs as much as the rest of a request for a small
file, and it reads in many small pieces. Here the kernel fills a page in one call.
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

from cachefs.network.checked_connect import ListenerCheck, accept_any_listener, connect

CONNECT_S: Final = 1.0
KEPT_PER_PEER: Final = 32
KEPT_S: Final = 20.0  # less than a server keeps idle connections
HEAD_BYTES: Final = 4096  # of one read of the head
MOST_HEAD_BYTES: Final = 64 << 10
PART_S: Final = 20.0  # the deadline of a head, or of a page, from a peer that sends slowly

_TIMEVAL: Final = struct.Struct("@ll")


class BadAnswer(OSError):
    """The reply is not HTTP, or not the subset that peers use."""


class ClosedBefore(ConnectionError):
    """The peer closed the connection before the first byte of a reply. A reused connection may have
    been idle for too long."""


class Head(NamedTuple):
    """The head of a reply. Header names are in lower case. `length`: of the body, in bytes."""

    status: int
    headers: Mapping[str, str]
    length: int

    @property
    def is_last(self) -> bool:
        """True if the peer closes the connection after this reply."""
        return self.headers.get("connection", "").lower() == "close"


class Connection:
    """A connection with one request at a time: `ask`, `head`, then `read_into` for the length of
    the body. All raise OSError, and TimeoutError after `timeout_s` without a byte."""

    def __init__(self, sock: socket.socket, host: str, timeout_s: float) -> None:
        self._sock = sock
        self._is_plain = not isinstance(sock, ssl.SSLSocket)
        self._received = memoryview(b"")  # the bytes read beyond the head
        self._early: bytes | None = None  # the first bytes of a head, by `has_reply`
        self._host, self._timeout_s = host, timeout_s
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

    def has_reply(self) -> bool:
        """Returns False if all that has arrived is of TLS itself, as the tickets that a server
        sends after the handshake: to wait for more is the caller's. Waits for nothing."""
        if self._is_plain or self._early is not None:
            return True
        self._sock.settimeout(0.0)
        try:
            self._early = self._sock.recv(HEAD_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        finally:
            self._sock.settimeout(self._timeout_s)
        return True

    def head(self) -> Head:
        """Reads the head of the reply. Raises BadAnswer, ClosedBefore."""
        received, until = bytearray(), time.monotonic() + PART_S
        while (end := received.find(b"\r\n\r\n")) < 0:
            if len(received) > MOST_HEAD_BYTES:
                raise BadAnswer(f"the head is longer than {MOST_HEAD_BYTES} bytes")
            _check(until)
            part, self._early = self._early, None
            if part is None:
                with _timed():
                    part = self._sock.recv(HEAD_BYTES)
            if not part:
                raise ConnectionResetError("closed within the head") if received else ClosedBefore()
            received += part
        self._received = memoryview(received)[end + 4 :]
        return _parsed(bytes(received[:end]))

    def read_into(self, view: memoryview) -> None:
        """Fills `view` with the next bytes of the body."""
        done = min(len(self._received), len(view))
        view[:done] = self._received[:done]
        self._received = self._received[done:]
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
        """True if the peer closed the connection. Valid only while no request is in flight."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def shut(self) -> None:
        """Shuts the connection down, which ends a read in another thread. Thread-safe."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError(f"the peer sends too slowly: not complete within {PART_S:g} s")


class _timed:
    """Raises TimeoutError for EAGAIN, which the kernel returns at the timeout of a socket."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BlockingIOError):
            raise TimeoutError("the peer sent or took no byte in time") from error


def _parsed(data: bytes) -> Head:
    """Parses the head of a reply. Raises BadAnswer."""
    first, *lines = data.decode("latin-1").split("\r\n")
    try:
        protocol, status = first.split(" ", 2)[:2]
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in pairs}
        head = Head(int(status), headers, int(headers.get("content-length", "")))
    except ValueError as err:
        raise BadAnswer(f"not a reply of a peer: {data[:100]!r}") from err
    if not protocol.startswith("HTTP/1.") or head.length < 0:
        raise BadAnswer(f"not a reply of a peer: {data[:100]!r}")
    return head


class Connections:
    """The connections of one node to its peers. Thread-safe. `timeout_s`: the longest time without
    a byte while a request is in flight."""

    def __init__(
        self,
        timeout_s: float,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        presents_to: ListenerCheck = accept_any_listener,
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
        """Returns a connection, and whether it is reused: then the peer may have closed it.
        `fresh`: returns a new one. Raises OSError."""
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
        """Takes a connection back whose last reply was read completely."""
        now, unused = self._clock(), []
        with self._lock:
            if now - self._swept_at >= KEPT_S:
                unused = self._sweep(now)
            idle = self._idle.setdefault(url, [])
            if not self._closed and len(idle) < KEPT_PER_PEER:
                idle.append((connection, now))
            else:
                unused.append(connection)
        for one in unused:
            one.close()

    def _sweep(self, now: float) -> list[Connection]:
        """Removes and returns the connections that were idle for `KEPT_S`, of all peers."""
        self._swept_at = now
        everything, self._idle = self._idle, {}
        unused = []
        for url, idle in everything.items():
            unused += [connection for connection, since_s in idle if now - since_s >= KEPT_S]
            if young := [one for one in idle if now - one[1] < KEPT_S]:
                self._idle[url] = young
        return unused

    def keep(self, urls: set[str]) -> None:
        """Closes the idle connections to all other peers."""
        with self._lock:
            unused = [self._idle.pop(url) for url in [*self._idle] if url not in urls]
        for idle in unused:
            for connection, _ in idle:
                connection.close()

    def close(self) -> None:
        """Closes idle connections; `give` closes those in use. Idempotent."""
        with self._lock:
            self._closed = True
        self.keep(set())
