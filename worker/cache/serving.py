"""Pages and holdings of a node's cache, for peers and for the migration of blocks. Owned by the
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cachefs.core.cluster import Had
from worker.cache.peer_reads import Pages, with_replicas
from worker.store.holdings import Holding, merge_holdings
from worker.tier.disk import no_answer

if TYPE_CHECKING:
    from cachefs.core.model import NamespaceId, Origin
    from cachefs.core.services import MetadataService
    from worker.cache.choosing import Chooser
    from worker.cache.promotion import Moves
    from worker.cache.tier import Tier
    from worker.cache.tier_set import TierSet


class CachedPages(NamedTuple):
    """The bitmap of a content's cached pages (bit i: page i). `is_certain`: each tier that may have
    some answered."""

    bits: int
    is_certain: bool


@dataclass(eq=False)
class CacheServing:
    """See the module."""

    _tiers: TierSet
    _moves: Moves
    _chooser: Chooser
    _metadata: Callable[[NamespaceId], MetadataService]

    def _having(self, key: bytes) -> list[Tier]:
        return [tier for tier in self._tiers.in_service() if tier.may_have(key)]

    async def here(
        self, key: bytes, first: int, end: int, *, for_reader: bool = False
    ) -> Pages | None:
        """Returns what is cached of the pages [first, end) from the first one on; None when that
        one is not. Sends no request, not even to the master. `for_reader`: the caller reads what
        was loaded."""
        for tier in self._tiers.running:  # what was refused is in segments of any
            found = await tier.serving.here(key, first, end, for_reader=for_reader)
            if found is not None:
                self._moves.used(key, tier)
                return found
        return None

    async def provide(self, origin: Origin, first: int, end: int, epoch: int) -> Pages:
        """Returns the same, fetched from the origin (or from peers that have it) where need be, for
        a peer that uses the view of this `epoch`. Raises NotHere when readers here wait for
        peers to fetch it, by another view; NoSpace, and the error of the fill: Stale for another
        version there. Cancelled: the fill continues."""
        tier = await self._chooser.chosen(origin)
        with tier.using():
            return await tier.serving.provide(origin, first, end, epoch)

    async def bring(
        self, namespace: NamespaceId, ino: int, first: int, end: int, *, peers_only: bool
    ) -> int:
        """Fetches the pages [first, end) into the cache, `peers_only` from peers that have them.
        Returns how many of them are cached then: fewer where no peer has them, or the cache does
        not take them. Raises Stale, and the error of a fill."""
        origin = await self._metadata(namespace).locate(ino)
        tier = await self._chooser.chosen(origin)
        with tier.using():
            return await tier.serving.bring(origin, first, end, peers_only=peers_only)

    async def bits(self, key: bytes) -> int:
        """Returns the bitmap of the cached pages. Raises OSError where a tier that may have some
        gives no answer."""
        pages = await self.cached_pages(key)
        if not pages.is_certain:
            raise no_answer()
        return pages.bits

    async def cached_pages(self, key: bytes) -> CachedPages:
        """Returns the cached pages. What tiers out of service have is unknown."""
        bits, is_certain = 0, True
        for tier in self._tiers.running:
            if tier.may_have(key):
                found = await tier.serving.bits(key) if tier.in_service else None
                bits |= found or 0
                is_certain &= found is not None
        return CachedPages(bits, is_certain)

    async def had(self, keys: Iterable[bytes]) -> Had:
        """Returns the reply to `Have`: the cached pages of contents."""
        found = [await self.cached_pages(key) for key in keys]
        is_certain = all(one.is_certain for one in found)
        return Had([_little_endian(one.bits) for one in found], not is_certain)

    async def doubt(self, key: bytes, pages: Sequence[int]) -> bool:
        """Looks at pages (`MOST_DOUBTED` at most) whose checksums did not match at a peer, and
        drops the content when one is wrong here. Returns whether it did."""
        found = [await tier.serving.doubt(key, pages) for tier in self._having(key)]
        return any(found)

    async def holdings(
        self, after: bytes, limit: int, *, leaves_out_silent: bool = False
    ) -> tuple[Holding, ...]:
        """Returns what is cached, in key order, of keys greater than `after`; fewer than `limit`:
        that was all. Raises OSError where a tier gives no answer, unless these are left out."""
        of_tiers = []
        for tier in self._tiers.running:
            try:
                of_tiers.append(await tier.serving.holdings(after, limit))
            except OSError:
                if not leaves_out_silent:
                    raise
        return with_replicas(merge_holdings(of_tiers, limit), self._replicas_of)

    def _replicas_of(self, key: bytes) -> int:
        return max((tier.serving.replicas(key) for tier in self._tiers.running), default=1)


def _little_endian(bits: int) -> bytes:
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")
