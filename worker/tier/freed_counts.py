"""How much of a cache was freed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FreedCounts:
    """`busy_files` of `files` were open: their bytes go when the last user closes them."""

    files: int = 0
    bytes: int = 0
    busy_files: int = 0

    def __iadd__(self, other: FreedCounts) -> FreedCounts:
        self.files += other.files
        self.bytes += other.bytes
        self.busy_files += other.busy_files
        return self
