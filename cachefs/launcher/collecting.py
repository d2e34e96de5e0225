"""How a server collects cyclic garbage: seldom, and not what it had at its start.

A full collection stops the event loop for as long as it takes to look at all objects, nearly all of
which are there for good: modules, classes, functions. Measured with `gc.callbacks` in one process
that ran the syncs of `bench/syncs.py` five times over, of 10,000 names each:

    as Python has it            682 collections, 5 full, the longest 14 ms;  RssAnon 35 MB, flat
    frozen, (10000, 20, 100)      3 collections, none full after `settle`;   RssAnon 47 MB, flat

With three other processes on the two cores full ones took up to 79 ms, and the longest stall of the
loop fell from 79 to 27 ms. A first threshold of 50,000 keeps more garbage (RssAnon 68 MB and
growing after the same) for nothing.
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
