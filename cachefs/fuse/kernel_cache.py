"""Invalidates entries in the kernel: a dedicated thread writes the notifications.

The loop that answers requests must not write them: INVAL_ENTRY blocks until an unanswered LOOKUP in
the same directory is answered. The queue is bounded. When it overflows, all entries are invalidated
with one notification (Linux >= 6.16), or name by name.
"""

from __future__ import annotations

import collections
import logging
import struct
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

MAX_WAITING: Final = 65536
_OUT_HEADER: Final = struct.Struct("<IiQ")  # len, error (here: the notification's code), unique
_INC_EPOCH: Final = 8
INC_EPOCH: Final = _OUT_HEADER.pack(_OUT_HEADER.size, _INC_EPOCH, 0)
assert _OUT_HEADER.size == 16

InvalidateEntry = Callable[[int, bytes], None]
DistrustAll = Callable[[], bool]


class KernelCache:
    """The queue and its thread. Only the thread calls `invalidate_entry(nodeid, name)` and
    `distrust_all()` (False: not supported by the kernel). Both may block and raise OSError."""

    def __init__(self, invalidate_entry: InvalidateEntry, distrust_all: DistrustAll) -> None:
        self._invalidate_entry = invalidate_entry
        self._distrust_all = distrust_all
        self._condition = threading.Condition()
        self._waiting: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=MAX_WAITING)
        self._everything = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="invalidate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def invalidate(self, entries: list[tuple[int, bytes]], everything: bool) -> None:
        """Queues entries and returns at once. With `everything`, `entries` are the names to
        invalidate if the kernel cannot distrust all of them at once."""
        with self._condition:
            if len(self._waiting) + len(entries) > MAX_WAITING:
                everything = True
            self._everything |= everything
            self._waiting.extend(entries)
            self._condition.notify()

    def stop(self) -> None:
        """Requests that the thread end; it may be stuck in the kernel until the mount ends."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._waiting or self._everything or self._stopped):
                    self._condition.wait()
                if self._stopped:
                    return
                everything, self._everything = self._everything, False
            try:
                self._distrust() if everything else self._invalidate_next()
            except OSError as err:  # ENOENT: not in the kernel's cache; others: the mount has ended
                log.debug("invalidation: %s", err)

    def _distrust(self) -> None:
        with self._condition:
            covered = len(self._waiting)
        if not self._distrust_all():
            return  # queued names are invalidated one by one, the rest expires
        with self._condition:
            for _ in range(min(covered, len(self._waiting))):
                self._waiting.popleft()

    def _invalidate_next(self) -> None:
        with self._condition:
            parent, name = self._waiting.popleft()
        self._invalidate_entry(parent, name)
