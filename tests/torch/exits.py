"""A program that ends in the middle of an iteration, by how its loader processes begin. Arguments:
that, the folder, the state home."""

from __future__ import annotations

import sys

import cachefs.torch as ct
from tests.torch.training import number_in


def main() -> None:
    global kept
    how, folder, home = sys.argv[1:]
    manifest = ct.Manifest(folder, home=home)
    data = ct.Files(manifest, decode=number_in)
    assert len(data.__getitems__([0, 1])) == 2  # a connection before the children exist
    sampler = ct.OrderSampler(manifest, seed=7)
    loader = ct.DataLoader(
        data, sampler=sampler, batch_size=3, num_workers=2, multiprocessing_context=how
    )
    turn = iter(loader)
    assert len(next(turn)) == 3
    kept = turn  # type: ignore[name-defined]  # until the exit
    print("ready", flush=True)


if __name__ == "__main__":
    main()
