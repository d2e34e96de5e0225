"""Which directories are worth reading whole, because their names are asked for one by one. Pure.

A job that opens the files of a directory by their paths, in any order, costs a message per name;
some pages of the directory bring the same names at a fraction of that.
"""

from __future__ import annotations

from typing import Final

MISSES: Final = 4  # names asked of the server one by one, within the validity of an answer
MAX_DIRECTORIES: Final = 1024
PAGES: Final = 8  # of one directory, 1,000 names each


class NamesAhead:
    """Counts the names of each directory that had to be asked for."""

    def __init__(self) -> None:
        self._directories: dict[int, tuple[int, float]] = {}  # ino -> (misses, until when)

    def missed(self, ino: int, now: float, expires_at: float) -> bool:
        """A name was asked for, and the answer holds until `expires_at`. True once per such period:
        read the directory now."""
        misses, until = self._directories.pop(ino, (0, 0.0))
        if until <= now:
            misses, until = 0, expires_at
        self._directories[ino] = (misses + 1, until)
        if len(self._directories) > MAX_DIRECTORIES:
            del self._directories[next(iter(self._directories))]
        return misses + 1 == MISSES and expires_at > now
