"""Whether the tier's disk is to be written to: normal, or degraded for a while. Pure.

A disk that is full or answers errors takes no fills until some seconds later, when one is tried
again; what is cached is still read.
"""

from __future__ import annotations

import errno
from typing import Final

FULL_PAUSE_S: Final = 10.0
ERROR_PAUSE_S: Final = 30.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Health:
    """`fault` says whether this is news (to be logged); `writable` turns true again by itself."""

    def __init__(self) -> None:
        self.cause = ""
        self.faults = 0
        self._until_s = 0.0
        self._degraded = False

    def writable(self, now_s: float) -> bool:
        return now_s >= self._until_s

    def fault(self, error: OSError, now_s: float) -> bool:
        """The disk failed. True when it was in order before."""
        news = not self._degraded
        self._degraded = True
        self.faults += 1
        self.cause = error.strerror or str(error)
        self._until_s = now_s + (FULL_PAUSE_S if error.errno in _FULL else ERROR_PAUSE_S)
        return news

    def well(self) -> bool:
        """A write went well. True when it is news."""
        news, self._degraded, self.cause = self._degraded, False, ""
        return news

    def state(self, now_s: float) -> str:
        return "degraded" if self._degraded or not self.writable(now_s) else "normal"
