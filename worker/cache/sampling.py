"""Looks up, now and then, the paths of a few of the files that clients opened by themselves, for
the counts by path (`worker.stats.by_path`)."""

from __future__ import annotations

import asyncio
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import ContentId, Origin
from worker.stats.by_path import PERIOD_S, Period
from worker.tier.context import TierContext

LOOK_S: Final = 4.0  # for the answers; what is not known by then counts as other


class Sampling:
    """The samples of one tier. `run` is the one task."""

    def __init__(self, context: TierContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self._look(self._context.paths.take())

    async def _look(self, period: Period) -> None:
        origins = await asyncio.gather(*(self._origin(name) for name in period.sample))
        self._context.paths.settle(period, origins)

    async def _origin(self, name: str) -> Origin | None:
        try:
            content = ContentId.parse(name)
            service = self._context.metadata(content.namespace)
            known = service.locate_nowait(content.ino)
            if known is not None:
                return known
            async with asyncio.timeout(LOOK_S):
                return await service.locate(content.ino)
        except (CacheFSError, ValueError, TimeoutError):
            return None
