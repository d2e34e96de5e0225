"""What peers, and the migration of blocks, get of a cache of several tiers (`PeerCache`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from cachefs.core.model import NamespaceId, Origin
from cachefs.core.services import MetadataService
from worker.cache.peer_reads import Pages, with_replicas
from worker.cache.promotion import Moves
from worker.cache.running import Running
from worker.cache.tier_set import Keeper
from worker.store.holdings import Holding, merge_holdings, read_holdings


class TiersServing:
    """See `worker.cache.peer_reads.PeerCache`. `chosen`: the tier that serves a content."""

    def __init__(
        self,
        keeper: Keeper,
        moves: Moves,
        metadata: Callable[[NamespaceId], MetadataService],
        chosen: Callable[[Origin], Awaitable[Running]],
    ) -> None:
        self._keeper = keeper
        self._moves = moves
        self._metadata = metadata
        self._chosen = chosen

    def _having(self, key: bytes) -> list[Running]:
        return [one for one in self._keeper.in_service() if one.may_have(key)]

    async def here(
        self, key: bytes, first: int, end: int, *, for_reader: bool = False
    ) -> Pages | None:
        """See `PeerCache`."""
        for one in self._keeper.running:  # what was refused is in segments of any
            found = await one.worker.serving.here(key, first, end, for_reader=for_reader)
            if found is not None:
                self._moves.used(key, one)
                return found
        return None

    async def provide(self, origin: Origin, first: int, end: int, epoch: int) -> Pages:
        """See `PeerCache`."""
        one = await self._chosen(origin)
        with one.using() as worker:
            return await worker.serving.provide(origin, first, end, epoch)

    async def bring(
        self, namespace: NamespaceId, ino: int, first: int, end: int, *, peers_only: bool
    ) -> int:
        """See `PeerCache`."""
        one = await self._chosen(await self._metadata(namespace).locate(ino))
        with one.using() as worker:
            return await worker.serving.bring(namespace, ino, first, end, peers_only=peers_only)

    async def bits(self, key: bytes) -> int:
        """See `PeerCache`."""
        found = 0
        for one in self._having(key):
            found |= await one.worker.serving.bits(key)
        return found

    async def doubt(self, key: bytes, pages: Sequence[int]) -> bool:
        """See `PeerCache`."""
        found = [await one.worker.serving.doubt(key, pages) for one in self._having(key)]
        return any(found)

    async def holdings(self, after: bytes, limit: int) -> tuple[Holding, ...]:
        """What is cached, in key order, of keys greater than `after`. Raises OSError."""
        of_tiers = [
            await one.parts.ask_disk(read_holdings, one.parts.tier.index, after, limit)
            for one in self._keeper.in_service()
        ]
        return with_replicas(merge_holdings(of_tiers, limit), self._replicas_of)

    def _replicas_of(self, key: bytes) -> int:
        of_tiers = (one.parts.rules.replicas(key) for one in self._keeper.running)
        return max(of_tiers, default=1)
