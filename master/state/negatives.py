"""Names that the origin reported absent, in directories that were not listed. Pure, bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_NAMES: Final = 100_000


class Negatives:
    """A bounded map: (parent ino, name) -> when the origin reported the name absent (wall s)."""

    def __init__(self) -> None:
        self._by_parent: OrderedDict[int, OrderedDict[bytes, float]] = OrderedDict()
        self._count = 0

    def checked_at(self, parent: int, name: bytes) -> float:
        """Returns when the origin reported the name absent; 0.0 for a name not remembered."""
        names = self._by_parent.get(parent)
        return names.get(name, 0.0) if names else 0.0

    def add(self, parent: int, name: bytes, now: float) -> None:
        """Remembers a name; evicts the oldest name of the least recently used directory if full."""
        self.discard(parent, name)
        self._by_parent.setdefault(parent, OrderedDict())[name] = now
        self._by_parent.move_to_end(parent)
        self._count += 1
        if self._count > MAX_NAMES:
            oldest = next(iter(self._by_parent))
            self.discard(oldest, next(iter(self._by_parent[oldest])))

    def discard(self, parent: int, name: bytes) -> None:
        names = self._by_parent.get(parent)
        if names is None or names.pop(name, None) is None:
            return
        self._count -= 1
        if not names:
            del self._by_parent[parent]

    def names(self, parent: int) -> frozenset[bytes]:
        """Returns all names remembered below `parent`; a listing that adds one announces it."""
        return frozenset(self._by_parent.get(parent, ()))

    def directories(self) -> list[int]:
        """Returns the directories with names that are remembered."""
        return [*self._by_parent]

    def forget(self, parent: int) -> None:
        self._count -= len(self._by_parent.pop(parent, ()))

    def __len__(self) -> int:
        return self._count
