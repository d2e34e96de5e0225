"""Reads of whole small files, many in flight in one thread: for a file of 100 KB a thread switch
costs more than the read (`bench/cold_small`).

Only the expected reply is handled here. After any other reply the caller's thread pool repeats the
read, interprets the error and retries.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import pycurl

from cachefs.core.errors import OriginError, Unreachable
from connectors.fetch.exchange import Exchange
from connectors.fetch.multi import Ended, Multi
from connectors.fetch.request import AT_ONCE, NOTHING_MADE, Get, Made
from connectors.until import LEAST_BYTES_PER_S

log = logging.getLogger(__name__)

BODY_BYTES: Final = 1 << 20  # the largest file
LIMIT_S: Final = BODY_BYTES / LEAST_BYTES_PER_S  # the timeout of one read
SILENCE_LIMIT_S: Final = 10  # less than a thread's, since other reads wait for the slot
ROUND_BYTES: Final = 32 << 10  # the unit of buffer sizes, so that similar files share buffers
KEPT_BYTES: Final = 8 << 20  # the most kept in unused buffers

Taken = Callable[[memoryview | None, int, str, Made], None]
"""Called once with the outcome of a read: the body (valid during the call) or None, the bytes
received, the code of an error or "", and the connections that the read made."""


def _limits() -> Iterable[tuple[int, int]]:
    yield pycurl.TIMEOUT_MS, int(LIMIT_S * 1000)
    yield pycurl.LOW_SPEED_LIMIT, 1
    yield pycurl.LOW_SPEED_TIME, SILENCE_LIMIT_S


class Inbox(Protocol):
    """A descriptor from which the serving thread receives requests for reads."""

    def fileno(self) -> int: ...
    def ready(self) -> bool:
        """Called by `Many.serve` when the descriptor is readable: starts the requested reads.
        Returns False at the end of the input."""

    def turned(self) -> None:
        """Called by `Many.serve` before it waits; reads may have ended since the last call."""


class Many:
    """The reads in flight of one thread, which owns this object. `start` is called by the inbox and
    by `taken` call-backs, while `serve` runs."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._multi = Multi(AT_ONCE, inbox.fileno())
        self._queued: collections.deque[tuple[Get, Taken]] = collections.deque()
        self._running: dict[Exchange, tuple[Get, Taken]] = {}
        self._idle: list[Exchange] = []
        self._buffers: list[bytearray] = []  # the last one is used next: it is in the CPU's cache
        self._kept_bytes = 0

    def start(self, get: Get, taken: Taken) -> None:
        """Starts the read of a file of at most `BODY_BYTES`. `taken` is called exactly once, after
        this has returned."""
        self._queued.append((get, taken))

    def serve(self) -> None:
        """Runs until the inbox has ended, once. Then all reads left fail, also if the inbox or a
        `taken` raises; that error is raised again."""
        try:
            has_input = True
            while has_input:
                self._start_queued()
                self._inbox.turned()
                for ended in self._multi.turn(LIMIT_S):
                    self._finish(ended)
                has_input = not self._multi.has_mail or self._inbox.ready()
        finally:
            self._fail_all()

    def _fail_all(self) -> None:
        left = [*self._running.values(), *self._queued]
        self._running.clear()
        self._queued.clear()
        self._multi.close()
        for _, taken in left:
            try:
                taken(None, 0, Unreachable.code, NOTHING_MADE)
            except Exception:  # call the others too
                log.exception("could not report the end of a small-file read")

    def _start_queued(self) -> None:
        while self._queued and len(self._running) < AT_ONCE:
            get, taken = self._queued.popleft()
            exchange = self._idle.pop() if self._idle else Exchange(_limits())
            self._running[exchange] = get, taken
            exchange.begin(get, memoryview(self._buffer(get.size))[: get.size])
            self._multi.add(exchange)

    def _finish(self, ended: Ended) -> None:
        exchange = ended.exchange
        get, taken = self._running.pop(exchange)
        body, received = exchange.room, exchange.got
        is_right = ended.code == 0 and get.is_answer(exchange.head) and exchange.left == 0
        is_cut = ended.code not in (0, pycurl.E_WRITE_ERROR)
        exchange.room = memoryview(b"")
        self._idle.append(exchange)
        code = "" if is_right else Unreachable.code if is_cut else OriginError.code
        taken(body if is_right else None, received, code, exchange.made)
        self._keep(body)

    def _buffer(self, size_bytes: int) -> bytearray:
        if self._buffers:
            buffer = self._buffers.pop()
            self._kept_bytes -= len(buffer)
            if len(buffer) >= size_bytes:
                return buffer
        return bytearray(-(-size_bytes // ROUND_BYTES) * ROUND_BYTES)

    def _keep(self, body: memoryview) -> None:
        buffer = body.obj
        assert isinstance(buffer, bytearray)
        if self._kept_bytes + len(buffer) <= KEPT_BYTES:
            self._buffers.append(buffer)
            self._kept_bytes += len(buffer)
