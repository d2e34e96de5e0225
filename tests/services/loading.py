"""Loads of single files into a cache, for tests that need a file to be cached."""

from __future__ import annotations

import asyncio
from typing import Any

from cachefs.core.model import NamespaceId
from worker.cache.load_requests import Load, Loaded
from worker.fill.source import Purpose


async def fetch(cache: Any, namespace: NamespaceId, ino: int) -> Loaded:
    """Makes a file complete and published, within the cache's admission, as a move between tiers
    does. Raises the load's error. Cancelled: the load goes on."""
    metadata = getattr(cache, "_metadata", None) or cache._parts.metadata
    origin = await metadata(namespace).locate(ino)
    ended: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()

    def end(loaded: Loaded) -> None:
        if not ended.done():
            ended.set_result(loaded)

    cache.loading.load(Load(origin, -1, None, None, lambda: None, end, Purpose.READ))
    loaded = await ended
    if loaded.error is not None:
        raise loaded.error
    return loaded
