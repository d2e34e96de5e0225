"""The cached contents that have a time to live, and those that are over it. Pure.

Each content has the time of its last fill and the time that it may stay after that. Times are wall
clock, in seconds. A clock that was set back makes a fill lie in the future: it counts as one of
now.
"""

from __future__ import annotations

import heapq


class Expiry:
    """Contents by key. What has no time to live is not here."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}
        self._ttl: dict[bytes, float] = {}
        self._due: list[tuple[float, bytes]] = []  # some are outdated: `_until` decides

    def __len__(self) -> int:
        return len(self._until)

    def put(self, key: bytes, filled_s: float, ttl_s: float, now_s: float) -> None:
        """A content with a time to live, or with another one than before; below 0: with none."""
        if ttl_s < 0:
            return self.drop(key)
        self._ttl[key] = ttl_s
        self._set(key, min(filled_s, now_s) + ttl_s)

    def postpone(self, key: bytes, until_s: float) -> None:
        """It could not go: it is due again then."""
        if key in self._until:
            self._set(key, until_s)

    def _set(self, key: bytes, until_s: float) -> None:
        if self._until.get(key) != until_s:
            self._until[key] = until_s
            heapq.heappush(self._due, (until_s, key))
            if len(self._due) > 4 * len(self._until) + 64:
                self._due = [(until_s, key) for key, until_s in self._until.items()]
                heapq.heapify(self._due)

    def drop(self, key: bytes) -> None:
        self._until.pop(key, None)
        self._ttl.pop(key, None)

    def due(self, now_s: float, limit: int) -> list[bytes]:
        """Returns the contents that are over their time, the oldest first. They stay until they are
        dropped, postponed or put again."""
        found: dict[bytes, float] = {}
        while self._due and self._due[0][0] <= now_s and len(found) < limit:
            until_s, key = heapq.heappop(self._due)
            if self._until.get(key) == until_s:
                found[key] = until_s
        for key, until_s in found.items():
            heapq.heappush(self._due, (until_s, key))
        return [*found]
