"""A node's cache of several tiers over an origin in memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from cachefs.core.tiers import TierSpec
from tests.unit.worker.rig import LIMIT_S, NAMESPACE, Reader, Rig
from worker.cache.cache import Cache
from worker.cache.tier import Tier
from worker.fill.source import OriginSource, Source
from worker.runtime.clocks import Clocks
from worker.runtime.memory import MemoryBudget
from worker.tier.contents import NodeParts


class TiersRig(Rig):
    """Cache in directories `0`, `1`, … of so many bytes each."""

    def __init__(self, directory: Path, *limits: int, seed: int = 0, **config: Any) -> None:
        super().__init__(directory, limits[0], seed, **config)
        self.specs = [
            TierSpec("ssd", str(directory / str(tier)), limit) for tier, limit in enumerate(limits)
        ]
        self.source: Source = OriginSource(lambda ns, key: self.origin)
        self.is_owned: Callable[[bytes, int, int], bool] | None = None

    def directory(self, tier: int) -> Path:
        return Path(self.specs[tier].path)

    def in_tier(self, tier: int) -> set[int]:
        """The inos of the files that are published there."""
        try:
            names = set(os.listdir(self.directory(tier) / "pub"))
        except FileNotFoundError:
            return set()
        return {ino for ino in self.space.origins if self.name(ino) in names}

    def flip(self, tier: int, ino: int, offset: int = 0) -> None:
        """A bit of a cache file."""
        name = self.name(ino)
        fd = os.open(self.directory(tier) / "files" / name[-2:] / name, os.O_RDWR)
        byte = os.pread(fd, 1, offset)
        os.pwrite(fd, bytes([byte[0] ^ 1]), offset)
        os.close(fd)

    @contextlib.asynccontextmanager
    async def tiers(self, **changes: Any) -> AsyncIterator[Cache]:
        config = dataclasses.replace(self.config, **changes)
        clocks = Clocks(wall=lambda: self.wall_s, jitter=lambda: 0.01)
        tiers = await Cache.start(
            config,
            self.specs,
            self._service,
            lambda ns, key: self.origin,
            clocks,
            self.source,
            NodeParts(MemoryBudget(1 << 30), self.is_owned),
        )
        try:
            for one in tiers._tiers.running:
                loaded = one._space.order_loaded
                await asyncio.wait_for(loaded.wait(), LIMIT_S)
            yield tiers
        finally:
            await tiers.close()


def leave(one: Tier) -> None:
    """Its disk hangs, until `come_back`."""
    watch = one._watch
    watch._watch._leave()
    watch._watch._next_probe_s = float("inf")
    watch._leave()


def come_back(one: Tier) -> None:
    """The disk answers again."""
    watch = one._watch
    watch._watch.in_service = True
    watch._watch._next_probe_s = 0.0
    watch._return()


async def open_reader(tiers: Cache, ino: int) -> Reader:
    grant = await asyncio.wait_for(tiers.open(NAMESPACE, ino), LIMIT_S)
    return Reader(tiers, grant)


async def read(tiers: Cache, ino: int, step: int = 1 << 20) -> tuple[bytes, int]:
    """A whole file, and the tier it was read from."""
    reader = await open_reader(tiers, ino)
    try:
        size = reader.grant.size
        parts = [await reader.at(offset, step) for offset in range(0, max(1, size), step)]
        return b"".join(parts), reader.grant.tier
    finally:
        reader.close()
