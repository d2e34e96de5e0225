"""Blocks spread over 32 equal workers: peak / average <= 1.10; shares within 10 % of the weights;
a join moves <= 1.05 / N of the blocks, and a leave none between survivors.

A million blocks: half of them small files, half blocks of large ones. Weights are those of four
kinds of machines, 1 : 2 : 4 : 8.
"""

from __future__ import annotations

import time
from collections import Counter

from bench.harness import Lab, main
from bench.report import Result
from cachefs.core.placement import Member, Placement

WORKERS = 32
BLOCKS_PER_LARGE_FILE = 64

Owned = list[Member]


def run(lab: Lab, result: Result) -> None:
    count = lab.size(1_000_000, 100_000)
    blocks = sample(count)
    workers = [worker(i) for i in range(WORKERS)]
    started = time.perf_counter()
    owned = owners(workers, blocks)
    per_answer_us = (time.perf_counter() - started) / count * 1e6
    equal_shares(owned, result)
    a_join(workers, blocks, owned, result)
    a_leave(workers, blocks, owned, result)
    shares_by_weight(blocks, result)
    result.notes.append(f"{per_answer_us:.3g} us per answer among {WORKERS} workers, none kept")


def worker(number: int, weight: float = 1.0) -> Member:
    return Member(f"{number:032x}", f"http://10.0.0.{number}:19999", weight)


def sample(count: int) -> list[tuple[int, int]]:
    """Returns (ino, block) pairs: whole small files first, then the blocks of large ones."""
    half = count // 2
    large = range(half, count)
    return [(2 + i, 0) for i in range(half)] + [
        (half + i // BLOCKS_PER_LARGE_FILE, i % BLOCKS_PER_LARGE_FILE) for i in large
    ]


def owners(workers: list[Member], blocks: list[tuple[int, int]]) -> Owned:
    placement = Placement(workers)
    return [placement.owners(ino, block)[0] for ino, block in blocks]


def equal_shares(owned: Owned, result: Result) -> None:
    shares = Counter(one.id for one in owned)
    average = len(owned) / WORKERS
    result.bar(f"peak / average of {WORKERS} equal workers", max(shares.values()) / average, 1.10)


def a_join(
    workers: list[Member], blocks: list[tuple[int, int]], owned: Owned, result: Result
) -> None:
    new = worker(WORKERS)
    after = owners([*workers, new], blocks)
    moved = sum(a is not b for a, b in zip(owned, after, strict=True))
    astray = sum(a is not b and b is not new for a, b in zip(owned, after, strict=True))
    share = moved / len(blocks) * (WORKERS + 1)
    result.bar("blocks moved at a join, of the new worker's 1/N", share, 1.05, "x")
    result.bar("blocks moved at a join to another than the new worker", astray, 0)


def a_leave(
    workers: list[Member], blocks: list[tuple[int, int]], owned: Owned, result: Result
) -> None:
    gone = workers[WORKERS // 2]
    after = owners([one for one in workers if one is not gone], blocks)
    between = sum(a is not b and a is not gone for a, b in zip(owned, after, strict=True))
    result.bar("blocks moved between survivors at a leave", between, 0)
    heirs = Counter(b.id for a, b in zip(owned, after, strict=True) if a is gone)
    average = sum(heirs.values()) / (WORKERS - 1)
    peak = max(heirs.values()) / average
    result.notes.append(f"of a leaver's {sum(heirs.values()):,} blocks, peak / average: {peak:.3g}")


def shares_by_weight(blocks: list[tuple[int, int]], result: Result) -> None:
    weights = [float(1 << i % 4) for i in range(WORKERS)]
    workers = [worker(i, weight) for i, weight in enumerate(weights)]
    shares = Counter(one.id for one in owners(workers, blocks))
    per_weight = len(blocks) / sum(weights)
    off = [abs(shares[one.id] / (per_weight * one.weight) - 1) for one in workers]
    result.bar("a worker's share beside its weight's, the farthest off", 100 * max(off), 10, "%")
    table = result.table("shares by weight", "weight", "lowest share", "highest", "of the weight's")
    for weight in sorted(set(weights)):
        got = [shares[one.id] for one in workers if one.weight == weight]
        table.add(weight, min(got), max(got), sum(got) / len(got) / (per_weight * weight))


if __name__ == "__main__":
    main(run)
