"""The garbage collection settings of a server: collect rarely, and exempt the start-up objects.

A full collection stops the event loop while it scans all objects, nearly all of which are
permanent: modules, classes, functions. Measured with `gc.callbacks` on a busy machine of two
cores, one master, 40 syncs (as in `bench/syncs.py`) of 4,000 names each:

                               collections   full, the longest    stall of the loop    RssAnon
    Python's defaults                  374            3, 30 ms                63 ms   19-35 MB
    frozen, (10000, 20, 100)             0                   0                13 ms   19-35 MB

Beside three CPU-bound processes, full collections took up to 79 ms. A first threshold of 50,000 did
no better and kept more cyclic garbage (ten masters created and dropped in turn): 68 MB instead of
47; with Python's defaults, 35.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 20, 100)


def settle() -> None:
    """Exempts all present objects from collection, once a server is ready. Blocks about 15 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
