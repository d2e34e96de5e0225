"""Loads of single files into a cache, for tests that need a file to be cached."""

from __future__ import annotations

import asyncio

from cachefs.core.model import NamespaceId, Origin
from worker.cache.cache import Cache
from worker.cache.load_requests import Load, Loaded
from worker.cache.loading import CacheLoading
from worker.cache.loads import TierLoading
from worker.fill.source import Purpose


async def fetch(cache: Cache, namespace: NamespaceId, ino: int) -> Loaded:
    """Makes a file complete and published, within the cache's admission, as a move between tiers
    does. Raises the load's error. Cancelled: the load goes on."""
    return await load_into(cache.loading, await cache._metadata(namespace).locate(ino))


async def load_into(loading: CacheLoading | TierLoading, origin: Origin) -> Loaded:
    """Does the same, in one tier or in the one that the cache chooses."""
    ended: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()

    def end(loaded: Loaded) -> None:
        if not ended.done():
            ended.set_result(loaded)

    loading.load(Load(origin, -1, None, None, lambda: None, end, Purpose.READ))
    loaded = await ended
    if loaded.error is not None:
        raise loaded.error
    return loaded
