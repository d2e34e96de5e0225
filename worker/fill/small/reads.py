"""Whole small files from the origin, many at once, by the loop itself
(`connectors.fetch.batch_reader`): each change of threads would cost more than it could save.
Ordinary threads read a file where that fails. Owned by the loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.core.model import Origin
from connectors.fetch.batch_reader import BatchReader
from connectors.fetch.request import AT_ONCE, NOT_SENT, NewConnections, RangeRequest
from worker.fill.source import Source
from worker.runtime.threads import Done, LoopCallbackQueue, Threads

log = logging.getLogger(__name__)

RECENT_S: Final = 60.0
IDLE_S: Final = 15.0  # then the connections are closed
RETRY_S: Final = 5.0  # after there were no descriptors


class SmallFile(msgspec.Struct, frozen=True):
    """A file to be fetched. `store(body)` writes it; it raises where that fails or the file is no
    longer wanted. Then `done(None, error)` is called. Else `otherwise()` is: an ordinary thread is
    to read the file."""

    origin: Origin
    store: Callable[[memoryview], None]
    done: Done
    otherwise: Callable[[], None]


class SmallReads:
    """The reads of one tier. `writers` store the bodies, where that may block; None: the loop
    does."""

    def __init__(self, source: Source, writers: Threads | None, wake: LoopCallbackQueue) -> None:
        self._source = source
        self._writers = writers
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._many: BatchReader | None = None
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._timer_s = 0.0  # when it is due
        self._is_closed = False
        self._in_flight = 0
        self._retry_at_s = float("-inf")
        self._started_s = float("-inf")  # the last read

    def start(self, file: SmallFile) -> bool:
        """Fetches all of a file. Its call-backs follow after this has returned. Returns False
        where the file cannot be fetched in this way, and calls nothing."""
        ask = (
            self._source.ask(file.origin, 0, file.origin.size)
            if self._in_flight < AT_ONCE
            else None
        )
        if ask is None:
            return False
        many = self._many or self._open()
        if many is None:
            ask.ended(0, NOT_SENT)
            return False
        many.start(ask.get, functools.partial(self._taken, many, file, ask))
        self._started_s = self._loop.time()
        self._in_flight += 1
        self._turn_at(0.0)
        return True

    def _open(self) -> BatchReader | None:
        if self._is_closed or self._loop.time() < self._retry_at_s:
            return None
        try:
            self._many = BatchReader()
        except OSError as err:
            self._retry_at_s = self._loop.time() + RETRY_S
            log.warning("small files are read one by one: %s", err.strerror or err)
        else:
            self._loop.add_reader(self._many.fileno(), self._turn)
        return self._many

    @property
    def serves(self) -> bool:
        """Returns whether files were read in this way recently."""
        return self._loop.time() - self._started_s < RECENT_S

    def look(self) -> None:
        """Closes unused connections. Called a few times a second."""
        if not self._in_flight and self._loop.time() - self._started_s >= IDLE_S:
            self._close_connections()

    def close(self) -> None:
        """Ends all reads: their files are left to `otherwise`. Idempotent."""
        self._is_closed = True
        self._close_connections()

    def _close_connections(self) -> None:
        many, self._many = self._many, None
        if many is not None:
            self._loop.remove_reader(many.fileno())
            many.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- turns ----

    def _turn(self) -> None:
        if self._many is not None:
            self._many.turn()
        if self._many is not None and self._many.due_s is not None:
            self._turn_at(self._many.due_s)

    def _turn_at(self, due_s: float) -> None:
        """Takes a turn at that time or before it."""
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer_s = due_s
        if due_s <= self._loop.time():
            self._timer = self._loop.call_soon(self._on_timer)
        else:
            self._timer = self._loop.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._turn()

    # ---- one read ----

    def _taken(
        self,
        many: BatchReader,
        file: SmallFile,
        ask: RangeRequest,
        body: memoryview | None,
        received_bytes: int,
        code: str,
        made: NewConnections,
    ) -> None:
        """See `connectors.fetch.batch_reader.OnReadEnded`."""
        report = functools.partial(_report, ask, received_bytes, code, made)
        if body is None:
            self._end_soon(report, file.otherwise)
        elif self._writers is None:
            self._stored(many, file, report, body, None, _failure(file.store, body))
        else:
            stored = functools.partial(self._stored, many, file, report, body)
            self._writers.submit(file.store, body, done=stored)

    def _stored(
        self,
        many: BatchReader,
        file: SmallFile,
        report: Callable[[], None],
        body: memoryview,
        _: object,
        error: BaseException | None,
    ) -> None:
        many.give_back(body)
        if many is self._many and many.is_waiting:
            self._turn_at(0.0)
        self._end_soon(report, functools.partial(file.done, None, error))

    def _end_soon(self, report: Callable[[], None], tell: Callable[[], None]) -> None:
        self._wake.call_from_loop(self._end, report, tell)

    def _end(self, report: Callable[[], None], tell: Callable[[], None]) -> None:
        self._in_flight -= 1
        try:
            report()
        finally:
            tell()


def _report(ask: RangeRequest, received_bytes: int, code: str, made: NewConnections) -> None:
    if made.connections:
        ask.made(made)
    ask.ended(received_bytes, code)


def _failure(store: Callable[[memoryview], None], body: memoryview) -> Exception | None:
    """Returns what `store` raises, of whatever type: the reader gets it."""
    try:
        store(body)
    except Exception as err:  # noqa: BLE001 -- handed to the caller
        return err
    return None
