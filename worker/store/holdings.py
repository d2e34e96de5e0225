"""The contents that a tier has, in key order, in batches. Blocking; for threads."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from cachefs.core.pages import page_count
from worker.store.index import Index


@dataclass(frozen=True, slots=True)
class Holding:
    """A content that is cached here in whole or part. `replicas`: the owners of each block."""

    key: bytes
    size_bytes: int
    bits: int
    replicas: int = 1


def read_holdings(index: Index, after: bytes, limit: int) -> tuple[Holding, ...]:
    """Returns up to `limit` contents with a key greater than `after`. Raises OSError."""
    return tuple(
        Holding(key, record.size, _all(record.size))
        if record.complete
        else Holding(key, record.size, index.bits(key, record.size))
        for key, record in index.scan(after, limit)
    )


def merge_holdings(of_tiers: Iterable[Sequence[Holding]], limit: int) -> tuple[Holding, ...]:
    """Merges the same batch of several tiers, up to `limit` contents. A content that several tiers
    have gets the pages of all."""
    merged: list[Holding] = []
    for one in heapq.merge(*of_tiers, key=lambda holding: holding.key):
        if merged and merged[-1].key == one.key:
            merged[-1] = Holding(one.key, one.size_bytes, one.bits | merged[-1].bits)
        else:
            merged.append(one)
    return tuple(islice(merged, limit))


def _all(size_bytes: int) -> int:
    return (1 << page_count(size_bytes)) - 1
