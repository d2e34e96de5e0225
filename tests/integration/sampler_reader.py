"""Reads a data set in the order of a sampler, as a trainer does; prints JSON.

python -I sampler_reader.py REPOSITORY DIRECTORY HOME SOCKET SEED"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

BATCH = 8


def read_by_sampler(
    directory: str,
    home: str,
    seed: int,
    before: Callable[[int], None] = lambda number: None,
    **options: Any,
) -> dict[str, Any]:
    """Reads every file through the kernel. Calls `before` with the number of each batch."""
    import cachefs.torch as ct

    manifest = ct.Manifest(directory, home=home)
    sampler = ct.OrderSampler(manifest, seed=seed, batch_size=BATCH, **options)
    digest, inos = hashlib.sha256(), []
    for number, sample in enumerate(sampler):
        if number % BATCH == 0:
            before(number // BATCH)
        with open(manifest.file(sample), "rb") as file:
            digest.update(file.read())
        inos.append(manifest.ino(sample))
        if number % BATCH == BATCH - 1:
            sampler.advance(BATCH)
    return {"uid": os.getuid(), "files": len(set(inos)), "digest": digest.hexdigest()}


def main() -> int:
    repository, directory, home, socket, seed = sys.argv[1:]
    sys.path.insert(0, repository)
    said = read_by_sampler(directory, home, int(seed))
    print(json.dumps({**said, "has_socket": os.path.exists(socket)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
