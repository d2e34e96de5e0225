"""Counts by path, from a sample of opens; the slowest fills of the last minute."""

from __future__ import annotations

import random

from cachefs.core.model import ContentId, NamespaceId, Origin
from worker.stats.by_path import MOST_PATHS, OTHER, SAMPLE, PathTally, label_of
from worker.stats.slowest import KEPT, WINDOW_S, Slowest

SEED = 11


def origin(path: bytes, ufs: str = "s3://bucket/x|http://minio") -> Origin:
    return Origin(ContentId(NamespaceId(b"n" * 16), 1, 0, 0), ufs, path, "", 10, 0)


def tally() -> PathTally:
    return PathTally(random.Random(SEED).randrange)


def test_files_count_for_the_first_directory_of_their_source() -> None:
    assert label_of(origin(b"train/a/b")) == "s3://bucket/x/train"
    assert label_of(origin(b"README")) == "s3://bucket/x/"


def settled(counts: PathTally, *origins: Origin | None) -> dict[str, dict[str, int]]:
    counts.settle(counts.take(), origins)
    return counts.counts()


def test_opens_count_at_the_end_of_their_period_and_bytes_at_once() -> None:
    counts = tally()
    counts.missed(origin(b"train/1"))
    counts.brought(origin(b"train/1"), 700, 0)
    counts.brought(origin(b"train/2"), 0, 300)
    counts.hit(origin(b"val/1"))
    known = {"misses": 0, "hits": 0, "recent_hits": 0, "recent_misses": 0}
    moved = {"origin_bytes": 700, "peer_bytes": 300}
    assert counts.counts() == {"s3://bucket/x/train": {**known, **moved}}
    train = {**known, **moved, "misses": 1, "recent_misses": 1}
    val = {**known, "origin_bytes": 0, "peer_bytes": 0, "hits": 1, "recent_hits": 1}
    assert settled(counts) == {"s3://bucket/x/train": train, "s3://bucket/x/val": val}
    assert settled(counts)["s3://bucket/x/val"] == {**val, "recent_hits": 0}


def test_few_opens_are_all_in_the_sample() -> None:
    counts = tally()
    counts.used(["a", "b"])
    counts.used(["a"])
    assert counts.take() == (["a", "b", "a"], 3, {})
    assert counts.take() == ([], 0, {})


def test_a_sample_stands_for_all_opens_evenly() -> None:
    """A quarter of the opens are of one kind: so are about a quarter of many samples, whatever the
    order of the opens and the size of the batches."""
    counts, found = tally(), 0
    rounds = 400
    for _ in range(rounds):
        counts.used(["rare"] * 100)
        for _ in range(10):
            counts.used(["often"] * 30)
        sample, seen, _ = counts.take()
        assert (len(sample), seen) == (SAMPLE, 400)
        found += sample.count("rare")
    assert abs(found / (rounds * SAMPLE) - 0.25) < 0.03, f"seed {SEED}"


def test_a_sample_counts_for_as_many_opens_as_there_were() -> None:
    counts = tally()
    counts.used(["x"] * 1000)
    found = settled(counts, origin(b"a/1"), None, origin(b"a/2"))
    hits = {label: one["hits"] for label, one in found.items()}
    assert hits == {"s3://bucket/x/a": 667, OTHER: 333}


def test_there_are_so_many_paths_and_no_more() -> None:
    counts = tally()
    for n in range(MOST_PATHS + 10):
        counts.missed(origin(b"%d/x" % n))
    found = settled(counts)
    assert len(found) == MOST_PATHS + 1
    assert found[OTHER]["misses"] == 10


def test_the_slowest_fills_are_kept_for_a_minute() -> None:
    slowest = Slowest()
    for n in range(100):
        slowest.note(float(n), lambda n=n: f"f{n}", 5, now=float(n) / 10)  # type: ignore[misc]
    rows = slowest.rows(10.0)
    assert [*rows] == [f"f{n}" for n in range(99, 99 - KEPT, -1)]
    assert rows["f99"] == {"took_s": 99.0, "bytes": 5, "ago_s": 0}
    slowest.note(1.0, lambda: "new", 5, now=10.0 + WINDOW_S)
    assert [*slowest.rows(10.0 + WINDOW_S)] == ["new"]


def test_a_path_that_is_not_kept_is_not_asked_for() -> None:
    slowest = Slowest()
    for _ in range(KEPT):
        slowest.note(5.0, lambda: "slow", 1, now=0.0)

    def never() -> str:
        raise AssertionError("asked for")

    slowest.note(1.0, never, 1, now=1.0)
