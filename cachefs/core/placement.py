"""The owners of a block: weighted rendezvous hashing, pure.

Every member's score for a block is weight / -ln(u), where u in (0, 1) is a hash of the member and
the block. The owners are the members with the highest scores, in that order. So shares follow the
weights, a new member takes its share evenly from all, and the blocks of a removed member spread
over the others; no other block moves. (Thaler and Ravishankar 1998, "Using name-based mappings to
increase hit rates"; weights by Schindelhauer and Schomaker 2005, "Weighted distributed hash
tables", the logarithmic method.)
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
LARGEST_FILE_BYTES: Final = BLOCK_BYTES << 18  # 64 TiB; origins show files of up to 8 EiB
KEPT_ANSWERS: Final = 10_000

_KEY: Final = struct.Struct("<QI")
_TO_UNIT: Final = 2.0**-53


class Member(msgspec.Struct, frozen=True):
    """A worker as its peers know it. `weight` is relative, 0 owns nothing. `url`: for peers."""

    id: str  # hex of a UUID that the worker stores in its first tier
    url: str
    weight: float
    host: str = ""


class View(msgspec.Struct, frozen=True):
    """The members of one epoch. `before`: those of the last settled epoch, while blocks still move;
    else empty. `between`: those of later epochs that never settled, in order. `version` rises at
    every change of a view, even if only `before` or an address changed."""

    epoch: int
    members: tuple[Member, ...] = ()
    before: tuple[Member, ...] = ()
    version: int = 0
    between: tuple[tuple[Member, ...], ...] = ()


def all_members(view: View) -> tuple[Member, ...]:
    """Returns all members that a view names, some of them several times."""
    return tuple(itertools.chain(view.members, view.before, *view.between))


class Placement:
    """The owners of blocks among some members. Caches at most `KEPT_ANSWERS` results."""

    def __init__(self, members: Iterable[Member]) -> None:
        owning = sorted((m for m in members if m.weight > 0), key=lambda member: member.id)
        self._members = owning
        self._seeds = [xxhash.xxh3_64_intdigest(member.id.encode()) for member in owning]
        self._weights = [member.weight for member in owning]
        self._kept: dict[tuple[int, int, int], tuple[Member, ...]] = {}

    def owners(self, ino: int, block: int, replicas: int = 1) -> tuple[Member, ...]:
        """Returns the first `replicas` members (or all, if fewer), the primary owner first."""
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
        # -ln(u) / weight: the smallest wins; u is never 0
        scores = [
            -log(((digest(data, seed) >> 11) + 0.5) * _TO_UNIT) / weight
            for seed, weight in zip(self._seeds, self._weights, strict=True)
        ]
        if replicas == 1 and scores:
            return (self._members[scores.index(min(scores))],)
        ranked = sorted(range(len(scores)), key=scores.__getitem__)
        return tuple(self._members[i] for i in ranked[:replicas])


def share_of(members: Iterable[Member], id: str) -> float:
    """Returns the share of all blocks that a member owns, 0 to 1; 1 if no member owns data."""
    weights = {member.id: max(0.0, member.weight) for member in members}
    total = sum(weights.values())
    return weights.get(id, 0.0) / total if total else 1.0


def block_of(offset: int) -> int:
    """Returns the number of the block that contains the byte at `offset`."""
    return offset // BLOCK_BYTES


def block_count(size: int) -> int:
    """Returns the number of blocks of a file; one for an empty file."""
    return max(1, -(-size // BLOCK_BYTES))
