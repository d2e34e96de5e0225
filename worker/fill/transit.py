"""The transit window: small files that announced orders prefetched and admission refused, until
they are read. Owned by the loop.

Each file is a segment of the scratch area, or in memory. Each order that waits for its open has a
ticket, which it withdraws when the file is opened or no longer expected to be. The segment is
dropped once no ticket is left and the readers that are opening it have it. It is never dropped for
others' room. A segment that is lost all the same (its disk hangs, the file has changed) calls its
tickets, so the orders request the file again.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Final

from worker.fill.segment import Segment

OPENING_S: Final = 60.0  # an open that has not got the segment by then does not need it

Order = collections.OrderedDict[int, Segment]
Ticket = Callable[[], None]  # called if the file was lost


class Wanted:
    """Who waits for a segment: the tickets, and readers that are opening it, `since_s`."""

    __slots__ = ("readers", "segment", "since_s", "tickets")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.tickets: list[Ticket] = []
        self.readers = 0
        self.since_s = 0.0

    @property
    def is_over(self) -> bool:
        return not self.tickets and self.readers <= 0


class Transit:
    """The segments in transit. `segments.Segments` makes and drops them. `bytes`, and for those in
    memory `memory_bytes`: of these, and of dropped ones that clients have open."""

    def __init__(self) -> None:
        self.segments: Order = collections.OrderedDict()
        self.bytes = 0
        self.memory_bytes = 0
        self._wanted: dict[int, Wanted] = {}  # by id of the segment
        self._opening: collections.OrderedDict[int, Wanted] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self.segments)

    def expect(self, segment: Segment, ticket: Ticket) -> bool:
        """Adds a ticket. Returns False if the segment is not in transit."""
        if segment.dropped or not segment.area.transit:
            return False
        wanted = self._wanted.setdefault(id(segment), Wanted(segment))
        wanted.tickets.append(ticket)
        return True

    def withdraw(self, segment: Segment, ticket: Ticket, now: float, *, is_opened: bool) -> bool:
        """Removes a ticket. Returns whether the segment is to be dropped."""
        wanted = self._wanted.get(id(segment))
        if wanted is None or ticket not in wanted.tickets:
            return False
        wanted.tickets.remove(ticket)
        if is_opened:
            wanted.readers += 1
            wanted.since_s = now
            self._opening[id(segment)] = wanted
            self._opening.move_to_end(id(segment))
        return wanted.is_over

    def read(self, segment: Segment) -> bool:
        """Records that a reader got the segment. Returns whether it is to be dropped."""
        wanted = self._wanted.get(id(segment))
        if wanted is None:
            return False
        wanted.readers -= 1
        return wanted.is_over

    def lost(self, segment: Segment) -> None:
        """Forgets a segment that was dropped, and calls the tickets that are left."""
        wanted = self._wanted.pop(id(segment), None)
        self._opening.pop(id(segment), None)
        for ticket in wanted.tickets if wanted is not None else ():
            ticket()

    def expired(self, now: float) -> list[Segment]:
        """Returns the segments that opens did not fetch, and that no order waits for."""
        found = []
        while self._opening:
            wanted = next(iter(self._opening.values()))
            if wanted.since_s > now - OPENING_S:
                break
            self._opening.popitem(last=False)
            wanted.readers = 0
            if wanted.is_over:
                found.append(wanted.segment)
        return found
