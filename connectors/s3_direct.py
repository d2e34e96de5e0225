"""Large reads from a plain HTTP endpoint by this process's own sockets, into one buffer per body.

Why not the object client for these: it reads in the pieces that come, in threads of its own, and
copies them together. Here the kernel fills a page in one call, by the thread that wants it: two
thirds of the CPU per byte (`bench/loads`). Over TLS there is no such call, and the object client is
the better one.

Nothing is retried, but for a kept connection that the server closed before it answered.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse
from io import DEFAULT_BUFFER_SIZE
from typing import Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

from cachefs.core.errors import BadBody, CacheFSError, Unreachable
from connectors.s3_body import CHUNK_BYTES
from connectors.s3_http import (
    CONNECT_LIMIT_S,
    CONNECTIONS,
    ERROR_BYTES,
    SILENCE_LIMIT_S,
    S3Http,
)
from connectors.streams import KEPT_S
from connectors.until import LEAST_BYTES_PER_S, until

CHUNK_LIMIT_S: Final = CHUNK_BYTES / LEAST_BYTES_PER_S  # a chunk that takes longer is silence
LEAST_WAIT_S: Final = 0.1
RETRIED: Final = (ConnectionError, BadStatusLine)
_TIMEVAL: Final = struct.Struct("@ll")


class Exchange(NamedTuple):
    """A request that got its head. `socket` serves the body also where `connection` has let it go,
    for the server closes after it."""

    connection: HTTPConnection
    socket: socket.socket
    response: HTTPResponse

    def close(self) -> None:
        self.response.close()
        self.connection.close()


class DirectReply:
    """A 2xx reply. Whoever has it takes its body, or closes it."""

    def __init__(self, exchange: Exchange, give: Callable[[HTTPConnection], None]) -> None:
        self.headers = headers_of(exchange.response)
        self.length_bytes: int | None = exchange.response.length  # None: it does not say
        self._exchange = exchange
        self._give = give

    def body(self, path: str) -> DirectBody:
        """All that the server said, which is so long as it said."""
        assert self.length_bytes is not None
        return DirectBody(self._exchange, self.length_bytes, self._give, path)

    def close(self) -> None:
        """In place of `body`."""
        self._exchange.close()


class DirectBody:
    """As `connectors.base.Body`; every chunk lies in the same buffer. Closing it early shuts the
    connection, and a thread that reads from it sees the end."""

    def __init__(
        self, exchange: Exchange, size: int, give: Callable[[HTTPConnection], None], path: str
    ) -> None:
        self._exchange = exchange
        self._left = size
        self._give = give
        self._path = path
        self._lock = threading.Lock()
        self._is_reading = False  # a thread is: only that one closes the socket
        self._is_closed = False

    def __iter__(self) -> Iterator[memoryview]:
        try:
            yield from self._chunks()
        finally:
            self.close()

    def _chunks(self) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self._left)))
        until_s = time.monotonic() + CHUNK_LIMIT_S
        # What came with the head is the first part of the first chunk: the rest are whole pages.
        done = self._receive_first(buffer)
        while self._left:
            chunk = buffer[: min(CHUNK_BYTES, self._left)]
            done = self._receive(chunk, done, until_s)
            self._left -= done
            if done < len(chunk) and self._is_closed:
                return
            if done:
                yield chunk[:done]
            if done < len(chunk):
                raise BadBody(f"the body ended {self._left} bytes early", path=self._path)
            done, until_s = 0, time.monotonic() + CHUNK_LIMIT_S

    def _receive_first(self, buffer: memoryview) -> int:
        """How much came."""
        came = b""
        with self._reading() as may_read:
            if may_read:
                came = self._exchange.response.read1(min(len(buffer), DEFAULT_BUFFER_SIZE))
                self._exchange.socket.settimeout(None)  # the kernel is to fill a page in one call
        buffer[: len(came)] = came
        return len(came)

    def _receive(self, chunk: memoryview, done: int, until_s: float) -> int:
        """How much of the chunk is there when it is full, or the body has ended or was closed.
        Raises Unreachable where that takes too long."""
        with self._reading() as may_read:
            while may_read and done < len(chunk):
                if time.monotonic() > until_s:
                    raise TimeoutError
                size = self._exchange.socket.recv_into(chunk[done:], 0, socket.MSG_WAITALL)
                if not size:
                    break
                done += size
        return done

    @contextlib.contextmanager
    def _reading(self) -> Iterator[bool]:
        """False once it was closed. A connection that breaks ends the body."""
        with self._lock:
            self._is_reading = may_read = not self._is_closed
        try:
            yield may_read
        except ConnectionError:
            pass
        except (OSError, HTTPException) as error:
            raise from_socket(error, self._path) from error
        finally:
            with self._lock:
                self._is_reading = False
                if may_read and self._is_closed:
                    self._exchange.close()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._is_reading:
                with contextlib.suppress(OSError):
                    self._exchange.socket.shutdown(socket.SHUT_RDWR)
                return
        if self._left or self._exchange.response.will_close:
            self._exchange.close()
        else:
            self._exchange.response.close()
            self._give(self._exchange.connection)

    def __del__(self) -> None:
        self.close()


def headers_of(response: HTTPResponse) -> dict[str, str]:
    """By their names in lower case."""
    return {name.lower(): value for name, value in response.getheaders()}


class Direct:
    """The connections to one source's endpoint. Thread-safe."""

    def __init__(self, requests: S3Http) -> None:
        self._requests = requests
        self._lock = threading.Lock()
        self._idle: list[tuple[HTTPConnection, float]] = []
        self._is_closed = False

    def serves(self) -> bool:
        """Is the endpoint plain HTTP, with no proxy before it? Raises what its resolution does."""
        endpoint = self._requests.endpoint()
        proxy = endpoint.proxies.get("http") or endpoint.proxies.get("all")
        return endpoint.url.startswith("http://") and not proxy

    def get(self, key: str, headers: Mapping[str, str]) -> DirectReply | None:
        """One request. Raises the typed errors for a reply that refuses it. None for one that
        leads elsewhere: another client follows it."""
        request = self._requests.signed("GET", key, headers=headers)
        path = f"s3://{self._requests.bucket}/{key}"
        try:
            exchange = self._ask(request.url, dict(request.headers.items()))
        except (OSError, HTTPException) as error:
            raise from_socket(error, path) from error
        response = exchange.response
        if response.status >= 400:
            self._refused(exchange, path)
        if response.status >= 300:
            exchange.close()
            return None
        return DirectReply(exchange, self._keep)

    def _ask(self, url: str, headers: Mapping[str, str]) -> Exchange:
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection = self._take()
        if connection is not None:
            try:
                return _exchange(connection, target, headers)
            except RETRIED:
                pass  # the server had closed it
        connection = _connect(parts.hostname or "", parts.port)
        return _exchange(connection, target, headers)

    def _refused(self, exchange: Exchange, path: str) -> NoReturn:
        try:
            body = exchange.response.read(ERROR_BYTES)
        except (OSError, HTTPException):
            body = b""  # the status says enough
        finally:
            exchange.close()
        self._requests.refused(exchange.response.status, headers_of(exchange.response), body, path)

    # Kept connections.

    def _take(self) -> HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since_s = self._idle.pop()
            if time.monotonic() - since_s < KEPT_S and not _has_ended(connection):
                return connection
            connection.close()

    def _keep(self, connection: HTTPConnection) -> None:
        """One whose last reply was read to its end."""
        now = time.monotonic()
        with self._lock:
            gone = [one for one, since_s in self._idle if now - since_s >= KEPT_S]
            self._idle = [kept for kept in self._idle if now - kept[1] < KEPT_S]
            if not self._is_closed and len(self._idle) < CONNECTIONS:
                self._idle.append((connection, now))
            else:
                gone.append(connection)
        for one in gone:
            one.close()

    def close(self) -> None:
        """Idempotent. Connections in use are closed as they are given back."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._is_closed = True
        for connection, _ in idle:
            connection.close()

    def __del__(self) -> None:
        self.close()


def _connect(host: str, port: int | None) -> HTTPConnection:
    """Raises Unreachable."""
    connection = HTTPConnection(host, port, timeout=_at_most(CONNECT_LIMIT_S))
    try:
        connection.connect()
    except TimeoutError as error:
        cause = "no connection in time"
        raise Unreachable(cause, remedy="check the endpoint and the network") from error
    except OSError as error:
        cause = f"the endpoint cannot be reached ({error.strerror or error})"
        raise Unreachable(cause, remedy="check the endpoint URL") from error
    limit = _TIMEVAL.pack(int(SILENCE_LIMIT_S), int(SILENCE_LIMIT_S % 1 * 1e6))
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    return connection


def _at_most(limit_s: float) -> float:
    """A time-out that keeps to the deadline of this thread's caller."""
    return max(LEAST_WAIT_S, min(limit_s, until() - time.monotonic()))


def _exchange(connection: HTTPConnection, target: str, headers: Mapping[str, str]) -> Exchange:
    """Until the head is there. The connection is closed on an error."""
    try:
        sock = connection.sock
        sock.settimeout(_at_most(SILENCE_LIMIT_S))
        connection.request("GET", target, headers=headers)
        return Exchange(connection, sock, connection.getresponse())
    except BaseException:
        connection.close()
        raise


def _has_ended(connection: HTTPConnection) -> bool:
    """While nothing is asked: the server closed it."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def from_socket(error: Exception, path: str) -> CacheFSError:
    """What a failure of the connection means. The kernel tells a time-out of a blocking socket as
    EAGAIN."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return Unreachable("no answer in time", path=path)
    return Unreachable(f"the connection was cut ({error or type(error).__name__})", path=path)
