"""The kernel's mounts as this process sees them, read again only after they changed."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Final

from cachefs.core.mountinfo import OWN, Mounts, parse_mountinfo
from cachefs.core.owned_fd import OwnedFd, opened

CHECK_S: Final = 0.01
_AT_ONCE: Final = (0,)


class MountTable:
    """A snapshot of the mounts. `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._mounts = Mounts(())
        self._lock = threading.Lock()
        self._valid_until_s = 0.0  # monotonic
        self._file: OwnedFd | None = None
        self._poll = select.poll()
        self._changes: list[list[tuple[int, int]]] = []  # reports that were not followed yet

    def current(self) -> Mounts:
        """Returns the mounts, as they were `CHECK_S` ago at the earliest. The kernel reports a
        change to the descriptor of an open mountinfo, so an unchanged table costs no parsing."""
        now = time.monotonic()
        if now < self._valid_until_s:
            return self._mounts
        with self._lock:
            if self._file is None:
                self._file = self._opened()
            self._changes.extend(map(self._poll.poll, _AT_ONCE))  # in C: each report comes once
            if any(self._changes):
                self._mounts = Mounts(parse_mountinfo(read_again(self._file.fileno())))
                self.version += 1
            self._changes.clear()
            self._valid_until_s = now + CHECK_S  # only now: other threads look without the lock
            return self._mounts

    def _opened(self) -> OwnedFd:
        file = opened(os.open, OWN, os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(file.fileno(), select.POLLERR | select.POLLPRI)
        self._changes.append([(file.fileno(), 0)])  # the first snapshot
        return file

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
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_again(fd: int) -> bytes:
    """Returns all bytes of an open file."""
    os.lseek(fd, 0, os.SEEK_SET)
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts)
