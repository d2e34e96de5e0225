"""Invalidates entries in the kernel: dedicated threads write the notifications.

The loop that answers requests must not write them: INVAL_ENTRY blocks until each unanswered LOOKUP
in the same directory is answered, as late as an origin that hangs has its deadline. So a thread
writes the names of one directory, while others continue with the names of other directories.

The queue is bounded. When it overflows, all entries are invalidated with one notification (Linux >=
6.16), or name by name. That notification never blocks, but it is no replacement for names that
wait: the kernel then looks up every name again, which waits where INVAL_ENTRY does, and unmounts
what lies below the mount (covers).
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

MAX_WAITING: Final = 65536
THREADS: Final = 8  # directories that may block before the names of others wait
_OUT_HEADER: Final = struct.Struct("<IiQ")  # len, error (here: the notification's code), unique
_INC_EPOCH: Final = 8
INC_EPOCH: Final = _OUT_HEADER.pack(_OUT_HEADER.size, _INC_EPOCH, 0)
assert _OUT_HEADER.size == 16

InvalidateEntry = Callable[[int, bytes], None]
DistrustAll = Callable[[], bool]


class KernelCache:
    """The queue and its threads. Only the threads call `invalidate_entry(nodeid, name)`, which may
    block, and `distrust_all()` (False: not supported by the kernel), which must not. Both may raise
    OSError."""

    def __init__(self, invalidate_entry: InvalidateEntry, distrust_all: DistrustAll) -> None:
        self._invalidate_entry = invalidate_entry
        self._distrust_all = distrust_all
        self._condition = threading.Condition()
        self._waiting: dict[int, list[bytes]] = {}  # directory -> names
        self._count = 0  # of these names
        self._busy: set[int] = set()  # directories whose names a thread writes
        self._everything = False
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"invalidate-{number}", daemon=True)
            for number in range(THREADS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def invalidate(self, entries: list[tuple[int, bytes]], everything: bool) -> None:
        """Queues entries and returns at once. With `everything`, `entries` are the names to
        invalidate if the kernel cannot distrust all of them at once."""
        with self._condition:
            fitting = entries[: MAX_WAITING - self._count]
            self._everything |= everything or len(fitting) < len(entries)
            for parent, name in fitting:
                self._waiting.setdefault(parent, []).append(name)
            self._count += len(fitting)
            self._condition.notify()

    def stop(self) -> None:
        """Requests that the threads end; they may be stuck in the kernel until the mount ends."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            parent, names = work
            for name in names:
                if self._stopped:
                    return
                self._invalidate(parent, name)
            with self._condition:
                self._busy.remove(parent)

    def _next(self) -> tuple[int, list[bytes]] | None:
        """Returns a directory for which no other thread writes, and its names; None at the end.
        Distrusts everything before, if that is due."""
        with self._condition:
            while not self._stopped:
                if self._everything:
                    self._distrust()
                parent = next((one for one in self._waiting if one not in self._busy), None)
                if parent is not None:
                    return parent, self._take(parent)
                self._condition.wait()
        return None

    def _take(self, parent: int) -> list[bytes]:
        names = self._waiting.pop(parent)
        self._count -= len(names)
        self._busy.add(parent)
        if self._waiting:
            self._condition.notify()  # another thread, since this one may block
        return names

    def _distrust(self) -> None:
        self._everything = False
        try:
            if self._distrust_all():
                self._waiting.clear()
                self._count = 0
            # Else queued names are invalidated one by one, the rest expires.
        except OSError as err:  # the mount has ended
            log.debug("invalidation: %s", err)

    def _invalidate(self, parent: int, name: bytes) -> None:
        try:
            self._invalidate_entry(parent, name)
        except OSError as err:  # ENOENT: not in the kernel's cache; others: the mount has ended
            log.debug("invalidation: %s", err)
