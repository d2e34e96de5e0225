"""The views of one tier, as the tier sees them (`worker.tier.contents.ViewGuard`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from worker.cache.tier import Tier
    from worker.views.automatic import AutomaticViews


class GuardedViews(Protocol):
    """All views of the node (`worker.views.views.Views`)."""

    @property
    def automatic(self) -> AutomaticViews: ...

    async def leave(self, tier: Tier, keys: Sequence[bytes]) -> None: ...
    async def leave_all(self, tier: Tier) -> None: ...
    def lost(self, tier: Tier) -> None: ...


class TierGuard:
    """The views of one tier, as `worker.tier.contents.ViewGuard`."""

    def __init__(self, views: GuardedViews, tier: Tier) -> None:
        self._views = views
        self._tier = tier

    async def leave(self, keys: Sequence[bytes]) -> None:
        await self._views.leave(self._tier, keys)

    async def leave_all(self) -> None:
        await self._views.leave_all(self._tier)

    def lost(self, key: bytes) -> None:
        self._views.lost(self._tier)

    def want_room(self, *, replaces: bool) -> None:
        self._views.automatic.want_room(self._tier, replaces=replaces)

    async def give_way(self) -> bool:
        return await self._views.automatic.give_way(self._tier)
