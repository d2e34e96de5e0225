"""The deadline of the current thread's calls.

Several layers of one request wait: retries, the limit of requests in flight, attempts. The caller
sets one absolute deadline for all of them, so that the waits do not add up. The deadline is
thread-local, because a request runs in one thread from the caller down to the socket.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from cachefs.core.errors import Unreachable

NEVER_S: Final = float("inf")
LOCK_WAIT_S: Final = 20.0  # as long as a silent server is waited for
LEAST_BYTES_PER_S: Final = 64 << 10  # a slower body times out


class _OfThread(threading.local):
    until_s = NEVER_S
    is_futile: Callable[[], bool] | None = None


_current: Final = _OfThread()


@contextlib.contextmanager
def bounded(until_s: float) -> Iterator[None]:
    """Sets the deadline of this thread in the block; `until_s` is of `time.monotonic`. An inner
    block can only shorten the deadline."""
    before_s = _current.until_s
    _current.until_s = min(before_s, until_s)
    try:
        yield
    finally:
        _current.until_s = before_s


@contextlib.contextmanager
def futile_when(is_futile: Callable[[], bool]) -> Iterator[None]:
    """Sets a function of this thread in the block: once it returns True, a failed request is not
    repeated, because the caller has another source."""
    before, _current.is_futile = _current.is_futile, is_futile
    try:
        yield
    finally:
        _current.is_futile = before


def is_futile() -> bool:
    """Returns whether a failed request of the current thread is not to be repeated."""
    return _current.is_futile is not None and _current.is_futile()


def until() -> float:
    """Returns the deadline of the current thread; `NEVER_S` outside of all blocks."""
    return _current.until_s


def acquire_in_time(lock: threading.Lock, what: str) -> None:
    """Acquires a lock whose holder waits for a server or a program. Raises Unreachable at the
    deadline of this thread, or after `LOCK_WAIT_S`. `what`: what the holder fetches."""
    wait_s = max(0.0, min(LOCK_WAIT_S, until() - time.monotonic()))
    if not lock.acquire(timeout=wait_s):
        raise Unreachable(f"another request has been fetching {what} for {wait_s:.3g} s")
