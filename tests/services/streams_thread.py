"""`connectors.streams.Streams` in a thread of its own, told what to read by any other."""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable

from connectors.base import Request
from connectors.streams import Streams, Taken


class StreamsThread:
    """Runs until `close`, or until something that it calls raises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.streams = Streams(clock)
        self.error: BaseException | None = None  # that ended it
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._coming: collections.deque[tuple[Request | None, Taken]] = collections.deque()
        self._closed = False
        self.thread = threading.Thread(target=self._run, name="streams")
        self.thread.start()

    def start(self, request: Request, taken: Taken) -> bool:
        """False once this has ended, and then nothing is called."""
        if threading.current_thread() is self.thread:
            self.streams.start(request, taken)
            return True
        return self._tell(request, taken)

    def turn(self, limit_s: float) -> None:
        """Returns when the thread has waited, and looked at the clock, once more."""
        for _ in range(2):
            done = threading.Event()
            assert self._tell(None, lambda *_: done.set())  # noqa: B023
            assert done.wait(limit_s)

    def _tell(self, request: Request | None, taken: Taken) -> bool:
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
            self.streams.serve(self)
        except BaseException as err:  # noqa: BLE001 -- for the test to look at
            self.error = err
        finally:
            with self._lock:
                self._closed = True
                os.close(self._bell)
            for _, taken in self._coming:
                taken(None, 0, "unreachable")

    # ---- the inbox ----

    def fileno(self) -> int:
        return self._bell

    def ready(self) -> bool:
        os.eventfd_read(self._bell)
        while self._coming and not self._closed:
            request, taken = self._coming.popleft()
            if request is None:
                taken(None, 0, "")
            else:
                self.streams.start(request, taken)
        return not self._closed

    def turned(self) -> None:
        pass
