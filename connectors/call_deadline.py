"""The deadline of each call of a library that cannot time out. It stands around the adapter, inside
retry, limit and meter. An adapter whose client can cancel a request does that itself instead."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from cachefs.core.errors import CacheFSError, DeadlineExceeded, Unreachable
from cachefs.core.model import Fingerprint
from connectors.base import Body, Connector, Page
from connectors.call_threads import Call, CallThreads
from connectors.deadline import LEAST_BYTES_PER_S, until
from connectors.decorator import Decorator
from connectors.pages import close_listing
from connectors.writing import WRITES, Expectation, writer_of

T = TypeVar("T")
ATTEMPT_S: Final = 10.0


def _nothing(_result: object) -> None:
    """Drops a late result that holds no resource."""


def _close_late(body: Body | None) -> None:
    if body is not None:
        body.close()


class Deadline(Decorator):
    """A connector whose calls run in threads. The caller gets Unreachable after
    `attempt_s`, or at its own deadline (`connectors.deadline`), and a body after that time without
    a chunk. A call that hangs keeps its thread; see `CallThreads` for the bounds."""

    def __init__(
        self,
        inner: Connector,
        *,
        attempt_s: float = ATTEMPT_S,
        threads: CallThreads | None = None,
    ) -> None:
        """Owns `threads`: `close` closes them."""
        super().__init__(inner)
        self._attempt_s = attempt_s
        self._threads = threads or CallThreads()

    def _until(self, size_bytes: int = 0) -> float:
        attempt_s = self._attempt_s + size_bytes / LEAST_BYTES_PER_S
        return min(time.monotonic() + attempt_s, until())

    def _around(self, verb: str, act: Callable[[], T]) -> T:
        if verb in WRITES:
            return self._write(act, 0)
        return self._threads.run(act, self._until(), _nothing)

    def _write(self, act: Callable[[], T], size_bytes: int) -> T:
        """Runs a write. Raises DeadlineExceeded, which is not retried, if it hangs: it may happen
        later, after whatever another attempt would write."""
        until_s = self._until(size_bytes)
        call = self._threads.start(act, until_s)
        try:
            return self._threads.wait(call, until_s)
        except Unreachable as error:
            if call.done.is_set():
                raise
            cause = "the write was not confirmed in time: it may still happen"
            raise DeadlineExceeded(cause) from error

    def put(self, path: bytes, data: memoryview, expect: Expectation) -> Fingerprint:
        inner = writer_of(self._inner)
        return self._write(lambda: inner.put(path, data, expect), len(data))

    def put_part(self, token: bytes, number: int, data: memoryview) -> bytes:
        inner = writer_of(self._inner)
        return self._write(lambda: inner.put_part(token, number, data), len(data))

    def list_dir(self, path: bytes) -> Iterator[Page]:
        return _Listing(self._inner.list_dir(path), self._threads, self._until)

    def _body(self, open_body: Callable[[], Body]) -> Body:
        body = self._threads.run(open_body, self._until(), _close_late)
        return _DeadlineBody(body, self._threads, self._until)

    def read_all(self, path: bytes, version: Fingerprint) -> memoryview:
        return self._threads.run(
            lambda: self._inner.read_all(path, version), self._until(version.size), _nothing
        )

    def close(self) -> None:
        """Closes the adapter, in the attempt's time, then the threads. Idempotent."""
        with contextlib.suppress(Unreachable):
            self._threads.run(self._inner.close, self._until(), _nothing)
        self._threads.close()


class _Listing:
    """The pages of a listing. If a page hangs, the following `next` waits for the same call, since
    `inner` is for one thread. A closed listing leaves a call that hangs, and then does not close
    `inner`; for one thread, like `inner`."""

    def __init__(
        self, inner: Iterator[Page], threads: CallThreads, until_s: Callable[[], float]
    ) -> None:
        self._inner = inner
        self._threads = threads
        self._until = until_s
        self._call: Call[Page | None] | None = None

    def __iter__(self) -> Iterator[Page]:
        return self

    def __next__(self) -> Page:
        until_s = self._until()
        if self._call is None:
            self._call = self._threads.start(lambda: next(self._inner, None), until_s)
        call = self._call
        try:
            page = self._threads.wait(call, until_s)
        finally:
            if call.done.is_set():
                self._call = None
        if page is None:
            raise StopIteration
        return page

    def close(self) -> None:
        """Ends the listing. Idempotent."""
        if self._call is None:
            close_listing(self._inner)


class _DeadlineBody:
    """A body whose every chunk has a deadline. After a chunk that hung, the body has no more; the
    call's thread closes it when the call returns."""

    def __init__(self, inner: Body, threads: CallThreads, until_s: Callable[[], float]) -> None:
        self._inner = inner
        self._threads = threads
        self._until = until_s
        self._closed = False

    def __iter__(self) -> Iterator[memoryview]:
        chunks = iter(self._inner)
        while not self._closed:
            call = self._threads.start(lambda: next(chunks, None), self._until())
            try:
                chunk = self._threads.wait(call, self._until())
            except Unreachable:
                if not call.done.is_set():
                    self._closed = True
                    self._threads.abandon(call, lambda _late: self._inner.close())
                raise
            if chunk is None:
                return
            yield chunk

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(CacheFSError):  # a close that hangs, or fails, loses a connection
            self._threads.run(self._inner.close, self._until(), _nothing)
