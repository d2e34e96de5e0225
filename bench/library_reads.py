"""Readers that use the library, for `bench.readers` and `bench.library`: `library_batches`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import xxhash

import cachefs
from bench.readers import Done, Spec, names_of

BATCH = 256


def library_batches(spec: Spec) -> tuple[float, Done]:
    """Reads every file below the mount `root`, whole, in batches of a random order, from one
    process. `destination` is the state home of the mount. The connection and the names of folders
    are part of the time."""
    names, done = names_of(spec), Done()
    order = [*names]
    random.Random(spec.seed).shuffle(order)
    tree = cachefs.tree(spec.root, home=spec.destination)
    started = time.monotonic()
    for batch in batches(order):
        for name, body in zip(batch, tree.read_batch(batch), strict=True):
            done.bytes += len(body)
            done.files += 1
            if xxhash.xxh3_64_hexdigest(body) != names[name]:
                done.wrong.append(name)
    wall_s = time.monotonic() - started
    cachefs.close()
    return wall_s, done


def batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), BATCH):
        yield names[first : first + BATCH]


KINDS = {"library_batches": library_batches}
