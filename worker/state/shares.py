"""How the room for segments is shared among the handles that read through them. Pure.

A handle counts as a reader from each of its questions on until `ACTIVE_S` later, or until it ends.
Clients give back the segments of handles that are not read for less than that time, so an open
handle that nobody reads takes no share.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable
from typing import Final

from cachefs.core.messages import MOST_KEPT

ACTIVE_S: Final = 3.0


class ActiveReaders:
    """The handles that asked lately, the one that asked longest ago first."""

    def __init__(self) -> None:
        self._asked_at_s: collections.OrderedDict[Hashable, float] = collections.OrderedDict()

    def asked(self, reader: Hashable, now: float) -> None:
        """Counts the reader for `ACTIVE_S` from now on."""
        self._asked_at_s[reader] = now
        self._asked_at_s.move_to_end(reader)

    def ended(self, reader: Hashable) -> None:
        """Forgets the reader. Ignores readers that are not counted."""
        self._asked_at_s.pop(reader, None)

    def count(self, now: float) -> int:
        """Returns how many readers asked within the last `ACTIVE_S`, at least 1."""
        while self._asked_at_s:
            reader, asked_at_s = next(iter(self._asked_at_s.items()))
            if asked_at_s > now - ACTIVE_S:
                break
            del self._asked_at_s[reader]
        return max(1, len(self._asked_at_s))


def piece_bytes(limit_bytes: int, readers: int, *, least_bytes: int, most_bytes: int) -> int:
    """Returns how long one segment may be when so many readers share the room: a reader keeps up to
    three, and a fourth is on its way."""
    share_bytes = limit_bytes // (4 * readers)
    return max(least_bytes, min(most_bytes, share_bytes))


def segments_kept(limit_bytes: int, readers: int, segment_bytes: int) -> int:
    """Returns how many segments of that length each of so many readers may keep while it waits for
    another one: fewer as the readers grow, at least 1."""
    share = limit_bytes // readers // segment_bytes
    return max(1, min(MOST_KEPT, share - 1))
