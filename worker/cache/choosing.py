"""The choice of a tier for a content: the one that has it, the one from which it is moved, or the
one for a new content. Owned by the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cachefs.core.model import SMALL_FILE_BYTES, Origin
from worker.cache.tier_choice import choose, place

if TYPE_CHECKING:
    from worker.cache.promotion import Moves
    from worker.cache.tier import Tier
    from worker.cache.tier_set import TierSet


class Chooser:
    """See the module. Of several tiers in which something of a content may be, the disks decide."""

    def __init__(self, tiers: TierSet, moves: Moves) -> None:
        self._tiers = tiers
        self._moves = moves

    async def chosen(
        self, origin: Origin, *, past_tier: bool = False, for_load: bool = False
    ) -> Tier:
        """Returns the tier that serves a content. `past_tier`: nothing is read from its disk."""
        key = origin.content.key
        running = self._tiers.running if past_tier else self._tiers.in_service()
        if len(running) == 1:
            return running[0]
        moving = self._moves.source_of(key)
        live = moving or next((one for one in running if one.is_live(key)), None)
        if live is not None:
            return live
        known = [one for one in running if one.may_have(key)]
        if past_tier and known:
            return known[0]
        if known and (len(known) > 1 or not known[0].takes_more):
            return await self._chosen_by_index(origin, known, for_load=for_load)
        return known[0] if known else self._placed(origin, for_load=for_load)

    async def _chosen_by_index(
        self, origin: Origin, known: Sequence[Tier], *, for_load: bool
    ) -> Tier:
        key = origin.content.key
        asked = [await one.held(key, origin.size, for_load=for_load) for one in known]
        index = choose([held for held in asked if held is not None])
        # One may have been replaced and closed during the look.
        still = [one for one in known if one in self._tiers.running]
        chosen = next((one for one in still if one.index == index), None)
        return chosen or self._placed(origin, for_load=for_load)

    def of_small(self, origin: Origin) -> Tier | None:
        """Returns the tier that serves a small file; None where that takes a look at the disks."""
        key = origin.content.key
        running = self._tiers.in_service()
        having = [one for one in running if one.may_have(key)] if len(running) > 1 else running
        if len(having) > 1:
            return None
        return having[0] if having else self._placed(origin)

    def of_new(self, origin: Origin, *, for_load: bool = False) -> Tier | None:
        """Returns the tier for a new content; None where one of several tiers may have something of
        it."""
        key = origin.content.key
        running = self._tiers.in_service()
        if len(running) > 1 and any(one.may_have(key) for one in running):
            return None
        return self._placed(origin, for_load=for_load)

    def another(self, origin: Origin, but: Tier, *, for_load: bool) -> Tier | None:
        """Returns a tier that would take all of a content that one tier refused."""
        for one in self._tiers.in_service():
            if one is not but and one.room(origin, for_load=for_load).takes(origin.size):
                return one
        return None

    def _placed(self, origin: Origin, *, for_load: bool = False) -> Tier:
        """Returns the tier for a content of which no tier has anything, or whose rest no tier
        takes."""
        running = self._tiers.running
        if len(running) == 1 and origin.size <= SMALL_FILE_BYTES:
            return running[0]
        rooms = [one.room(origin, for_load=for_load) for one in running]
        one = running[place(origin.size, rooms)]
        if origin.size > SMALL_FILE_BYTES:
            one.promise(origin)
        return one
