"""A node's cache as the node socket, loads, and peers' requests use it: one tier
(`worker.cache.worker.Worker`), or several (`worker.cache.cache.Tiers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cachefs.core.messages import Ensured
from cachefs.core.model import ContentId, NamespaceId, Origin
from worker.stats.arrivals import Arrivals
from worker.tier.catalog import FreedCounts

if TYPE_CHECKING:
    from worker.cache.load_requests import LoadingCache
    from worker.cache.peer_reads import PeerCache
    from worker.cache.small_open import Opening


@dataclass(frozen=True, slots=True)
class Grant:
    """An open file. `fd` is read-only and the receiver's to close: `complete`, every byte is in it;
    else it is the partial cache file (read what `ensure` granted), or None. `tier`: where it is."""

    handle: int
    size: int
    complete: bool
    fd: int | None
    tier: int = 0


class TierView(NamedTuple):
    """A tier as clients see it. `pub_fd`: its directory of published files, the cache's own; -1:
    it has none. `number` changes when that is another directory, `losses` when bytes that were
    written there are lost: what clients have of it is doubtful."""

    tier: int
    pub_fd: int
    in_service: bool
    number: int = 0
    losses: int = 0


class Cache(Protocol):
    """See the module. All methods belong to one event loop. See `worker.cache.worker.Worker` for
    what each raises and what cancellation leaves. `on_tiers` is called when `tiers()` has
    changed."""

    on_tiers: Callable[[], None]
    arrivals: Arrivals

    @property
    def serving(self) -> PeerCache: ...

    @property
    def loading(self) -> LoadingCache: ...

    def tiers(self) -> list[TierView]:
        """The fastest first; those that are lost are there too."""

    def origin_of(self, handle: int) -> Origin | None:
        """Returns the file of a handle for which bytes may still have to come, else None."""

    async def open(
        self, namespace: NamespaceId, ino: int, *, past_tier: bool = False, nonce: int = 0
    ) -> Grant: ...

    def open_soon(
        self,
        namespace: NamespaceId,
        ino: int,
        ready: Callable[[Opening], None],
        *,
        nonce: int = 0,
    ) -> Opening | None: ...

    def opened(self, opening: Opening) -> Grant | None: ...

    async def opened_later(self, opening: Opening) -> Grant: ...

    async def ensure(
        self,
        handle: int,
        offset: int,
        size: int,
        *,
        past_tier: bool = False,
        takes_bytes: bool = False,
    ) -> tuple[Ensured, int | None]: ...

    def release(self, handle: int) -> bool: ...

    def used(self, names: Sequence[str], hit_bytes: int) -> None: ...

    async def cached_bytes(self, content: ContentId) -> int: ...

    async def free(self, contents: Iterable[ContentId]) -> FreedCounts: ...

    def status(self) -> dict[str, Any]: ...

    async def at_disk(self, function: Callable[..., Any], *args: Any) -> None: ...

    async def close(self) -> None: ...
