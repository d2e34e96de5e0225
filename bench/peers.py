"""The contenders of cold reads over each scheme, their turns, and their common table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from bench.datasets import Dataset
from bench.harness import Lab, Pass, median
from bench.mounts import Mounted, has_s3fs
from bench.origin import SCHEMES
from bench.report import Result

OURS, RCLONE, S3FS = "cachefs", "rclone mount2", "s3fs"
OBSTORE, CURL = "obstore", "bare libcurl"
MOUNTS = (RCLONE, S3FS)
Passes = dict[str, list[Pass]]
Act = Callable[[], Pass]
Cells = Callable[[Pass], tuple[float, ...]]


def cold(
    lab: Lab, mounting: Callable[[], AbstractContextManager[Mounted]], data: Dataset, **how: object
) -> Act:
    """Returns one contender: a fresh mount, and one pass through it."""

    def act() -> Pass:
        with mounting() as mount:
            lab.drop_caches()
            return lab.read(mount, data, **how)

    return act


def mounts(lab: Lab, data: Dataset, url: str, **how: object) -> dict[str, Act]:
    """Returns the file systems to compare with; s3fs only if it is installed."""
    found = {RCLONE: cold(lab, lambda: lab.rclone(data, url), data, **how)}
    if has_s3fs():
        found[S3FS] = cold(lab, lambda: lab.s3fs(data, url), data, **how)
    return found


def turns(lab: Lab, by_scheme: dict[str, dict[str, Act]]) -> dict[str, Passes]:
    """Returns the passes of every contender over every scheme, by turns: the contenders of a scheme
    run one after the other, then those of the next scheme, repeatedly. The load of the machine
    changes within minutes."""
    passes: dict[str, Passes] = {
        scheme: {who: [] for who in acts} for scheme, acts in by_scheme.items()
    }
    for _ in range(lab.runs):
        for scheme, acts in by_scheme.items():
            for who, act in acts.items():
                passes[scheme][who].append(act())
    return passes


def show(
    result: Result, title: str, passes: dict[str, Passes], columns: tuple[str, ...], cells: Cells
) -> None:
    """Adds a row for each contender over each scheme, with the figures of its median pass."""
    table = result.table(title, "who", "over", *columns, "runs")
    for scheme, contenders in passes.items():
        for who, runs in contenders.items():
            table.add(who, SCHEMES[scheme], *cells(median(runs)), len(runs))
    note = "s3fs is not installed: no figure of it, and no bar compares with it."
    if not has_s3fs() and note not in result.notes:
        result.notes.append(note)


def medians(passes: Passes) -> dict[str, Pass]:
    return {who: median(runs) for who, runs in passes.items()}


def compare_mounts(
    result: Result, what: str, passes: Passes, value: Callable[[Pass], float], at_least: float
) -> None:
    """Adds a bar: our rate is at least `at_least` times that of the better mount."""
    found = medians(passes)
    best = max(value(found[who]) for who in MOUNTS if who in found)
    result.bar(what, value(found[OURS]) / best, at_least, "x", at_least=True)


def compare_mounts_cpu(
    result: Result, what: str, passes: Passes, value: Callable[[Pass], float], at_most: float
) -> None:
    """Adds a bar: our CPU is at most `at_most` times that of the cheaper mount."""
    found = medians(passes)
    least = min(value(found[who]) for who in MOUNTS if who in found)
    result.bar(what, value(found[OURS]) / least, at_most, "x")
