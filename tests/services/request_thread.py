"""A thread that starts requests and drives them."""

from __future__ import annotations

import abc
import collections
import threading
from typing import Any, final


class RequestThread(abc.ABC):
    """Runs until `close`, until a call-back raises, or until `has_ended`. The end of the process
    does not wait for it: a test that failed may leave it."""

    def __init__(self, name: str) -> None:
        self.error: BaseException | None = None  # that ended it
        self._lock = threading.Lock()
        self._new: collections.deque[tuple[Any, ...]] = collections.deque()
        self._is_closed = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    @abc.abstractmethod
    def _wake(self) -> None:
        """Ends the wait of `_turn`. From any thread."""

    @abc.abstractmethod
    def _begin(self, *request: Any) -> None:
        """Starts a request."""

    @abc.abstractmethod
    def _turn(self) -> None:
        """Waits for something to do, and does it."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Ends all requests."""

    @property
    def has_ended(self) -> bool:
        """True if no request can be driven any more."""
        return False

    @final
    def _submit(self, *request: Any) -> bool:
        """Returns False, and calls nothing, once this has ended."""
        with self._lock:
            if not self._is_closed:
                self._new.append(request)
                self._wake()
            return not self._is_closed

    def close(self, wait_s: float) -> None:
        """Ends all requests. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._wake()
        self.thread.join(wait_s)
        assert not self.thread.is_alive(), "the thread does not end"

    def _run(self) -> None:
        try:
            while not (self._is_closed or self.has_ended):
                self._begin_new()
                self._turn()
        except BaseException as err:  # noqa: BLE001 -- for the test to look at
            self.error = err
        finally:
            with self._lock:
                self._is_closed = True
            self._begin_new()
            self._end()

    def _begin_new(self) -> None:
        while self._new:
            self._begin(*self._new.popleft())
