"""The instances of a file system of which each thread needs its own. Bounded."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from cachefs.core.errors import DeadlineExceeded, NotFound
from connectors.deadline import until

MOST_OPEN: Final = 8  # instances, each with a connection; ssh servers refuse more at once
WAIT_LIMIT_S: Final = 30.0

# A server that answers so is connected.
_ANSWERS: Final = (FileNotFoundError, NotADirectoryError, PermissionError, UnicodeError, NotFound)

T = TypeVar("T")


class Instances(Generic[T]):
    """Up to `MOST_OPEN` instances, made when needed. An instance whose use failed is not used
    again, as its connection may be cut. Thread-safe."""

    def __init__(self, make: Callable[[], T], end: Callable[[T], None]) -> None:
        self._make = make
        self._end = end
        self._idle: collections.deque[tuple[int, T]] = collections.deque()
        self._made_from = 0  # the number of `renew` calls before
        self._slots = threading.BoundedSemaphore(MOST_OPEN)
        self._is_closed = False

    @contextlib.contextmanager
    def taken(self) -> Iterator[T]:
        """Yields an instance that no other thread uses. Raises DeadlineExceeded."""
        wait_s = max(0.0, min(WAIT_LIMIT_S, until() - time.monotonic()))
        if not self._slots.acquire(timeout=wait_s):
            raise DeadlineExceeded(f"no connection was free in {wait_s:.3g} s")
        try:
            with self._kept_if_usable(*self._take()) as one:
                yield one
        finally:
            self._slots.release()

    @contextlib.contextmanager
    def _kept_if_usable(self, made_from: int, one: T) -> Iterator[T]:
        try:
            yield one
        except _ANSWERS:
            self._give(made_from, one)
            raise
        except BaseException:
            self._end(one)
            raise
        self._give(made_from, one)

    def _take(self) -> tuple[int, T]:
        try:
            return self._idle.pop()
        except IndexError:
            made_from = self._made_from
            return made_from, self._make()

    def _give(self, made_from: int, one: T) -> None:
        self._idle.append((made_from, one))
        if self._is_closed or made_from != self._made_from:
            self._end_idle()

    def renew(self) -> None:
        """Ends the instances that were made before. Those in use are ended when given back."""
        self._made_from += 1
        self._end_idle()

    def _end_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._end(self._idle.pop()[1])

    def close(self) -> None:
        """Ends the idle instances; those in use are ended when they are given back. Idempotent."""
        self._is_closed = True
        self._end_idle()
