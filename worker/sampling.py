"""Looks up, now and then, the paths of a few of the files that clients opened by themselves, for
the counts by path (`worker.state.bypath`)."""

from __future__ import annotations

import asyncio
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.model import ContentId, Origin
from worker.parts import Parts

PERIOD_S: Final = 10.0
LOOK_S: Final = 5.0  # for the answers; what is not known by then counts as other


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
        names, seen = self._parts.paths.take()
        if names:
            self._looking = self._parts.tasks.start(self._look(names, seen))

    async def _look(self, names: list[str], seen: int) -> None:
        origins = await asyncio.gather(*(self._origin(name) for name in names))
        self._parts.paths.sampled(origins, seen)

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
