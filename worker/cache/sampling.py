"""Looks up, now and then, the paths of a few of the files that clients opened by themselves, for
the counts by path (`worker.stats.by_path`)."""

from __future__ import annotations

import asyncio
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import ContentId, Origin
from worker.stats.by_path import PERIOD_S, Period
from worker.tier.disk import Parts

LOOK_S: Final = 4.0  # for the answers; what is not known by then counts as other


class Sampling:
    """Of one worker; `tick` is called every second or so."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._next_s = parts.clocks.monotonic() + PERIOD_S
        self._looking: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """Starts a look-up when one is due and none runs."""
        if now < self._next_s or (self._looking is not None and not self._looking.done()):
            return
        self._next_s = now + PERIOD_S
        period = self._parts.paths.take()
        if not period.sample:
            return self._parts.paths.settle(period, [])
        self._looking = self._parts.tasks.start(self._look(period))

    async def _look(self, period: Period) -> None:
        origins = await asyncio.gather(*(self._origin(name) for name in period.sample))
        self._parts.paths.settle(period, origins)

    async def _origin(self, name: str) -> Origin | None:
        try:
            content = ContentId.parse(name)
            service = self._parts.metadata(content.namespace)
            known = service.locate_nowait(content.ino)
            if known is not None:
                return known
            async with asyncio.timeout(LOOK_S):
                return await service.locate(content.ino)
        except (CacheFSError, ValueError, TimeoutError):
            return None
