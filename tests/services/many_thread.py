"""`connectors.fetch.batch_reader.BatchReader` in a thread of its own."""

from __future__ import annotations

import collections
import threading

from connectors.fetch.batch_reader import LIMIT_S, BatchReader, OnReadEnded
from connectors.fetch.request import HttpRequest, NewConnections


class ManyThread:
    """Runs until `close`, or until a call-back raises."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # that ended it
        self.many = BatchReader()
        self._lock = threading.Lock()
        self._new: collections.deque[tuple[HttpRequest, OnReadEnded]] = collections.deque()
        self._is_closed = False
        self.thread = threading.Thread(target=self._run, name="many")
        self.thread.start()

    def start(self, request: HttpRequest, taken: OnReadEnded) -> bool:
        """Returns False, and calls nothing, once this has ended. `taken` may use the body until it
        returns."""

        def took(body: memoryview | None, size: int, code: str, made: NewConnections) -> None:
            taken(body, size, code, made)
            if body is not None:
                self.many.give_back(body)

        with self._lock:
            if not self._is_closed:
                self._new.append((request, took))
                self.many._multi.wake()
            return not self._is_closed

    def close(self, wait_s: float) -> None:
        """Ends all reads. Idempotent."""
        with self._lock:
            self._is_closed = True
            self.many._multi.wake()
        self.thread.join(wait_s)
        assert not self.thread.is_alive(), "the thread does not end"

    def _run(self) -> None:
        try:
            while not self._is_closed:
                while self._new:
                    self.many.start(*self._new.popleft())
                self.many.turn(LIMIT_S)
        except BaseException as err:  # noqa: BLE001 -- for the test to look at
            self.error = err
        finally:
            with self._lock:
                self._is_closed = True
            while self._new:
                self.many.start(*self._new.popleft())
            self.many.close()
