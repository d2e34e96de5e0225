"""Whole small files, many requests at once, driven by one thread: for a file of 100 KB a change of
threads costs more than the read (`bench/cold_small`).

A read fails on any reply but the expected one. The caller then leaves the file to an ordinary
thread, which knows what the reply means and retries.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Final

import pycurl

from cachefs.core.errors import Unreachable
from connectors.deadline import LEAST_BYTES_PER_S
from connectors.fetch.exchange import Exchange
from connectors.fetch.multi import Ended, Multi, close_handles
from connectors.fetch.request import (
    AT_ONCE,
    NO_NEW_CONNECTIONS,
    NOT_SENT,
    HttpRequest,
    NewConnections,
)

BODY_BYTES: Final = 1 << 20  # the largest file
ROOM_BYTES: Final = 16 << 20  # of all buffers; reads wait for those in use
LIMIT_S: Final = BODY_BYTES / LEAST_BYTES_PER_S  # of one read: slower ones count as silence
SILENCE_LIMIT_S: Final = 10  # other reads wait for a place: a thread has more patience
ROUND_BYTES: Final = 32 << 10  # of buffers, so that files of about one size share them

EVENTS_AT_ONCE: Final = 16  # of sockets: TLS takes 0.1 ms for the body of one, and others wait

OnReadEnded = Callable[[memoryview | None, int, str, NewConnections], None]
"""Receives the body, or None; how many bytes of it arrived; the code of the error, `NOT_SENT` or
""; the connections that the read made. The receiver returns the body with `give_back`. Must not
raise."""


def _limits() -> Iterable[tuple[int, int]]:
    yield pycurl.TIMEOUT_MS, int(LIMIT_S * 1000)
    yield pycurl.LOW_SPEED_LIMIT, 1
    yield pycurl.LOW_SPEED_TIME, SILENCE_LIMIT_S


class BatchReader:
    """Small reads in flight. One thread calls all methods. It calls `turn` when the descriptor
    `fileno()` is readable, at `due_s`, and after `start`; no other method waits for anything."""

    def __init__(self) -> None:
        """Raises OSError where no descriptors are left."""
        self._multi = Multi(AT_ONCE)
        self._waiting: collections.deque[tuple[HttpRequest, OnReadEnded]] = collections.deque()
        self._running: dict[Exchange, tuple[HttpRequest, OnReadEnded]] = {}
        self._idle: list[Exchange] = []
        self._used_bytes = 0  # of buffers of requests, and of bodies that were not returned
        self._buffers: list[bytearray] = []  # the last one is used next: it is in the CPU's cache
        self._kept_bytes = 0  # of buffers that no request uses
        _open.add(self)

    def fileno(self) -> int:
        """Returns the descriptor that is readable while `turn` has something to do."""
        return self._multi.fileno()

    @property
    def due_s(self) -> float | None:
        """The time at which `turn` is to be called at the latest (monotonic); None: no time."""
        return self._multi.due_s

    @property
    def is_waiting(self) -> bool:
        """True if reads wait for a buffer or a connection: `turn` starts them."""
        return bool(self._waiting)

    def start(self, get: HttpRequest, taken: OnReadEnded) -> None:
        """Reads a file of at most `BODY_BYTES`. `taken` is called exactly once, in `turn` or
        `close`."""
        self._waiting.append((get, taken))

    def turn(self, limit_s: float = 0.0) -> None:
        """Moves the requests on; waits for up to `limit_s` seconds until one can move."""
        self._begin_some()
        for ended in self._multi.turn(limit_s, EVENTS_AT_ONCE):
            self._finish(ended)
        self._begin_some()

    def give_back(self, body: memoryview) -> None:
        """Takes a body back that `taken` received."""
        buffer = body.obj
        assert isinstance(buffer, bytearray)
        self._used_bytes -= len(buffer)
        if self._used_bytes + self._kept_bytes + len(buffer) <= ROOM_BYTES:
            self._buffers.append(buffer)
            self._kept_bytes += len(buffer)

    def close(self) -> None:
        """Ends all reads. Waits for nothing, see `close_handles`."""
        failed = [*self._running.values(), *self._waiting]
        close_handles(self._multi, [*self._running, *self._idle])
        self._running.clear()
        self._waiting.clear()
        self._idle.clear()
        _open.discard(self)
        for _, taken in failed:
            taken(None, 0, Unreachable.code, NO_NEW_CONNECTIONS)

    def _begin_some(self) -> None:
        while self._waiting and self._has_place(self._waiting[0][0].size):
            get, taken = self._waiting.popleft()
            exchange = self._idle.pop() if self._idle else Exchange(_limits())
            self._running[exchange] = get, taken
            exchange.begin(get, memoryview(self._take_buffer(get.size))[: get.size])
            self._multi.add(exchange)

    def _has_place(self, size_bytes: int) -> bool:
        return len(self._running) < AT_ONCE and self._used_bytes + size_bytes <= ROOM_BYTES

    def _finish(self, ended: Ended) -> None:
        exchange = ended.exchange
        get, taken = self._running.pop(exchange)
        body, received_bytes, made = exchange.room, exchange.got, exchange.made
        error = ended.error_of(get)
        exchange.room = memoryview(b"")
        self._idle.append(exchange)
        if not error:
            return taken(body, received_bytes, "", made)
        self.give_back(body)
        taken(None, received_bytes, error, made)
        if error == Unreachable.code:
            self._leave_waiting()

    def _leave_waiting(self) -> None:
        """Ends the reads that have not begun. Those of a silent source would fail one round after
        another, and those of other sources would wait behind them."""
        waiting, self._waiting = self._waiting, collections.deque()
        for _, taken in waiting:
            taken(None, 0, NOT_SENT, NO_NEW_CONNECTIONS)

    def _take_buffer(self, size_bytes: int) -> bytearray:
        buffer = self._buffers.pop() if self._buffers else bytearray()
        self._kept_bytes -= len(buffer)
        if len(buffer) < size_bytes:
            buffer = bytearray(-(-size_bytes // ROUND_BYTES) * ROUND_BYTES)
        self._used_bytes += len(buffer)
        while self._buffers and self._used_bytes + self._kept_bytes > ROOM_BYTES:
            self._kept_bytes -= len(self._buffers.pop(0))
        return buffer


# Keeps the garbage collector from libcurl's handles until they are closed, see `lanes`.
_open: Final[set[BatchReader]] = set()
