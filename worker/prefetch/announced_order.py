"""The decisions which files of an announced order to prefetch. Pure.

An order is a series of places, each with an inode number. Opens arrive in this order, but for
loader processes that are ahead of others, by up to `span` places. Files are requested in order, up
to `LEAD_FILES` places beyond the furthest open. A place that is `span` behind the furthest open is
skipped: no reader is expected to open it any more, and its prefetched bytes are released.

The window is the places from the last skipped one to the last mapped one. Only these have an entry
in memory, so an order costs what its `Entries` cost. An open of a file that is not in the window
changes nothing. So a wrong order prefetches one window at most.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

LEAD_FILES: Final = 1024  # requested beyond the furthest open
MOST_UNREAD: Final = 4096  # files that were prefetched and not opened yet
DEFAULT_SPAN: Final = 4096
MOST_SPAN: Final = 65536
MAP_AT_ONCE: Final = 64  # places, for an open that is not in the window


class Entries(Protocol):
    """The inode numbers of an order. `known` of `total` were announced so far."""

    @property
    def total(self) -> int: ...
    @property
    def known(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def at(self, place: int) -> int:
        """Returns an inode number. Raises OSError or ValueError where it cannot be read."""


Release = Callable[[bool], None]
"""Ends the wait for an open; True: the file is being opened."""


@dataclass(slots=True)
class Unread:
    """A file that was requested and not opened yet."""

    size_bytes: int
    release: Release
    has_arrived: bool = False


class AnnouncedOrder:
    """See the module. `now` is monotonic. `user`: see `AnnounceOrder`."""

    def __init__(self, entries: Entries, span: int, now: float, user: int = -1) -> None:
        self.entries = entries
        self.user = user
        self.span = min(span or DEFAULT_SPAN, MOST_SPAN)
        self.used_s = now  # the last announcement or open
        self.high = 0  # the place after the furthest open
        self.requested = 0  # prefetched, or found in the cache
        self.late = 0  # opened before they were requested
        self.unread_bytes = 0
        self._low = 0  # all places below were opened or skipped
        self._next = 0  # to request
        self._mapped = 0  # places below are in `_waiting`, unless they were opened or skipped
        self._waiting: dict[int, int] = {}  # place -> ino
        self._places: dict[int, list[int]] = {}  # ino -> its places in `_waiting`, ascending
        self._unread: dict[int, Unread] = {}  # by place
        self._again: collections.deque[int] = collections.deque()
        self._is_broken = False

    @property
    def is_over(self) -> bool:
        """True if every file was opened or skipped, or the entries cannot be read."""
        return self._is_broken or self._low >= self.entries.total

    @property
    def unread_files(self) -> int:
        return len(self._unread)

    # ---- opens ----

    def opened(self, ino: int, now: float) -> bool:
        """Records an open. Returns whether the file is in the window."""
        places = self._places.get(ino)
        if places is None:
            self._map(min(self._mapped + MAP_AT_ONCE, self.high + LEAD_FILES + self.span))
            places = self._places.get(ino)
            if places is None:
                return False
        place = places[0]
        self.used_s = now
        self.late += place >= self._next or place in self._again
        self._leave(place)
        self._release(place, opened=True)
        self.high = max(self.high, place + 1)
        self._skip()
        return True

    def _skip(self) -> None:
        """Skips places that are too far behind, and moves `_low` to the first one that waits."""
        while self._low < self._mapped:
            if self._low in self._waiting:
                if self._low >= self.high - self.span:
                    break
                self._leave(self._low)
                self._release(self._low)
            self._low += 1
        self._next = max(self._next, self._low)

    def _leave(self, place: int) -> None:
        ino = self._waiting.pop(place)
        places = self._places[ino]
        places.remove(place)
        if not places:
            del self._places[ino]

    def _release(self, place: int, *, opened: bool = False) -> None:
        unread = self._unread.pop(place, None)
        if unread is not None:
            self.unread_bytes -= unread.size_bytes
            unread.release(opened)

    # ---- requests ----

    def next(self) -> tuple[int, int] | None:
        """Returns a place and its inode number, to be requested now; None: none. The caller reports
        what happened: `begun`, `was_cached`, `refused`, or nothing for what is no small file."""
        while self._again:
            place = self._again.popleft()
            if place in self._waiting:
                return place, self._waiting[place]
        if self._is_broken:
            return None
        while self._next < self.high + LEAD_FILES and len(self._unread) < MOST_UNREAD:
            place = self._next
            self._map(place + 1)
            if place >= self._mapped:
                break
            self._next += 1
            if place in self._waiting:
                return place, self._waiting[place]
        return None

    def _map(self, end: int) -> None:
        """Maps the places below `end`, as far as they are known."""
        for place in range(self._mapped, min(end, self.entries.known)):
            try:
                ino = self.entries.at(place)
            except (OSError, ValueError, IndexError):
                self._is_broken = True
                return
            self._waiting[place] = ino
            self._places.setdefault(ino, []).append(place)
            self._mapped = place + 1

    def begun(self, place: int, size_bytes: int, release: Release) -> None:
        """Records that the prefetch of a file has started, or that it is in transit already.
        `release` is called when the file is opened, or no longer expected to be."""
        if place not in self._waiting:
            return release(False)
        self.requested += 1
        self._unread[place] = Unread(size_bytes, release)
        self.unread_bytes += size_bytes

    def was_cached(self, place: int) -> None:
        """Records that a file needs no prefetch."""
        self.requested += place in self._waiting

    def refused(self, place: int) -> None:
        """Records that a file found no room: it is the next one to be requested."""
        self._again.appendleft(place)

    def arrived(self, place: int) -> None:
        """Records that a prefetch has ended, with all of the file."""
        if (unread := self._unread.get(place)) is not None:
            unread.has_arrived = True

    def lost(self, place: int) -> None:
        """Records that the prefetched bytes of a file were dropped, or that the prefetch failed. A
        file that had arrived is requested again."""
        unread = self._unread.pop(place, None)
        if unread is not None:
            self.unread_bytes -= unread.size_bytes
            self.requested -= 1
            if unread.has_arrived:
                self._again.append(place)

    # ---- the end ----

    def end(self) -> None:
        """Releases everything that was requested and not opened. Idempotent."""
        self._is_broken = True
        for place in [*self._unread]:
            self._release(place)
        self._waiting.clear()
        self._places.clear()
        self._again.clear()

    def check_invariants(self) -> None:
        assert self._low <= self._next <= self._mapped <= self.entries.known
        assert self._next <= self.high + LEAD_FILES
        assert len(self._waiting) <= LEAD_FILES + 2 * self.span
        assert self._unread.keys() <= self._waiting.keys()
        assert self.unread_bytes == sum(one.size_bytes for one in self._unread.values())
        assert sum(map(len, self._places.values())) == len(self._waiting)
