"""Thousands of short histories of a cluster, each from its seed. A failing one names it:
`python -m tests.simulator SEED` tells the same story again.
"""

from __future__ import annotations

import os

import pytest

from tests.simulator.history import run

HISTORIES = int(os.environ.get("CACHEFS_HISTORIES", "1200"))
BATCHES = 12


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_must_hold_holds_in_every_history(batch: int) -> None:
    size = HISTORIES // BATCHES
    counted: dict[str, int] = {}
    for seed in range(batch * size, (batch + 1) * size):
        counts = run(seed).world.counts
        for name in ("reads", "failed", "pages", "evicted", "views"):
            counted[name] = counted.get(name, 0) + getattr(counts, name)
    assert counted["pages"] > 100 * size, f"too little was read to say anything: {counted}"
    assert counted["evicted"] > 0, "nothing was evicted"
    assert counted["failed"] < counted["reads"] / 20, f"too much failed: {counted}"
