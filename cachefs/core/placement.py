"""Which workers own a block: weighted rendezvous hashing, pure.

Every member's score for a block is weight / -ln(u), where u in (0, 1) is a hash of the member and
the block; the owners are the members with the highest scores, in that order. So the shares are
those of the weights, a member that joins takes its share evenly from all, and one that leaves gives
its blocks to others and moves nothing else. (Thaler and Ravishankar 1998, "Using name-based
mappings to increase hit rates"; weights by Schindelhauer and Schomaker 2005, "Weighted distributed
hash tables", the logarithmic method.)
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable
from typing import Final

import msgspec
import xxhash

BLOCK_BYTES: Final = 256 << 20  # unit of placement: files up to this are whole on their owners
KEPT_ANSWERS: Final = 10_000

_KEY: Final = struct.Struct("<QI")
_TO_UNIT: Final = 2.0**-53


class Member(msgspec.Struct, frozen=True):
    """A worker as the others know it. `weight` is relative; 0 owns nothing. `url` is where peers
    reach it, http(s)://host:port."""

    id: str  # hex of a UUID that the worker keeps with its first tier
    url: str
    weight: float
    host: str = ""


class View(msgspec.Struct, frozen=True):
    """The members of one epoch. `before`: those of the last settled epoch, while blocks still move
    from their places in it; empty once they have. `between`: those of epochs since then that never
    settled, the last of them last. `version` rises at every change of a view, also where only
    `before` or an address changed and the epoch stays."""

    epoch: int
    members: tuple[Member, ...] = ()
    before: tuple[Member, ...] = ()
    version: int = 0
    between: tuple[tuple[Member, ...], ...] = ()


def everyone(view: View) -> tuple[Member, ...]:
    """Whom a view names, some of them several times."""
    return tuple(itertools.chain(view.members, view.before, *view.between))


class Placement:
    """The owners of blocks among some members. Answers are kept, at most `KEPT_ANSWERS`."""

    def __init__(self, members: Iterable[Member]) -> None:
        owning = sorted((m for m in members if m.weight > 0), key=lambda member: member.id)
        self._members = owning
        self._seeds = [xxhash.xxh3_64_intdigest(member.id.encode()) for member in owning]
        self._weights = [member.weight for member in owning]
        self._kept: dict[tuple[int, int, int], tuple[Member, ...]] = {}

    def owners(self, ino: int, block: int, replicas: int = 1) -> tuple[Member, ...]:
        """The first `replicas` members (fewer where there are not so many), the owner first."""
        key = (ino, block, replicas)
        known = self._kept.get(key)
        if known is None:
            known = self._owners(ino, block, replicas)
            if len(self._kept) >= KEPT_ANSWERS:
                self._kept.clear()
            self._kept[key] = known
        return known

    def _owners(self, ino: int, block: int, replicas: int) -> tuple[Member, ...]:
        data, digest, log = _KEY.pack(ino, block), xxhash.xxh3_64_intdigest, math.log
        # -ln(u) / weight, the smallest first; u is never 0
        scores = [
            -log(((digest(data, seed) >> 11) + 0.5) * _TO_UNIT) / weight
            for seed, weight in zip(self._seeds, self._weights, strict=True)
        ]
        if replicas == 1 and scores:
            return (self._members[scores.index(min(scores))],)
        ranked = sorted(range(len(scores)), key=scores.__getitem__)
        return tuple(self._members[i] for i in ranked[:replicas])


def share_of(members: Iterable[Member], id: str) -> float:
    """The part of all blocks that a member owns, 0 to 1; 1 while nobody owns anything."""
    weights = {member.id: max(0.0, member.weight) for member in members}
    total = sum(weights.values())
    return weights.get(id, 0.0) / total if total else 1.0


def block_of(offset: int) -> int:
    """The number of the block that has the byte at `offset`."""
    return offset // BLOCK_BYTES


def block_count(size: int) -> int:
    """How many blocks a file of `size` bytes has; one for an empty file."""
    return max(1, -(-size // BLOCK_BYTES))
