"""The kernel's mounts as this process sees them, read again only after they changed."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Final

from cachefs.core.mountinfo import OWN, Mounts, parse_mountinfo

CHECK_S: Final = 0.01


class MountTable:
    """A snapshot of the mounts. `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._mounts = Mounts(())
        self._lock = threading.Lock()
        self._valid_until_s = 0.0  # monotonic
        self._fd = -1
        self._poll = select.poll()

    def current(self) -> Mounts:
        """Returns the mounts, as they were `CHECK_S` ago at the earliest. The kernel reports a
        change to the descriptor of an open mountinfo, so an unchanged table costs no parsing."""
        now = time.monotonic()
        if now < self._valid_until_s:
            return self._mounts
        with self._lock:
            if self._fd < 0:
                self._fd = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
                self._poll.register(self._fd, select.POLLERR | select.POLLPRI)
                self._read_or_close()
            elif self._poll.poll(0):
                self._read_or_close()
            self._valid_until_s = now + CHECK_S  # only now: other threads look without the lock
            return self._mounts

    def _read_or_close(self) -> None:
        try:
            self._read()
        except OSError:
            self._close()  # the kernel reports a change once: the next call reads all again
            raise

    def _read(self) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self._fd, 1 << 16):
            parts.append(part)
        self._mounts = Mounts(parse_mountinfo(b"".join(parts)))
        self.version += 1

    def close(self) -> None:
        """Closes the descriptor. The next use opens it again."""
        with self._lock:
            self._close()

    def abandon(self) -> None:
        """Closes this process's copy after a fork: parent and child share what it reports."""
        self._lock = threading.Lock()
        self._close()

    def _close(self) -> None:
        self._valid_until_s = 0.0
        if self._fd >= 0:
            self._poll.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1
