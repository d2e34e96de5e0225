"""A node's cache of several tiers, the fastest first (`worker.cache.grants.Cache`): one worker for
each.

A content is in one tier at a time, but for the moments in which it moves. Each tier has its own
index, accounts, threads and health; a tier that is lost is a smaller cache: what it had counts as
absent, and it is used again once it is back. Handles carry the number of their worker, which goes
on serving them (past its tier) after another one has taken its place. All belongs to one loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cachefs.core.errors import CacheFSError, ProtocolError
from cachefs.core.messages import Ensured
from cachefs.core.model import SMALL_FILE_BYTES, ContentId, NamespaceId, Origin
from cachefs.core.services import MetadataService
from cachefs.core.tiers import TierSpec
from worker.cache.grants import Grant, TierView
from worker.cache.promotion import Moves
from worker.cache.running import Running
from worker.cache.small_open import Opening, check_nonce
from worker.cache.tier_choice import choose, place
from worker.cache.tier_set import NUMBERS, Keeper
from worker.cache.tiers_loads import TiersLoading
from worker.cache.tiers_peer_reads import TiersServing
from worker.cache.tiers_status import combined
from worker.fill.source import ConnectorFor, OriginSource, Source
from worker.runtime.clocks import Clocks
from worker.runtime.machine import available_memory
from worker.runtime.memory import MemoryBudget, budget
from worker.tier.catalog import FreedCounts
from worker.tier.config import WorkerConfig
from worker.tier.disk import Shared


class Tiers:
    """See the module. Made by `start`, ended by `close`."""

    def __init__(self, keeper: Keeper, metadata: Callable[[NamespaceId], MetadataService]) -> None:
        self._keeper = keeper
        self._metadata = metadata
        self._moves = Moves(keeper, metadata)
        self.serving = TiersServing(keeper, self._moves, metadata, self.chosen)
        self.loading = TiersLoading(keeper, self._moves, self)
        self.on_tiers: Callable[[], None] = lambda: None
        self.arrivals = keeper.arrivals

    @classmethod
    async def start(
        cls,
        config: WorkerConfig,
        specs: Sequence[TierSpec],
        metadata: Callable[[NamespaceId], MetadataService],
        connector_for: ConnectorFor,
        clocks: Clocks | None = None,
        source: Source | None = None,
        shared: Shared | None = None,
    ) -> Tiers:
        """Takes all directories over; one whose disk fails is left out, and tried again later.
        `config` says everything but directories and sizes.
        Raises as `Worker.start`: InUse and BadConfig for any tier, other errors when all fail."""
        keeper = Keeper(
            config,
            specs,
            metadata,
            connector_for,
            clocks or Clocks(),
            source or OriginSource(connector_for),
            shared or Shared(MemoryBudget(budget(config.memory_limit_bytes, available_memory()))),
        )
        tiers = cls(keeper, metadata)
        keeper.on_change = tiers._changed
        keeper.on_started = tiers._moves.connect
        await keeper.start()
        tiers._moves.start()
        return tiers

    def _changed(self) -> None:
        self._moves.service_changed()
        self.on_tiers()

    def tiers(self) -> list[TierView]:
        """See `Cache`."""
        return self._keeper.views()

    # ---- which tier ----

    async def chosen(
        self, origin: Origin, *, past_tier: bool = False, for_load: bool = False
    ) -> Running:
        """The tier that serves a content: where it is, or is on its way to, or where it goes."""
        key = origin.content.key
        running = self._keeper.running if past_tier else self._keeper.in_service()
        if len(running) == 1:
            return running[0]
        moving = self._moves.source_of(key)
        live = moving or next((one for one in running if one.is_live(key)), None)
        if live is not None:
            return live
        known = [one for one in running if one.may_have(key)]
        if past_tier and known:
            return known[0]
        if known and (len(known) > 1 or not self._takes_more(known[0])):
            return await self._chosen_by_index(origin, known, for_load=for_load)
        return known[0] if known else self.placed(origin, for_load=for_load)

    def _takes_more(self, one: Running) -> bool:
        return one.parts.order_known and one.worker.inside.space.may_fit(SMALL_FILE_BYTES)

    async def _chosen_by_index(
        self, origin: Origin, known: Sequence[Running], *, for_load: bool
    ) -> Running:
        key = origin.content.key
        asked = [await one.held(key, origin.size, for_load=for_load) for one in known]
        tier = choose([held for held in asked if held is not None])
        # Another may have taken its place meanwhile, and it was closed.
        still = [one for one in known if one in self._keeper.running]
        chosen = next((one for one in still if one.tier == tier), None)
        return chosen or self.placed(origin, for_load=for_load)

    def placed(self, origin: Origin, *, for_load: bool = False) -> Running:
        """Where a content goes of which no tier has anything, or none that can take the rest."""
        running = self._keeper.running
        if len(running) == 1 and origin.size <= SMALL_FILE_BYTES:
            return running[0]
        rooms = [one.room(origin, for_load=for_load) for one in running]
        one = running[place(origin.size, rooms)]
        if origin.size > SMALL_FILE_BYTES:
            one.promise(origin.content.key, origin.size)
        return one

    # ---- reads ----

    async def open(
        self, namespace: NamespaceId, ino: int, *, past_tier: bool = False, nonce: int = 0
    ) -> Grant:
        """See `Worker.open`."""
        origin = await self._metadata(namespace).locate(ino)
        check_nonce(origin, nonce)
        one = await self.chosen(origin, past_tier=past_tier)
        with one.using() as worker:
            grant = await worker.open(namespace, ino, past_tier=past_tier, nonce=nonce)
        if grant.complete:
            self._moves.used(origin.content.key, one)
        return self._numbered(one, grant)

    def _numbered(self, one: Running, grant: Grant) -> Grant:
        handle = grant.handle * NUMBERS + one.number if grant.handle else 0
        one.users += handle > 0
        return dataclasses.replace(grant, handle=handle, tier=one.tier)

    def open_soon(
        self,
        namespace: NamespaceId,
        ino: int,
        ready: Callable[[Opening], None],
        *,
        nonce: int = 0,
    ) -> Opening | None:
        """See `Worker.open_soon`."""
        origin = self._metadata(namespace).locate_nowait(ino)
        if origin is None or not 0 < origin.size <= SMALL_FILE_BYTES:
            return None
        key = origin.content.key
        running = self._keeper.in_service()
        having = [one for one in running if one.may_have(key)] if len(running) > 1 else running
        if len(having) > 1:
            return None
        one = having[0] if having else self.placed(origin)
        opening = one.worker.open_soon(namespace, ino, ready, nonce=nonce)
        if opening is not None:
            opening.number = one.number
        return opening

    def opened(self, opening: Opening) -> Grant | None:
        """See `Worker.opened`."""
        one = self._keeper.numbered(opening.number)
        grant = one.worker.opened(opening)
        return self._numbered(one, grant) if grant is not None else None

    async def opened_later(self, opening: Opening) -> Grant:
        """See `Worker.opened_later`."""
        one = self._keeper.numbered(opening.number)
        with one.using() as worker:
            return self._numbered(one, await worker.opened_later(opening))

    async def ensure(
        self,
        handle: int,
        offset: int,
        size: int,
        *,
        past_tier: bool = False,
        takes_bytes: bool = False,
    ) -> tuple[Ensured, int | None]:
        """See `Worker.ensure`."""
        local, number = divmod(handle, NUMBERS)
        if not self._keeper.is_numbered(number):
            raise ProtocolError(f"no handle {handle}")
        one = self._keeper.numbered(number)
        return await one.worker.ensure(
            local, offset, size, past_tier=past_tier, takes_bytes=takes_bytes
        )

    def origin_of(self, handle: int) -> Origin | None:
        """See `Cache`."""
        local, number = divmod(handle, NUMBERS)
        is_known = self._keeper.is_numbered(number)
        return self._keeper.numbered(number).worker.origin_of(local) if is_known else None

    def release(self, handle: int) -> bool:
        """See `Worker.release`."""
        local, number = divmod(handle, NUMBERS)
        if not handle or not self._keeper.is_numbered(number):
            return False
        one = self._keeper.numbered(number)
        known = one.worker.release(local)
        one.users -= known
        return known

    def used(self, names: Sequence[str], hit_bytes: int) -> None:
        """See `Worker.used`."""
        running = self._keeper.running
        of_tier: dict[int, list[str]] = {one.tier: [] for one in running}
        for name in names:
            one = self._having(name) or running[0]
            of_tier[one.tier].append(name)
        for one in running:
            one.worker.used(of_tier[one.tier], hit_bytes)
            hit_bytes = 0  # whose they are is not known
            for name in of_tier[one.tier]:
                self._moves.used_name(name, one)

    def _having(self, name: str) -> Running | None:
        try:
            key = bytes.fromhex(name)
        except ValueError:
            return None
        return next((one for one in self._keeper.running if key in one.parts.order), None)

    # ---- operators ----

    async def cached_bytes(self, content: ContentId) -> int:
        """See `Worker.cached_bytes`."""
        key = content.key
        having = [one for one in self._keeper.in_service() if one.may_have(key)]
        return max([await one.worker.cached_bytes(content) for one in having], default=0)

    async def free(self, contents: Iterable[ContentId]) -> FreedCounts:
        """See `Worker.free`. Tiers out of service have nothing that anybody could read."""
        wanted = [*contents]
        total = FreedCounts()
        failed: CacheFSError | None = None
        for one in self._keeper.in_service():
            try:
                freed = await one.worker.free(wanted)
            except CacheFSError as err:
                failed = err
                continue
            total.files += freed.files
            total.bytes += freed.bytes
            total.busy_files += freed.busy_files
        if failed is not None:
            raise failed
        return total

    def status(self) -> dict[str, Any]:
        """As `Worker.status`: sums, and a row for each tier."""
        return combined(self._keeper.rows(), self._keeper.past())

    async def at_disk(self, function: Callable[..., Any], *args: Any) -> None:
        """See `Worker.at_disk`: in the first tier that answers."""
        for one in self._keeper.in_service():
            return await one.worker.at_disk(function, *args)

    async def ownership_changed(self) -> None:
        """What this node owns is other than before: what it does not own goes first from now on.
        Takes a while with many files; a second call meanwhile does no harm."""
        for one in [*self._keeper.running]:
            await one.worker.inside.housekeeping.ask_owners()

    async def close(self) -> None:
        """See `Worker.close`. Idempotent."""
        await self._keeper.close()
