"""How often a client process followed another one of its mount. Belongs to one event loop. Pure."""

from __future__ import annotations

from typing import Final

MOST_MOUNTS: Final = 1000  # of which clients are expected; the oldest one is forgotten


class Takeovers:
    """The counts by mount point: of mounts that have a client, or whose client ended and is
    followed by another one."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._pids: dict[str, int] = {}

    def joined(self, mountpoint: str, pid: int) -> None:
        """A client of a mount has connected, perhaps again."""
        before = self._pids.get(mountpoint, pid)
        self._pids[mountpoint] = pid
        self.counts[mountpoint] = self.counts.get(mountpoint, 0) + (before != pid)
        if len(self.counts) > MOST_MOUNTS:
            self._drop(next(iter(self.counts)))

    def left(self, mountpoint: str, pid: int, *, is_followed: bool) -> None:
        """A client has ended. Another one may have followed it before."""
        if not is_followed and self._pids.get(mountpoint) == pid:
            self._drop(mountpoint)

    def _drop(self, mountpoint: str) -> None:
        del self.counts[mountpoint], self._pids[mountpoint]
