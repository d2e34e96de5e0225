"""A short soak: mixed readers, evictions, `free`, dropped caches and SIGKILLs of client and server
leave every byte right, and memory and descriptors of all processes flat."""

from __future__ import annotations

from bench.harness import labs
from bench.report import Result, markdown
from bench.soak import soak

MINUTES = 0.5


def test_a_soak_reads_right_and_grows_nothing() -> None:
    result = Result("soak", "")
    with labs(quick=True) as make_lab:
        soak(make_lab("soak"), result, MINUTES)
    missed = [bar.claim for bar in result.bars if not bar.passed]
    assert result.bars, "nothing was measured"
    assert not missed, f"{missed}\n{markdown(result)}"
