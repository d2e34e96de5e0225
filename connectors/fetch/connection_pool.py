"""The connection pool of a source, and the bodies that threads read from it in chunks.

The reading thread itself drives libcurl from the socket into its buffer; no other thread is woken.
A lane is a handle of libcurl with its connection, kept for later requests of the same source.
Nothing is retried; libcurl only replaces a kept connection that the server closed before its reply.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from cachefs.core.errors import BadBody, CacheFSError, OriginError, Unreachable
from connectors.deadline import LEAST_BYTES_PER_S, until
from connectors.fetch.connection import CHUNK_BYTES, CurlConnection
from connectors.fetch.exchange import KEPT_S, make_share
from connectors.fetch.failures import from_curl
from connectors.fetch.multi import Ended
from connectors.fetch.request import Head, HttpRequest, OnConnected, ignore_connections
from connectors.fetch.sent_request import SentRequest
from connectors.idle import register

CHUNK_LIMIT_S: Final = CHUNK_BYTES / LEAST_BYTES_PER_S  # the timeout of one chunk
SILENCE_LIMIT_S: Final = 20.0  # the timeout of a reply's head
LEAST_WAIT_S: Final = 0.1
MOST_KEPT: Final = 64


class FetchBody:
    """A reply: its head, and its body as `connectors.base.Body`. All chunks use one buffer. An
    early `close` ends the request, and the iteration of a reading thread ends."""

    def __init__(
        self,
        lane: CurlConnection,
        release: Callable[[CurlConnection], None],
        get: HttpRequest,
        path: str,
    ) -> None:
        """Waits for the head of the reply to the request that the lane has begun, and for the body
        of an error reply. Raises Unreachable on a timeout, else the errors of `from_curl`."""
        self._lane: CurlConnection | None = lane
        self._release = release
        self._get = get
        self._path = path
        self._lock = threading.Lock()  # held by the thread that drives the lane
        self._is_closed = False
        try:
            self.head, self.refusal = self._receive_head(lane)
        except BaseException:
            self.close()
            raise

    def _receive_head(self, lane: CurlConnection) -> tuple[Head, bytes]:
        exchange, now = lane.exchange, time.monotonic()
        limit_s = SILENCE_LIMIT_S + self._get.sent_bytes / LEAST_BYTES_PER_S
        until_s = max(now + LEAST_WAIT_S, min(now + limit_s, until()))
        lane.wait(lambda: exchange.head is not None and exchange.head.is_success, until_s)
        if exchange.head is not None and exchange.head.status != 407:
            # The status suffices, even if the body of an error reply is incomplete.
            return exchange.head, bytes(exchange.refusal)
        if lane.ended is None:
            raise Unreachable("no answer in time", path=self._path)
        raise self._failed(lane.ended, has_body=False)

    def __iter__(self) -> Iterator[memoryview]:
        try:
            yield from self._chunks()
        finally:
            self.close()

    def _chunks(self) -> Iterator[memoryview]:
        size = 0
        while True:
            with self._driving() as lane:
                if lane is None:
                    return
                lane.exchange.drop(size)
                error = self._receive(lane)
                size = min(lane.exchange.got, CHUNK_BYTES)
                chunk = lane.exchange.room[:size]
                is_last = lane.exchange.got == size and (lane.ended or error) is not None
            if size and not self._is_closed:
                yield chunk
            if is_last and error is not None and not self._is_closed:
                raise error
            if is_last:
                return

    def _receive(self, lane: CurlConnection) -> CacheFSError | None:
        """Fills the buffer. Returns the error of a body that stalls, ends early or is too long."""
        exchange = lane.exchange
        in_time = lane.wait(
            lambda: self._is_closed or exchange.has_stopped or exchange.got >= CHUNK_BYTES,
            time.monotonic() + CHUNK_LIMIT_S,
        )
        if not in_time:
            return Unreachable("the rest of the body did not arrive in time", path=self._path)
        if exchange.is_over:
            return self._too_long()
        if lane.ended is None:
            return None
        if lane.ended.code:
            return self._failed(lane.ended, has_body=True)
        if exchange.left and not self._get.is_limit:
            return BadBody(f"the body ended {exchange.left} bytes early", path=self._path)
        return None

    def _too_long(self) -> CacheFSError:
        if self._get.is_limit:
            cause = f"the reply has more than {self._get.size >> 20} MiB"
            return OriginError(cause, path=self._path)
        return BadBody("the body is longer than requested", path=self._path)

    def _failed(self, ended: Ended, *, has_body: bool) -> CacheFSError:
        return from_curl(
            ended.code,
            ended.text,
            self._path,
            has_body=has_body,
            proxy_status=ended.exchange.proxy_status,
        )

    @contextlib.contextmanager
    def _driving(self) -> Iterator[CurlConnection | None]:
        """Yields the lane and holds the lock; yields None after `close`."""
        with self._lock:
            yield self._lane if not self._is_closed else None
        self._release_lane()

    def close(self) -> None:
        self._is_closed = True
        lane = self._lane
        if lane is not None:
            lane.wake()
        self._release_lane()

    def _release_lane(self) -> None:
        """Returns the lane of a closed body to the pool, or leaves that to the driving thread."""
        while self._is_closed and self._lane is not None and self._lock.acquire(blocking=False):
            try:
                lane, self._lane = self._lane, None
                if lane is not None:
                    lane.end()
                    self._release(lane)
            finally:
                self._lock.release()

    def __del__(self) -> None:
        self.close()


class ConnectionPool:
    """The kept lanes of one source. Thread-safe without a lock, since the garbage collector may
    return a body's lane inside any of these calls."""

    def __init__(self, tell_made: OnConnected = ignore_connections) -> None:
        """`tell_made` is called by the thread of a request that made a connection, after it."""
        self._share = make_share()
        self._tell_made = tell_made
        self._idle: collections.deque[tuple[CurlConnection, float]] = collections.deque()
        self._is_closed = False
        register(self)

    def get(self, get: HttpRequest, path: str) -> FetchBody:
        """Returns the reply to a request; the caller checks its status. Raises as `FetchBody`."""
        lane = self._take()
        try:
            lane.begin(get)
        except BaseException:
            lane.end()
            self._keep(lane)
            raise
        return FetchBody(lane, self._keep, get, path)

    def send(self, get: HttpRequest, path: str) -> SentRequest | None:
        """Sends a request on a kept connection and waits for nothing; `receive` returns the reply.
        Returns None if that is not possible at once."""
        lane = self._idle_lane()
        sent = SentRequest(lane, self._keep, get, path) if lane is not None else None
        if sent is None or sent.is_sent:
            return sent
        sent.close()
        return None

    def receive(self, sent: SentRequest) -> FetchBody:
        """Returns the reply as `get` does. Takes over the request."""
        return FetchBody(sent.take(), self._keep, sent.get, sent.path)

    def _take(self) -> CurlConnection:
        return self._idle_lane() or CurlConnection(self._share)

    def _idle_lane(self) -> CurlConnection | None:
        """Returns the most recently used idle lane; None if all are in use."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread emptied it
                lane, since_s = self._idle.pop()
                if time.monotonic() - since_s < KEPT_S:
                    return lane
                lane.close()
        return None

    def _keep(self, lane: CurlConnection) -> None:
        if (made := lane.exchange.made).connections:
            self._tell_made(made)
        lane.exchange.forget_sent()
        self._idle.append((lane, time.monotonic()))
        self.close_idle()

    def close_idle(self) -> None:
        """Closes the lanes that were idle for `KEPT_S`, and those beyond `MOST_KEPT`."""
        before_s = time.monotonic() - KEPT_S if not self._is_closed else float("inf")
        with contextlib.suppress(IndexError):  # another thread emptied it
            while self._idle[0][1] < before_s or len(self._idle) > MOST_KEPT:
                self._idle.popleft()[0].close()

    def close(self) -> None:
        """Closes the idle lanes; lanes in use are closed when they are returned. Idempotent."""
        self._is_closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.popleft()[0].close()

    def __del__(self) -> None:
        self.close()
