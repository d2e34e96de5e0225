"""The objects that the controller must look at, and when. Pure: callers give the time.

A key is handled by one caller at a time. A key that is added while it is handled is due again
afterwards. After failures it waits ever longer, up to `MOST_S`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Final, NamedTuple

FIRST_S: Final = 1.0
MOST_S: Final = 60.0


class Item(NamedTuple):
    """A key: which kind of object, and which one."""

    kind: str
    namespace: str
    name: str


class Queue:
    """The queue. Belongs to one event loop."""

    def __init__(self) -> None:
        self._due: dict[Item, float] = {}  # the earliest time of each waiting key
        self._heap: list[tuple[float, int, Item]] = []
        self._order = itertools.count()
        self._handled: set[Item] = set()
        self._again: dict[Item, float] = {}
        self._failures: dict[Item, int] = {}

    def __len__(self) -> int:
        return len(self._due) + len(self._handled)

    def add(self, item: Item, at: float) -> None:
        """Makes a key due at a time; an earlier one stays."""
        waiting = self._again if item in self._handled else self._due
        if at >= waiting.get(item, math.inf):
            return
        waiting[item] = at
        if waiting is self._due:
            heapq.heappush(self._heap, (at, next(self._order), item))

    def take(self, now: float) -> Item | None:
        """Returns a key that is due, which the caller must pass to `done`; None without any."""
        while self._heap and self._heap[0][0] <= now:
            at, _, item = heapq.heappop(self._heap)
            if self._due.get(item) == at:
                del self._due[item]
                self._handled.add(item)
                return item
        return None

    def next_at(self) -> float:
        """Returns when the next key is due; infinite without any."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def failed(self, item: Item, now: float, first_s: float = FIRST_S) -> None:
        """Ends the handling of a key that failed. It is due again after `first_s`, after each
        further failure in a row after twice as long."""
        failures = self._failures.get(item, 0)
        self.done(item, now, min(MOST_S, first_s * 2.0 ** min(failures, 10)))
        self._failures[item] = failures + 1

    def done(self, item: Item, now: float, after_s: float = 0.0) -> None:
        """Ends the handling of a key. `after_s`: it is due again then; 0: only if it was added."""
        self._handled.discard(item)
        self._failures.pop(item, None)
        at = self._again.pop(item, math.inf)
        if after_s:
            at = min(at, now + after_s)
        if at < math.inf:
            self.add(item, at)

    def check_invariants(self) -> None:
        assert not self._handled & self._due.keys()
        assert self._again.keys() <= self._handled
        assert {(at, item) for at, _, item in self._heap} >= {
            (at, item) for item, at in self._due.items()
        }
