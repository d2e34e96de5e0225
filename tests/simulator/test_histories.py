"""Thousands of short histories of a cluster, each from its seed. A failing one names it:
`python -m tests.simulator SEED` tells the same story again. `CACHEFS_HISTORIES` asks for more of
them, `CACHEFS_SEED` for others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator import view_history
from tests.simulator.history import run

ROOT = Path(__file__).resolve().parents[2]
HISTORIES = int(os.environ.get("CACHEFS_HISTORIES", "1000"))
FIRST = int(os.environ.get("CACHEFS_SEED", "1000"))
PROCESSES = min(4, os.cpu_count() or 1)
COUNTED = ("reads", "failed", "pages", "evicted", "promoted", "demoted", "given", "views")
HERE = 40  # of every sort, in the tests' own process


@pytest.mark.parametrize("sort", range(4))
def test_what_must_hold_holds(sort: int) -> None:
    counted: dict[str, int] = {}
    for seed in range(sort, HERE, 4):
        counts = run(seed).world.counts
        for name in COUNTED:
            counted[name] = counted.get(name, 0) + getattr(counts, name)
    assert counted["pages"] > 50 * HERE / 4, f"too little was read to say anything: {counted}"
    assert counted["views"] > HERE / 4, f"nobody joined: {counted}"
    assert counted["given"] > 0, f"no block found a new owner: {counted}"
    assert counted["failed"] < counted["reads"] / 10, f"too much failed: {counted}"


def test_what_must_hold_of_views_holds() -> None:
    covered = looks = evicted = 0
    for seed in range(HERE):
        counts = view_history.run(seed).world.counts
        covered, looks = covered + counts.covered, looks + counts.looks
        evicted += counts.evicted
    assert covered > 5 * HERE, "too little was frozen to say anything"
    assert looks > 50 * HERE, "nothing was seen through covers"
    assert evicted > HERE, "no cache was full"


@pytest.mark.timeout(60 + HISTORIES)
@pytest.mark.parametrize("kind", ["", "--views"])
def test_what_must_hold_holds_in_thousands_of_histories(kind: str) -> None:
    flags = [kind] if kind else []
    share = -(-HISTORIES // PROCESSES)
    parts = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulator", str(first), "--many", str(share), *flags],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for first in range(FIRST, FIRST + HISTORIES, share)
    ]
    try:
        said = [part.communicate()[0] for part in parts]
    finally:
        for part in parts:
            part.kill()
    for part, words in zip(parts, said, strict=True):
        assert part.returncode == 0, words[-8000:]
