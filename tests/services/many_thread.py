"""`connectors.fetch.many.Many` in a thread of its own, told what to read by any other."""

from __future__ import annotations

import collections
import os
import threading

from connectors.fetch.many import Many, Taken
from connectors.fetch.request import NOTHING_MADE, Get


class ManyThread:
    """Runs until `close`, or until something that it calls raises."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # that ended it
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._coming: collections.deque[tuple[Get | None, Taken]] = collections.deque()
        self._closed = False
        self.many = Many(self)
        self.thread = threading.Thread(target=self._run, name="many")
        self.thread.start()

    def start(self, request: Get, taken: Taken) -> bool:
        """False once this has ended, and then nothing is called."""
        if threading.current_thread() is self.thread:
            self.many.start(request, taken)
            return True
        return self._tell(request, taken)

    def _tell(self, request: Get | None, taken: Taken) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._coming.append((request, taken))
            os.eventfd_write(self._bell, 1)
        return True

    def close(self, wait_s: float) -> None:
        """Gives back all reads. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.eventfd_write(self._bell, 1)
        self.thread.join(wait_s)
        assert not self.thread.is_alive(), "the thread does not end"

    def _run(self) -> None:
        try:
            self.many.serve()
        except BaseException as err:  # noqa: BLE001 -- for the test to look at
            self.error = err
        finally:
            with self._lock:
                self._closed = True
                os.close(self._bell)
            for _, taken in self._coming:
                taken(None, 0, "unreachable", NOTHING_MADE)

    # ---- the inbox ----

    def fileno(self) -> int:
        return self._bell

    def ready(self) -> bool:
        os.eventfd_read(self._bell)
        while self._coming and not self._closed:
            request, taken = self._coming.popleft()
            if request is None:
                taken(None, 0, "", NOTHING_MADE)
            else:
                self.many.start(request, taken)
        return not self._closed

    def turned(self) -> None:
        pass
