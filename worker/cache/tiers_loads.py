"""Loads into a cache of several tiers (`worker.cache.load_requests.LoadingCache`): each goes where
the content is, or to the fastest tier that has room or makes it. Owned by the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from cachefs.core.jobs import Room, TaskFile
from cachefs.core.model import Origin
from worker.cache.load_requests import Load, Loaded, Outlook
from worker.cache.promotion import Moves
from worker.cache.running import Running
from worker.cache.tier_set import Keeper
from worker.tier.admission import NoRoom


class Chooser(Protocol):
    """Which tier; see `worker.cache.cache`."""

    async def chosen(
        self, origin: Origin, *, past_tier: bool = False, for_load: bool = False
    ) -> Running: ...

    def placed(self, origin: Origin, *, for_load: bool = False) -> Running: ...


class TiersLoading:
    """See the module."""

    def __init__(self, keeper: Keeper, moves: Moves, chooser: Chooser) -> None:
        self._keeper = keeper
        self._moves = moves
        self._chooser = chooser

    def load(self, load: Load) -> None:
        """See `LoadingCache`."""
        running, key = self._keeper.in_service(), load.origin.content.key
        if len(running) > 1 and any(one.may_have(key) for one in running):
            self._keeper.tasks.start(self._load(load))
        else:
            self._into(self._chooser.placed(load.origin, for_load=load.is_served), load)

    def bring_ahead(self, origin: Origin, ended: Callable[[bool], None]) -> Outlook:
        """See `LoadingCache`."""
        running, key = self._keeper.in_service(), origin.content.key
        if len(running) > 1 and any(one.may_have(key) for one in running):
            return Outlook.HERE
        return self._chooser.placed(origin).worker.loading.bring_ahead(origin, ended)

    async def _load(self, load: Load) -> None:
        self._into(await self._chooser.chosen(load.origin, for_load=load.is_served), load)

    def _into(self, one: Running, load: Load) -> None:
        ended = functools.partial(self._ended, one, load)
        one.worker.loading.load(load._replace(ended=ended))

    def _ended(self, one: Running, load: Load, loaded: Loaded) -> None:
        """What one tier does not take may go to another."""
        size_bytes = load.origin.size
        for other in self._keeper.in_service() if isinstance(loaded.error, NoRoom) else ():
            if other is one:
                continue
            if other.room(load.origin, for_load=load.is_served).takes(size_bytes):
                self._moves.doubled(load.origin.content.key)
                return other.worker.loading.load(load)
        load.ended(loaded)

    async def check(self, files: Sequence[TaskFile]) -> list[int]:
        """See `LoadingCache`."""
        return await self._in_none(files, lambda one: one.worker.loading.check)

    async def verify(self, files: Sequence[TaskFile]) -> list[int]:
        """See `LoadingCache`."""
        return await self._in_none(files, lambda one: one.worker.loading.verify)

    async def _in_none(
        self,
        files: Sequence[TaskFile],
        method: Callable[[Running], Callable[[Sequence[TaskFile]], Awaitable[list[int]]]],
    ) -> list[int]:
        """The places of those that are right in no tier. Raises OSError when one does not say."""
        left = [*range(len(files))]
        for one in self._keeper.in_service():
            if not left:
                break
            wrong = await method(one)([files[place] for place in left])
            left = [left[number] for number in wrong]
        return left

    async def room(self) -> Room:
        """See `LoadingCache`."""
        rooms = [await one.worker.loading.room() for one in self._keeper.in_service()]
        return Room(
            sum(one.limit_bytes for one in rooms),
            sum(one.held_bytes for one in rooms),
            sum(one.pinned_bytes for one in rooms),
            sum(one.busy_bytes for one in rooms),
        )

    def places_ahead(self) -> int:
        """See `LoadingCache`."""
        running = self._keeper.in_service()
        return min((one.worker.loading.places_ahead() for one in running), default=0)

    def capacity(self) -> int:
        """See `LoadingCache`."""
        return sum(one.worker.loading.capacity() for one in self._keeper.in_service())
