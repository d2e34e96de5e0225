"""Connections to peers, kept for the next request. Thread-safe; blocking."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

CONNECT_S: Final = 1.0
KEPT_PER_PEER: Final = 32
KEPT_S: Final = 20.0  # less than a server keeps them
RECEIVE_BYTES: Final = 4 << 20

_FAILURES: Final = (OSError, http.client.HTTPException)
Refused = _FAILURES  # what connecting and talking to a peer may raise


class Connections:
    """`timeout_s`: how long a peer may say nothing once something is expected of it."""

    def __init__(
        self,
        timeout_s: float,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._ssl_context = ssl_context
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[http.client.HTTPConnection, float]]] = {}
        self._closed = False

    def take(self, url: str, *, fresh: bool = False) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before (then the peer may have closed it). Raises
        `Refused`."""
        while not fresh and (kept := self._pop(url)) is not None:
            connection, since_s = kept
            if self._clock() - since_s < KEPT_S and not _is_readable(connection):
                return connection, True
            connection.close()
        return self._connect(url), False

    def _pop(self, url: str) -> tuple[http.client.HTTPConnection, float] | None:
        with self._lock:
            idle = self._idle.get(url)
            return idle.pop() if idle else None

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, parts.port, timeout=CONNECT_S, context=self._ssl_context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def give(self, url: str, connection: http.client.HTTPConnection) -> None:
        """Takes one back whose last answer was read to its end."""
        with self._lock:
            idle = self._idle.setdefault(url, [])
            if connection.sock is not None and not self._closed and len(idle) < KEPT_PER_PEER:
                idle.append((connection, self._clock()))
                return
        connection.close()

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


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    """An idle one that has something to say was closed."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def shut(connection: http.client.HTTPConnection) -> None:
    """From any thread: whoever reads from it stops."""
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
