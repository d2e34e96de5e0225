"""Which rank reads which sample of a global batch, so that most are read on the node that owns
them. Pure.

All ranks compute the same shares from the same batch. The set of samples in the batch is unchanged,
and every rank gets the same number of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cachefs.core.placement import Member, Placement


class Locality(msgspec.Struct, frozen=True):
    """The workers of a cluster at one moment, and the worker on the machine of each rank ("": the
    machine has none). All ranks must use equal ones."""

    members: tuple[Member, ...]
    nodes: tuple[str, ...]


class BatchShares:
    """The shares of the ranks of one training run."""

    def __init__(self, locality: Locality) -> None:
        self._placement = Placement(locality.members)
        self._world_size = len(locality.nodes)
        self._ranks: dict[str, list[int]] = {}
        for rank, node in enumerate(locality.nodes):
            self._ranks.setdefault(node, []).append(rank)

    def shares(self, batch: Sequence[int], inos: Sequence[int]) -> list[list[int]]:
        """Returns the samples of each rank. `inos`: of the samples; their number is a multiple of
        the number of ranks."""
        room = len(batch) // self._world_size
        shares: list[list[int]] = [[] for _ in range(self._world_size)]
        left = []
        for sample, ino in zip(batch, inos, strict=True):
            rank = min(self._owning(ino), key=lambda one: len(shares[one]), default=-1)
            if rank >= 0 and len(shares[rank]) < room:
                shares[rank].append(sample)
            else:
                left.append(sample)
        spare = iter(left)
        for share in shares:
            share += [next(spare) for _ in range(room - len(share))]
        return shares

    def _owning(self, ino: int) -> list[int]:
        """Returns the ranks on the machine that owns a file."""
        owners = self._placement.owners(ino, 0)
        return self._ranks.get(owners[0].id, []) if owners else []
