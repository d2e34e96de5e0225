"""Notices changes of this mount namespace's mounts without reading the list each time."""

from __future__ import annotations

import os
import select
from types import TracebackType
from typing import Self


class MountChanges:
    """An open mountinfo, which the kernel marks when mounts change. A context manager."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLPRI)

    def seen(self) -> bool:
        """Returns whether mounts changed since the last call. Does not block."""
        return bool(self._poll.poll(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
