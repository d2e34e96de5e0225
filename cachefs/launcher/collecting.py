"""How a server collects cyclic garbage: seldom, and not what it had at its start.

A full collection stops the event loop for as long as it takes to look at all objects, nearly all of
which are there for good: modules, classes, functions. Measured with `gc.callbacks` on a busy
machine of two cores, one master, 40 syncs (as in `bench/syncs.py`) of 4,000 names each:

                               collections    full, the longest    stall of the loop    RssAnon
    as Python has it                   374             3, 30 ms                63 ms   19-35 MB
    frozen, (10000, 20, 100)             0                    0                13 ms   19-35 MB

Beside three processes that only compute, full ones took up to 79 ms. A first threshold of 50,000
did no better, and where there is garbage in cycles (ten masters, one after the other, given up)
kept more of it: 68 MB instead of 47; as Python has it, 35.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 20, 100)


def settle() -> None:
    """Once a server is ready: what it has now is no garbage. Blocks, some 15 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
