"""Loads into a node's cache. Each is done by the tier that has the content, or by the fastest tier
that has room or makes it. Owned by the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from cachefs.core.jobs import Room, TaskFile
from worker.cache.load_requests import Load, Loaded, PrefetchResult
from worker.tier.admission import NoRoom

if TYPE_CHECKING:
    from cachefs.core.model import Origin
    from worker.cache.choosing import Chooser
    from worker.cache.promotion import Moves
    from worker.cache.tier import Tier
    from worker.cache.tier_set import TierSet
    from worker.fill.transit import Ticket


class CacheLoading:
    """See the module."""

    def __init__(self, tiers: TierSet, moves: Moves, chooser: Chooser) -> None:
        self._tiers = tiers
        self._moves = moves
        self._chooser = chooser

    def expect_downloads(self) -> None:
        """Prepares for downloads of large files, which are likely to follow soon: the start of a
        process takes as long as the download of some 130 MB."""
        for tier in self._tiers.in_service()[:1]:
            tier.loading.expect_downloads()

    def load(self, load: Load) -> None:
        """Makes a content complete, durable and held. Its error may be NoRoom (see `room`),
        OverQuota, Missing, Stale, and what the origin answers."""
        tier = self._chooser.of_new(load.origin, for_load=load.is_served)
        if tier is None:
            self._tiers.tasks.start(self._load(load))
        else:
            self._into(tier, load)

    async def _load(self, load: Load) -> None:
        self._into(await self._chooser.chosen(load.origin, for_load=load.is_served), load)

    def _into(self, tier: Tier, load: Load) -> None:
        ended = functools.partial(self._ended, tier, load)
        tier.loading.load(load._replace(ended=ended))

    def _ended(self, tier: Tier, load: Load, loaded: Loaded) -> None:
        """Loads into another tier what one tier refused."""
        if isinstance(loaded.error, NoRoom):
            other = self._chooser.another(load.origin, tier, for_load=load.is_served)
            if other is not None:
                self._moves.doubled(load.origin.content.key)
                return other.loading.load(load)
        load.ended(loaded)

    def cached_bytes(self, file: TaskFile) -> int:
        """Returns the cached bytes of a file that is being loaded, in the tier that has most of it.
        Looks at no disk."""
        return max((one.loading.cached_bytes(file) for one in self._tiers.in_service()), default=0)

    def bring_ahead(
        self,
        origin: Origin,
        ended: Callable[[bool], None],
        ticket: Ticket | None = None,
    ) -> PrefetchResult:
        """Begins to fetch a small file that is likely to be opened soon, as a fill would. `ended`
        is called in the loop, and only after BEGUN: with whether all of it is here. With `ticket`,
        a file that admission refuses is fetched into the transit window."""
        tier = self._chooser.of_new(origin)
        if tier is None:
            return PrefetchResult.HERE
        return tier.loading.bring_ahead(origin, ended, ticket)

    def withdraw(self, key: bytes, ticket: Ticket, is_opened: bool) -> None:
        """Ends the wait of an order for a file in the transit window. `is_opened`: a reader is
        opening it. Idempotent."""
        for tier in self._tiers.in_service():
            tier.loading.withdraw(key, ticket, is_opened=is_opened)

    def places_ahead(self) -> int:
        """Returns how many more files may be fetched ahead now: other reads find a place then.
        Below 0: too many are in flight."""
        return min((one.loading.places_ahead() for one in self._tiers.in_service()), default=0)

    async def check(self, files: Sequence[TaskFile]) -> list[int]:
        """Returns the places of those that are not complete. Raises OSError when a disk gives no
        answer."""
        return await self._in_none(files, lambda tier: tier.loading.checks.missing)

    async def verify(self, files: Sequence[TaskFile]) -> list[int]:
        """Returns the same, after all bytes were compared with their checksums: what has wrong ones
        is dropped. Raises OSError."""
        return await self._in_none(files, lambda tier: tier.loading.checks.wrong)

    async def _in_none(
        self,
        files: Sequence[TaskFile],
        method: Callable[[Tier], Callable[[Sequence[TaskFile]], Awaitable[list[int]]]],
    ) -> list[int]:
        """Returns the places of those that are right in no tier."""
        left = [*range(len(files))]
        for tier in self._tiers.in_service():
            if not left:
                break
            wrong = await method(tier)([files[place] for place in left])
            left = [left[number] for number in wrong]
        return left

    async def room(self) -> Room:
        """Returns why something does not fit."""
        rooms = [await one.loading.room() for one in self._tiers.in_service()]
        return Room(
            sum(one.limit_bytes for one in rooms),
            sum(one.held_bytes for one in rooms),
            sum(one.pinned_bytes for one in rooms),
            sum(one.busy_bytes for one in rooms),
        )

    def capacity(self) -> int:
        """Returns how many bytes the cache may hold in all."""
        return sum(one.loading.capacity() for one in self._tiers.in_service())
