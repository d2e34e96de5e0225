"""Counters of an origin: requests and seconds by verb, errors by code, body bytes, connections,
handshakes. What the requests say of the way to the origin is in `reach`.

Verbs: check, stat, list_dir (once per page), read, and the methods of `connectors.writing.Writer`.
A retry counts again. The seconds of a read are those until its first bytes plus those of its
chunks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector
from connectors.decorator import Decorator
from connectors.fetch.request import NO_NEW_CONNECTIONS, NOT_SENT, NewConnections, RangeRequest
from connectors.reach import Reach

T = TypeVar("T")


class Snapshot(msgspec.Struct, frozen=True):
    """The counts at one moment, since the meter was created."""

    requests: dict[str, int]  # by verb
    seconds: dict[str, float]  # by verb
    errors: dict[str, int]  # by code of the error
    body_bytes: int
    hidden_keys: int  # seen in listings, each time they were listed
    connections: int  # new ones
    handshakes: int  # of TLS on them; resumed sessions are not distinguished


class Meter:
    """Thread-safe counters; several connectors of one origin may share one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.reach = Reach()
        self._clock = clock
        # Re-entrant: garbage collection within a call here may close a body, which calls `made`.
        self._lock = threading.RLock()
        self._requests: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._errors: Counter[str] = Counter()
        self._body_bytes = 0
        self._hidden_keys = 0
        self._made = NO_NEW_CONNECTIONS

    def request(self, verb: str, seconds: float, error: str = "") -> None:
        """Counts one request and its duration; `error` is the code of its error."""
        with self._lock:
            self._requests[verb] += 1
            self._seconds[verb] += seconds
            if error:
                self._errors[error] += 1
        self._ended(error, seconds)

    def body(self, size_bytes: int, seconds: float, error: str = "") -> None:
        """Counts a chunk of a body, or its failure."""
        with self._lock:
            self._body_bytes += size_bytes
            self._seconds["read"] += seconds
            if error:
                self._errors[error] += 1
        self._ended(error, seconds)

    def whole(self, size_bytes: int, seconds: float, error: str = "") -> None:
        """Counts a request with its whole body, or with the bytes received before an error."""
        with self._lock:
            self._requests["read"] += 1
            self._seconds["read"] += seconds
            self._body_bytes += size_bytes
            if error:
                self._errors[error] += 1
        self._ended(error, seconds)

    def _ended(self, error: str, seconds: float) -> None:
        now = self._clock()
        self.reach.ended(error, now - seconds, now)

    def hidden(self, count: int) -> None:
        with self._lock:
            self._hidden_keys += count

    def made(self, made: NewConnections) -> None:
        """Counts new connections."""
        with self._lock:
            before = self._made
            self._made = NewConnections(*(old + new for old, new in zip(before, made, strict=True)))

    def snapshot(self) -> Snapshot:
        with self._lock:
            return Snapshot(
                dict(self._requests),
                dict(self._seconds),
                dict(self._errors),
                self._body_bytes,
                self._hidden_keys,
                *self._made,
            )


class Metered(Decorator):
    """A connector whose requests a meter counts."""

    def __init__(
        self, inner: Connector, meter: Meter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(inner)
        self._meter = meter
        self._clock = clock

    def _around(self, verb: str, act: Callable[[], T]) -> T:
        started = self._clock()
        try:
            result = act()
        except CacheFSError as error:
            self._meter.request(verb, self._clock() - started, error.code)
            raise
        if result is not None or verb != "list_dir":  # None: the end of a listing, not a request
            self._meter.request(verb, self._clock() - started)
        self._meter.hidden(getattr(result, "hidden", 0))
        return result

    def _body(self, open_body: Callable[[], Body]) -> Body:
        return MeteredBody(self._around("read", open_body), self._meter, self._clock)

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        started = self._clock()
        try:
            data = self._inner.read_all(path, version)
        except CacheFSError as error:
            self._meter.request("read", self._clock() - started, error.code)
            raise
        self._meter.whole(len(data), self._clock() - started)
        return data

    def ask(self, path: bytes, offset: int, size: int, version: Fingerprint) -> RangeRequest | None:
        ask, started = self._inner.ask(path, offset, size, version), self._clock()

        def ended(size_bytes: int, error: str) -> None:
            if error != NOT_SENT:
                self._meter.whole(size_bytes, self._clock() - started, error)

        if ask is not None:
            ask.also(ended)
        return ask


class MeteredBody:
    """A body whose chunks are counted as they are yielded."""

    def __init__(self, inner: Body, meter: Meter, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._meter = meter
        self._clock = clock

    def __iter__(self) -> Iterator[memoryview]:
        chunks = iter(self._inner)
        while True:
            started = self._clock()
            try:
                chunk = next(chunks, None)
            except CacheFSError as error:
                self._meter.body(0, self._clock() - started, error.code)
                raise
            if chunk is None:
                return
            self._meter.body(len(chunk), self._clock() - started)
            yield chunk

    def close(self) -> None:
        self._inner.close()
