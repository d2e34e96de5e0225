"""The prefetches of a node in flight, of guessed runs and of announced orders together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from worker.cache.loading import CacheLoading

MOST_COMING_BYTES: Final = 64 << 20  # in flight, for more than `FEW` files
FEW: Final = 32  # files in flight that are not limited in bytes
AT_ONCE: Final = 16  # files per turn of the loop: other callbacks must not wait


class InFlight:
    """`asking`: files whose place is being requested."""

    def __init__(self, cache: CacheLoading) -> None:
        self._cache = cache
        self.asking = 0
        self._files = 0
        self._bytes = 0

    def limit(self) -> int:
        """Returns how many files may be in flight now: other reads find a place then."""
        return self._files + self._cache.places_ahead()

    def has_place(self, most: int) -> bool:
        """Returns whether another file may start; `most` is of `limit`."""
        count = self._files + self.asking
        return count < most and (count < FEW or self._bytes < MOST_COMING_BYTES)

    def began(self, size_bytes: int) -> None:
        """Counts a file."""
        self._files += 1
        self._bytes += size_bytes

    def ended(self, size_bytes: int) -> None:
        """The opposite of `began`."""
        self._files -= 1
        self._bytes -= size_bytes
