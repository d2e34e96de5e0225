"""The shares of the room for segments among the handles that read through them. Pure.

A handle counts as a reader while a request of it is in flight and until `ACTIVE_S` later, or until
it is released. Clients return the segments of unread handles earlier than that, so an open handle
without reads takes no share.

Readers crowd the room when it has less than two pages for each of them. A page that is fetched for
one reader is then dropped for another before all of it was read, and is fetched several times. In
that state each reader gets a part: the requested bytes, which no other reader gets.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from cachefs.core.messages import COPY_BYTES, MOST_KEPT
from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import ByteRange
from cachefs.core.placement import BLOCK_BYTES

ACTIVE_S: Final = 3.0
LEAST_PART_BYTES: Final = COPY_BYTES  # smaller reads are mostly sequential: fewer requests
MOST_PART_BYTES: Final = PAGE_BYTES


class ActiveReaders:
    """The handles with recent requests, the oldest request first."""

    def __init__(self) -> None:
        self._asked_at_s: collections.OrderedDict[Hashable, float] = collections.OrderedDict()
        self._waiting: collections.Counter[Hashable] = collections.Counter()

    def asked(self, reader: Hashable, now: float) -> None:
        """Counts the reader for `ACTIVE_S` from now on."""
        if reader not in self._waiting:
            self._asked_at_s[reader] = now
            self._asked_at_s.move_to_end(reader)

    @contextlib.contextmanager
    def waiting(self, reader: Hashable, clock: Callable[[], float]) -> Iterator[None]:
        """Counts the reader during the block and for `ACTIVE_S` after it."""
        self._asked_at_s.pop(reader, None)
        self._waiting[reader] += 1
        try:
            yield
        finally:
            if reader in self._waiting:
                self._answered(reader, clock())

    def _answered(self, reader: Hashable, now: float) -> None:
        self._waiting[reader] -= 1
        if not self._waiting[reader]:
            del self._waiting[reader]
            self.asked(reader, now)

    def ended(self, reader: Hashable) -> None:
        """Forgets the reader. Ignores readers that are not counted."""
        self._asked_at_s.pop(reader, None)
        self._waiting.pop(reader, None)

    def count(self, now: float) -> int:
        """Returns the number of readers that wait or sent a request in the last `ACTIVE_S`, at
        least 1."""
        while self._asked_at_s:
            reader, asked_at_s = next(iter(self._asked_at_s.items()))
            if asked_at_s > now - ACTIVE_S:
                break
            del self._asked_at_s[reader]
        return max(1, len(self._asked_at_s) + len(self._waiting))


def piece_bytes(limit_bytes: int, readers: int, *, least_bytes: int, most_bytes: int) -> int:
    """Returns the largest segment, in bytes, when `readers` share the room: a reader keeps up to
    three, and a fourth is in flight."""
    share_bytes = limit_bytes // (4 * readers)
    return max(least_bytes, min(most_bytes, share_bytes))


def segments_kept(limit_bytes: int, readers: int, segment_bytes: int) -> int:
    """Returns the number of segments of `segment_bytes` that each of the `readers` may keep while
    it waits for another: fewer as the readers grow, at least 1."""
    share = limit_bytes // readers // segment_bytes
    return max(1, min(MOST_KEPT, share - 1))


def is_crowded(limit_bytes: int, readers: int) -> bool:
    """Returns whether the room has less than two pages for each of the `readers`."""
    return limit_bytes < 2 * PAGE_BYTES * readers


def part_of(offset: int, size_bytes: int, file_bytes: int) -> ByteRange:
    """Returns the bytes [start, stop) for a reader in a crowded room: the requested ones, within
    the limits of a part, in one block of the file."""
    size_bytes = max(LEAST_PART_BYTES, min(size_bytes, MOST_PART_BYTES))
    block_end = (offset // BLOCK_BYTES + 1) * BLOCK_BYTES
    return offset, min(offset + size_bytes, block_end, file_bytes)
