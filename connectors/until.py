"""Until when the calls of the current thread may go on.

The waits of one request lie in several layers: retries, a wait for a free place, attempts. The
caller gives all of them one absolute time, so that the waits of the layers do not add up. The time
belongs to the thread, because a request runs in one thread from the caller down to the socket.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

NEVER_S: Final = float("inf")
LEAST_BYTES_PER_S: Final = 64 << 10  # a body that comes more slowly counts as silence


class _OfThread(threading.local):
    until_s = NEVER_S


_current: Final = _OfThread()


@contextlib.contextmanager
def bounded(until_s: float) -> Iterator[None]:
    """Bounds what this thread does in the block; `until_s` is of `time.monotonic`. A block within
    another one only makes the time shorter."""
    before_s = _current.until_s
    _current.until_s = min(before_s, until_s)
    try:
        yield
    finally:
        _current.until_s = before_s


def until() -> float:
    """The time at which the current thread's waits end; `NEVER_S` outside of all blocks."""
    return _current.until_s
