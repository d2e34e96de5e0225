"""Chooses directories to list in full because their names are looked up one by one. Pure.

A job that opens the files of a directory by path costs one request per name. A few pages of the
listing contain the same names at a fraction of that.
"""

from __future__ import annotations

from typing import Final

MISSES: Final = 4  # lookups at the server, within the validity of the first reply
MAX_DIRECTORIES: Final = 1024
PAGES: Final = 8  # of one directory, 1,000 names each


class ListingPrefetch:
    """Counts the lookups of each directory that missed the metadata cache."""

    def __init__(self) -> None:
        self._directories: dict[int, tuple[int, float]] = {}  # ino -> (misses, until when)

    def missed(self, ino: int, now: float, expires_at: float) -> bool:
        """Counts a miss whose reply is valid until `expires_at`. Returns True, at most once per
        such period, when the caller should list the directory."""
        misses, until = self._directories.pop(ino, (0, 0.0))
        if until <= now:
            misses, until = 0, expires_at
        self._directories[ino] = (misses + 1, until)
        if len(self._directories) > MAX_DIRECTORIES:
            del self._directories[next(iter(self._directories))]
        return misses + 1 == MISSES and expires_at > now
