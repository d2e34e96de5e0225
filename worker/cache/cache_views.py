"""The tiers of a node, as views use them: their trees, room, and loads into one tier. Owned by the
loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from worker.cache.load_requests import load_whole
from worker.store.holds import Hold

if TYPE_CHECKING:
    from cachefs.core.errors import CacheFSError
    from cachefs.core.model import Origin
    from worker.cache.promotion import Moves
    from worker.cache.tier import Tier
    from worker.cache.tier_set import TierSet
    from worker.runtime.clocks import Clocks

LINK_WITHIN_S = 600.0  # a loaded file is held as long, until its view holds it


class CacheViews:
    """See the module."""

    def __init__(self, tiers: TierSet, moves: Moves) -> None:
        self._tiers = tiers
        self._moves = moves

    @property
    def clocks(self) -> Clocks:
        return self._tiers.clocks

    def tiers(self) -> list[Tier]:
        """Returns the tiers that run, the fastest first."""
        return [*self._tiers.running]

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` when a tier leaves service, returns, or is replaced."""
        self._tiers.subscribe(on_change)

    async def load(self, tier: Tier, origin: Origin) -> CacheFSError | None:
        """Makes a file complete in one tier, from another one or from the origin; returns the
        error. Cancelled: the load continues."""
        hold = Hold(self.clocks.wall() + LINK_WITHIN_S, though_read=True)
        with tier.using():
            error = await load_whole(tier.loading.load, origin, hold)
        if error is None and len(self._tiers.running) > 1:
            self._moves.doubled(origin.content.key)
        return error
