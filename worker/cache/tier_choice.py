"""The place of a content among the tiers of a node, and its moves. Pure.

A new content is placed in the first tier (the fastest) that is writable and has room for all of it.
Where none has room, a tier makes some by its admission, the last first; a file larger than that
tier is placed in another. What a slower tier has and readers open `uses` times within `window_s` is
copied to a faster one, and then evicted below: *promoted*. What a faster tier evicts for want of
room and was used there is copied below first (`Admission` requests it): *demoted*.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PROMOTE_USES: Final = 3
PROMOTE_WINDOW_S: Final = 600.0
MOST_MOVES: Final = 2  # promotions at once
MOST_COUNTED: Final = 20_000  # contents whose uses are counted
REST_S: Final = 60.0  # of a content that could not be promoted


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a tier for one content. `limit_bytes`: the most it takes of files; `free_bytes`:
    what it would take now without an eviction, promises to others subtracted. `makes_room(size)`:
    whether its admission would evict others for that size."""

    in_service: bool
    writable: bool
    limit_bytes: int
    free_bytes: int
    makes_room: Callable[[int], bool]

    def takes(self, size_bytes: int) -> bool:
        """Returns whether the tier takes all of it, if need be by evictions."""
        fits = self.writable and size_bytes <= self.limit_bytes
        return fits and (size_bytes <= self.free_bytes or self.makes_room(size_bytes))


def place(size_bytes: int, tiers: Sequence[Room]) -> int:
    """The tier for a new content of that size: one that is in service, unless none is."""
    usable = [number for number, tier in enumerate(tiers) if tier.writable]
    for number in usable:
        if size_bytes <= tiers[number].free_bytes:
            return number
    for number in reversed(usable):
        if tiers[number].takes(size_bytes):
            return number
    if usable:  # as much of it as has room
        return max(usable, key=lambda number: tiers[number].free_bytes)
    return next((number for number, tier in enumerate(tiers) if tier.in_service), 0)


@dataclass(frozen=True, slots=True)
class Held:
    """The bytes that a tier has of a content. `takes_more`: it has room for the rest, or makes
    it."""

    tier: int
    complete: bool
    cached_bytes: int
    takes_more: bool


def choose(held: Sequence[Held]) -> int | None:
    """The tier that serves a content of which these tiers have something; None: it is placed as a
    new one, what they have is copied. `held` has only tiers in service, the fastest first."""
    for one in held:
        if one.complete:
            return one.tier
    best = max(held, key=lambda one: one.cached_bytes, default=None)
    return best.tier if best is not None and best.takes_more else None


# ---- promotion ----


@dataclass(frozen=True, slots=True)
class Used:
    """A content that `tier` has was opened."""

    key: bytes
    tier: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A promotion ended; `done`: the content is in the faster tier."""

    key: bytes
    done: bool


@dataclass(frozen=True, slots=True)
class Promote:
    """Copy the content to a faster tier than `tier`, then drop it there."""

    key: bytes
    tier: int


@dataclass(slots=True)
class _Count:
    uses: int
    since_s: float
    rests_until_s: float = 0.0


class Promotions:
    """`handle(event, now) -> actions`. Knows the `MOST_COUNTED` contents used last."""

    def __init__(
        self,
        uses: int = PROMOTE_USES,
        window_s: float = PROMOTE_WINDOW_S,
        most_moves: int = MOST_MOVES,
    ) -> None:
        self._uses = uses
        self._window_s = window_s
        self._most_moves = most_moves
        self._counts: collections.OrderedDict[bytes, _Count] = collections.OrderedDict()
        self._moving: set[bytes] = set()

    def handle(self, event: Used | Moved, now_s: float) -> list[Promote]:
        match event:
            case Used(key, tier):
                return self._used(key, tier, now_s)
            case Moved(key, done):
                self._moved(key, now_s, done=done)
        return []

    def _used(self, key: bytes, tier: int, now_s: float) -> list[Promote]:
        if tier == 0 or key in self._moving:
            return []
        count = self._counted(key, now_s)
        enough = count.uses >= self._uses and now_s >= count.rests_until_s
        if not enough or len(self._moving) >= self._most_moves:
            return []
        self._moving.add(key)
        return [Promote(key, tier)]

    def _counted(self, key: bytes, now_s: float) -> _Count:
        count = self._counts.get(key)
        if count is None:
            count = self._counts[key] = _Count(0, now_s)
            if len(self._counts) > MOST_COUNTED:
                self._counts.popitem(last=False)
        elif now_s - count.since_s > self._window_s:
            count.uses, count.since_s = 0, now_s
        count.uses += 1
        self._counts.move_to_end(key)
        return count

    def _moved(self, key: bytes, now_s: float, *, done: bool) -> None:
        self._moving.discard(key)
        if done:
            self._counts.pop(key, None)
        elif key in self._counts:
            self._counts[key].rests_until_s = now_s + REST_S

    def check_invariants(self) -> None:
        assert len(self._moving) <= self._most_moves
        assert len(self._counts) <= MOST_COUNTED


# ---- watermarks ----


def excess(used_bytes: int, limit_bytes: int, high: float, low: float) -> int:
    """Returns how many bytes a tier above its high watermark is to evict; 0 below it."""
    if used_bytes <= high * limit_bytes:
        return 0
    return used_bytes - int(low * limit_bytes)
