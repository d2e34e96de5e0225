"""`connectors.fetch.many.Many` in a thread of its own."""

from __future__ import annotations

import collections
import threading

from connectors.fetch.many import LIMIT_S, Many, Taken
from connectors.fetch.request import Get, Made


class ManyThread:
    """Runs until `close`, or until a call-back raises."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # that ended it
        self.many = Many()
        self._lock = threading.Lock()
        self._new: collections.deque[tuple[Get, Taken]] = collections.deque()
        self._is_closed = False
        self.thread = threading.Thread(target=self._run, name="many")
        self.thread.start()

    def start(self, request: Get, taken: Taken) -> bool:
        """Returns False, and calls nothing, once this has ended. `taken` may use the body until it
        returns."""

        def took(body: memoryview | None, size: int, code: str, made: Made) -> None:
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
