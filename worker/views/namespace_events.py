"""The invalidations of one namespace, as its views follow them. Owned by the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from cachefs.core.errors import PositionGone
from cachefs.core.messages import Invalidate
from cachefs.core.services import MetadataService, PositionedEvents
from worker.runtime.tasks import Signal

REACH_STEP_S = 0.5


class PositionedService(MetadataService, PositionedEvents, Protocol):
    """A namespace whose directories can be frozen."""


class NamespaceEvents:
    """`position`: all events up to it were passed to `heed`, and it has returned."""

    def __init__(
        self, service: PositionedService, heed: Callable[[Invalidate], Awaitable[None]]
    ) -> None:
        self.service = service
        self.position = service.position
        self._heed = heed
        self._moved = Signal()

    async def run(self) -> None:
        """Follows the events until cancelled, or until the service is closed."""
        while True:
            try:
                async for event in self.service.events(self.position):
                    await self._heed(event)
                    self._move(event.seq)
                return
            except PositionGone:
                await self._lost()

    async def _lost(self) -> None:
        position = self.service.position
        await self._heed(Invalidate(self.service.namespace, position, everything=True))
        self._move(position)

    def _move(self, position: int) -> None:
        self.position = position
        self._moved.notify()

    async def reach(self, position: int, steps: int) -> None:
        """Waits until the events up to a position were heeded, `steps` steps at most."""
        for _ in range(steps):
            if self.position >= position:
                return
            await self._moved.wait(REACH_STEP_S)
