"""A node's cache, of one tier or of several: what the node socket, loads and peers use. It owns the
handles of open files.

A content is in one tier at a time, but for the moments in which it moves. Each tier has its own
index, accounts, threads and health. A tier that is lost is a smaller cache: what it had counts as
absent, and it is used again once it is back. A tier that was replaced serves its open handles, past
its disk, until the last one is released. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cachefs.core.errors import (
    CacheFSError,
    FileTooLarge,
    ProtocolError,
    Stale,
    Unavailable,
)
from cachefs.core.messages import Ensured
from cachefs.core.model import SMALL_FILE_BYTES, ContentId, NamespaceId, Origin
from cachefs.core.placement import LARGEST_FILE_BYTES
from cachefs.core.policies import shown
from cachefs.core.services import MetadataService
from cachefs.core.tiers import TierSpec
from worker.cache.cache_views import CacheViews
from worker.cache.choosing import Chooser
from worker.cache.grants import Grant, TierView
from worker.cache.handles import Handle
from worker.cache.loading import CacheLoading
from worker.cache.opening import Opening
from worker.cache.opens import OpenFile
from worker.cache.promotion import Moves
from worker.cache.serving import CacheServing
from worker.cache.tier import Tier, TierSetting
from worker.cache.tier_set import TierSet
from worker.cache.tiers_status import combined
from worker.fill.source import ConnectorFor, OriginSource, Source
from worker.runtime.clocks import Clocks
from worker.runtime.memory import MemoryBudget, budget
from worker.runtime.process_limits import available_memory
from worker.tier.config import WorkerConfig
from worker.tier.contents import NodeParts
from worker.tier.freed_counts import FreedCounts


class Cache:
    """See the module. Made by `start`, ended by `close`. `arrivals`: the times of the last pages
    from each source."""

    def __init__(self, setting: TierSetting, tiers: TierSet) -> None:
        self._metadata = setting.metadata
        self._tiers = tiers
        self._moves = Moves(tiers, setting.metadata)
        self._chooser = Chooser(tiers, self._moves)
        self._handles: dict[int, tuple[Tier, Handle]] = {}
        self._next_handle = itertools.count(1)
        tiers.on_ended = self._forget
        self.loading = CacheLoading(tiers, self._moves, self._chooser)
        self.serving = CacheServing(tiers, self._moves, self._chooser, setting.metadata)
        self.views = CacheViews(tiers, self._moves)
        self.arrivals = setting.shared.arrivals

    @classmethod
    async def start(
        cls,
        config: WorkerConfig,
        specs: Sequence[TierSpec],
        metadata: Callable[[NamespaceId], MetadataService],
        connector_for: ConnectorFor,
        clocks: Clocks | None = None,
        source: Source | None = None,
        shared: NodeParts | None = None,
    ) -> Cache:
        """Takes all directories over, without reading their data. A tier whose disk fails is left
        out, and tried again later. `config` holds everything but directories and sizes; `metadata`
        raises NotFound for a namespace that is not attached; `source` (None: the origin, by
        `connector_for`) gives the bytes. Raises InUse (naming the owner) and BadConfig
        for any tier; AccessDenied, NoSpace, Unavailable when all fail."""
        setting = TierSetting(
            config,
            metadata,
            clocks or Clocks(),
            source or OriginSource(connector_for),
            shared
            or NodeParts(MemoryBudget(budget(config.memory_limit_bytes, available_memory()))),
        )
        tiers = TierSet(setting, specs)
        cache = cls(setting, tiers)
        await tiers.start()
        cache._moves.start()
        return cache

    def tiers(self) -> list[TierView]:
        """Returns the tiers, the fastest first; those that are lost are among them."""
        return self._tiers.views()

    def subscribe_tiers(self, on_change: Callable[[], None]) -> None:
        """Calls `on_change` from now on whenever `tiers()` has changed."""
        self._tiers.subscribe(on_change)

    # ---- opens ----

    async def open(
        self, namespace: NamespaceId, ino: int, *, past_tier: bool = False, nonce: int = 0
    ) -> Grant:
        """Opens a file; small ones wait until they are whole. `past_tier`: the caller cannot read
        from the tier's disk, and gets nothing of it. `nonce`: see `Open`. Raises Stale,
        IsADirectory, FileTooLarge, and what the origin answers. Cancelled: nothing stays open, the
        fill continues for others."""
        origin = await self._metadata(namespace).locate(ino)
        _check_nonce(origin, nonce)
        if origin.size > LARGEST_FILE_BYTES:  # a bitmap of its pages would fill the memory
            raise FileTooLarge("a file of more than 64 TiB", path=shown(origin.path))
        tier = await self._chooser.chosen(origin, past_tier=past_tier)
        with tier.using():
            opened = await tier.opens.open(origin, past_tier=past_tier)
        if opened.handle.entry is None:
            self._moves.used(origin.content.key, tier)
        return self._grant(tier, opened)

    def _grant(self, tier: Tier, opened: OpenFile) -> Grant:
        handle, number = opened.handle, next(self._next_handle)
        self._handles[number] = tier, handle
        tier.users += 1
        return Grant(number, handle.size, handle.entry is None, opened.fd, tier.index)

    def open_soon(
        self,
        namespace: NamespaceId,
        ino: int,
        ready: Callable[[Opening], None],
        *,
        nonce: int = 0,
    ) -> Opening | None:
        """Opens, as `open`, a small file of which nothing is cached, or that is being filled, or
        was a moment ago: calls `ready`, in the loop and not before this returns, once `opened` has
        a result. None: call `open`. Raises what the namespace answers."""
        origin = self._metadata(namespace).locate_nowait(ino)
        if origin is None or not 0 < origin.size <= SMALL_FILE_BYTES:
            return None
        _check_nonce(origin, nonce)
        tier = self._chooser.of_small(origin)
        entry = tier.opens.begin_small(origin) if tier is not None else None
        return Opening(tier, entry, ready) if tier is not None and entry is not None else None

    def opened(self, opening: Opening) -> Grant | None:
        """Returns the result of an opening that is ready, once. None: call `opened_later`. Raises
        the error of the fill."""
        if opening.error is not None:
            opening.taken()
            raise opening.error
        opened = opening.tier.opens.filled_nowait(opening.entry)
        if opened is None:
            return None
        opening.taken()
        return self._grant(opening.tier, opened)

    async def opened_later(self, opening: Opening) -> Grant:
        """Returns the result where that takes waiting: the file is not in one piece of the cache.
        The caller calls `opening.taken` after it."""
        tier = opening.tier
        with tier.using():
            opened = await tier.opens.filled_later(opening.entry, whole=opening.whole)
        return self._grant(tier, opened)

    # ---- handles ----

    async def ensure(
        self,
        handle: int,
        offset: int,
        size: int,
        *,
        past_tier: bool = False,
        takes_bytes: bool = False,
    ) -> tuple[Ensured, int | None]:
        """Makes bytes from `offset` on readable, `size` (8 MiB at most) unless readers crowd the
        room, and returns from what they are read: see `Ensured`. A descriptor is the receiver's to
        close. Raises the error of the fill, Stale, NoSpace; ProtocolError for an unknown handle.
        `past_tier` as in `open`; `takes_bytes` as in the message `Ensure`. Cancelled: the fill
        continues."""
        if (known := self._handles.get(handle)) is None or offset < 0:
            raise ProtocolError(f"no handle {handle}, or an offset below 0")
        tier, opened = known
        return await tier.ensure(opened, offset, size, past_tier=past_tier, takes_bytes=takes_bytes)

    def origin_of(self, handle: int) -> Origin | None:
        """Returns the file of a handle for which bytes may still have to come, else None."""
        known = self._handles.get(handle)
        return known[1].entry.origin if known is not None and known[1].entry is not None else None

    def release(self, handle: int) -> bool:
        """Ends a handle. Unknown ones are ignored: False."""
        known = self._handles.pop(handle, None)
        if known is None:
            return False
        tier, opened = known
        tier.users -= 1
        tier.release(opened)
        return True

    def _forget(self, tier: Tier) -> None:
        """Ends the handles of a tier that was closed."""
        for number in [number for number, known in self._handles.items() if known[0] is tier]:
            del self._handles[number]

    def used(self, names: Sequence[str], hit_bytes: int) -> None:
        """Counts published files that clients opened without a request. Names that mean nothing
        here are ignored."""
        running = self._tiers.running
        of_tier: dict[Tier, list[str]] = {tier: [] for tier in running}
        for name in names:
            having = (tier for tier in running if tier.has_name(name))
            of_tier[next(having, running[0])].append(name)
        for tier, some in of_tier.items():
            tier.used(some, hit_bytes)
            hit_bytes = 0  # it is not known of which tier they are
            for name in some:
                self._moves.used_name(name, tier)

    # ---- operators ----

    async def cached_bytes(self, content: ContentId) -> int:
        """Returns how many of a file's bytes are cached; 0 while the disks give no answer."""
        key = content.key
        having = [tier for tier in self._tiers.in_service() if tier.may_have(key)]
        return max([await tier.cached_bytes(content) for tier in having], default=0)

    async def free(self, contents: Iterable[ContentId]) -> FreedCounts:
        """Drops the cached bytes of these files. Those that are open read on from unlinked files
        (`busy_files`). Raises Unavailable when no tier is in service, or an index cannot be
        written; tiers out of service have nothing that could be read."""
        wanted = [*contents]
        total = await self._free(wanted)
        tiers = self._tiers.in_service()
        if len(tiers) == 1:
            return total
        again = [one for one in wanted if any(tier.may_have(one.key) for tier in tiers)]
        if again:  # a move has brought them to a tier after its turn
            total += await self._free(again)
        return total

    async def _free(self, wanted: Sequence[ContentId]) -> FreedCounts:
        total = FreedCounts()
        tiers = self._tiers.in_service()
        failed: CacheFSError | None = None
        if not tiers:
            raise Unavailable("no tier of the cache is in service")
        for tier in tiers:
            try:
                total += await tier.free(wanted)
            except CacheFSError as err:
                failed = err
        if failed is not None:
            raise failed
        return total

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status`: sums, and a row for each tier; see
        docs/operations.md."""
        return combined(self._tiers.rows(), self._tiers.past())

    async def at_disk(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function that writes what nothing depends on into the directory of the first tier
        in service. Errors are logged."""
        for tier in self._tiers.in_service():
            return await tier.at_disk(function, *args)

    async def ownership_changed(self) -> None:
        """Makes contents that this node no longer owns the first to be evicted. It takes a while
        with many files, and may run twice at once. A tier whose disk fails does so later."""
        running = self._tiers.running
        await asyncio.gather(*(tier.housekeeping.ownership_changed() for tier in running))

    async def close(self) -> None:
        """Ends all fills, commits what is complete, gives the directories back. Idempotent."""
        await self._tiers.close()


def _check_nonce(origin: Origin, nonce: int) -> None:
    """Raises Stale where the caller means a content of another nonce: the inode number was given to
    another file, by a store that was an earlier one. 0: the caller does not say."""
    if nonce and nonce != origin.content.nonce:
        raise Stale(f"inode {origin.content.ino} is another file")
