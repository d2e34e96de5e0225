"""The accounts of one tier's contents: ledger, eviction order, charges against quotas, rules. Only
this module changes them; other modules read them. Owned by the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cachefs.core.policies import Rule
from cachefs.core.units import format_size
from worker.runtime.clocks import Clocks
from worker.runtime.memory import MemoryBudget
from worker.runtime.tasks import Signal
from worker.stats.arrivals import LastPageTimes
from worker.store.directory import TierDirectory
from worker.store.holds import Hold
from worker.tier.config import WorkerConfig
from worker.tier.eviction_order import NEVER_S, EvictionOrder
from worker.tier.ledger import Ledger
from worker.tier.quotas import Bounds, Charges, Quotas
from worker.tier.rules import Rules

log = logging.getLogger(__name__)

IsOwned = Callable[[bytes, int, int], bool]
RECORD_BYTES: Final = 1024  # of the index for a content, at most
LEND_FLOOR_S: Final = 60.0  # after a reader's last need of room for segments
# The deadline of contents that a view holds: never.
VIEW_S: Final = NEVER_S


class ViewGuard(Protocol):
    """The views of a tier, as those see them that change its contents."""

    async def leave(self, keys: Sequence[bytes]) -> None:
        """Removes contents from views, after all covers of these views were removed. The caller
        holds the fences of the contents (`Catalog.removing`). Raises OSError."""

    async def leave_all(self) -> None:
        """Removes all covers of views of the tier, whose bytes are doubtful."""

    def lost(self, key: bytes) -> None:
        """Notes that a content of a view has lost its record."""

    def want_room(self, *, replaces: bool) -> None:
        """Notes that data found no room. `replaces`: others are evicted for it."""

    async def give_way(self) -> bool:
        """Releases the contents of a view that a policy made; returns False if there is none."""


class _NoViews:
    """The guard of a tier that shows no view."""

    async def leave(self, keys: Sequence[bytes]) -> None:
        pass

    async def leave_all(self) -> None:
        pass

    def lost(self, key: bytes) -> None:
        pass

    def want_room(self, *, replaces: bool) -> None:
        pass

    async def give_way(self) -> bool:
        return False


def _ignore_all(*what: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The common parts of a process's tiers. `is_owned(key, size, replicas)` returns whether this
    node owns any block of the content (key: 36 bytes); None: it owns everything.
    `on_replicated(key, size, replicas)` is called when pages of a content with several owners are
    recorded; `on_owners_changed()` when contents have more owners than before."""

    memory: MemoryBudget
    is_owned: IsOwned | None = None
    quotas: Quotas = field(default_factory=Quotas)
    on_replicated: Callable[[bytes, int, int], None] = _ignore_all
    on_owners_changed: Callable[[], None] = _ignore_all
    arrivals: LastPageTimes = field(default_factory=LastPageTimes)


class Contents:
    """`order_known`: `order` has every content with a record. `room_changed` wakes waits for
    room."""

    def __init__(
        self, ledger: Ledger, order: EvictionOrder, clocks: Clocks, node: NodeParts
    ) -> None:
        self.ledger = ledger
        self.order = order
        self.charges = Charges(node.quotas)
        self.rules = Rules()
        self.order_known = False
        self.room_changed = Signal()
        self.uses = 0  # so far, a number that changes with each
        self.guard: ViewGuard = _NoViews()
        self.trees_change = asyncio.Lock()  # of the trees of views, their records and holds
        self.is_owned = node.is_owned
        self.on_owners_changed = node.on_owners_changed
        self._clocks = clocks
        self._floor_wanted_s = float("-inf")
        self._on_replicated = node.on_replicated

    def owns(self, key: bytes, size_bytes: int) -> bool:
        """Returns whether this node owns a block of the content."""
        return self.is_owned is None or self.is_owned(key, size_bytes, self.rules.replicas(key))

    def is_held(self, key: bytes) -> bool:
        """Returns whether a content is protected from eviction by a load job."""
        return bool(self.order.held(key)[0])

    def last_use_s(self, key: bytes) -> int:
        """Returns the last use (wall clock); NEVER_S for a content that is not in the order."""
        return self.order.last_use_s(key) if key in self.order else NEVER_S

    # ---- contents that are recorded, used, removed ----

    def load(self, key: bytes, last_use_s: int, hold: Hold | None) -> None:
        """Adds a content that an earlier process recorded. The most recently used is added
        first."""
        self.order.insert_oldest(key, last_use_s)
        if hold is not None:
            self.set_aside(key, hold)

    def add(self, key: bytes, size_bytes: int, last_use_s: int, rule: Rule) -> None:
        """Adds a content that gets its first record. Counts it until the index is measured."""
        self.ledger.overhead_bytes += RECORD_BYTES
        self.order.insert(key, last_use_s)
        self.rules.put(key, rule)
        if rule.eviction:
            self.order.set_eviction(key, rule.eviction)
        if not self.owns(key, size_bytes):
            self.order.set_owned(key, owned=False)

    def note_replicated(self, key: bytes, size_bytes: int, rule: Rule) -> None:
        """Reports pages of a content with several owners."""
        if rule.owners > 1:
            self._on_replicated(key, size_bytes, rule.owners)

    def apply_rule(self, key: bytes, rule: Rule) -> bool:
        """Applies changed policies. Returns whether the content has other owners than before."""
        if key not in self.order:
            return False
        self.order.set_eviction(key, rule.eviction)
        return self.rules.put(key, rule)

    def set_owned(self, key: bytes, size_bytes: int) -> None:
        """Applies a change of ownership."""
        self.order.set_owned(key, owned=self.owns(key, size_bytes))

    def use(self, key: bytes, now_s: int) -> None:
        """Records that a cached file was used now."""
        self.uses += 1
        self.order.hit(key, now_s)

    def in_view(self, key: bytes) -> bool:
        """Returns whether a view holds a content: nothing evicts, moves or drops it before it has
        left the view."""
        return self.order.held(key)[0] == VIEW_S

    def hold_for_view(self, keys: Iterable[bytes]) -> list[bytes]:
        """Holds contents for a view; returns those that none has held. Does nothing for a content
        without a record."""
        return self.order.hold_all(keys, VIEW_S)

    def end_view(self, keys: Iterable[bytes], holds: Mapping[bytes, Hold], last_use_s: int) -> None:
        """Ends the holds of contents by a view. `holds`: those by load jobs that continue."""
        for key in self.order.release_all(keys, VIEW_S, last_use_s):
            if key in holds:
                self._hold(key, holds[key])
        self.room_changed.notify()

    def set_aside(self, key: bytes, hold: Hold) -> None:
        """Protects a content from eviction while it is held."""
        if not self.in_view(key):
            self._hold(key, hold)

    def _hold(self, key: bytes, hold: Hold) -> None:
        deadline_s = hold.deadline_s(self._clocks.wall(), self._clocks.monotonic())
        if deadline_s:
            self.order.hold(key, deadline_s, though_read=hold.though_read)

    def release(self, key: bytes, now_s: int) -> None:
        """Ends the hold of a content by a load job."""
        if not self.in_view(key):
            self.order.release(key, now_s)

    def release_due(self, monotonic_s: float, now_s: int) -> None:
        """Ends holds that have expired."""
        self.order.release_due(int(monotonic_s), now_s)

    def defer(self, keys: Sequence[bytes]) -> None:
        """Makes contents that cannot be evicted now the last candidates."""
        for key in keys:
            self.order.defer(key)

    def forget(self, key: bytes) -> None:
        """Removes a content without a record; its bytes are accounted elsewhere."""
        if self.in_view(key):
            self.guard.lost(key)
        self.order.remove(key)
        self.charges.drop(key)
        self.rules.drop(key)

    def evicted(self, key: bytes, size_bytes: int) -> None:
        """Removes a content whose file was unlinked and closed."""
        self.forget(key)
        self.ledger.cached_bytes -= size_bytes

    def charge(self, key: bytes, size_bytes: int, bounds: Bounds) -> None:
        """Charges the cached bytes of a content to quotas, in place of its promised bytes. Charges
        nothing for a content without a record: it may have been removed since it was read."""
        self.charges.put(key, bounds if key in self.order else (), size_bytes)

    def settle_charges(self, keys: Sequence[bytes]) -> None:
        """Ends the promised charges of contents."""
        self.charges.settle(keys)

    # ---- bytes ----

    def reserve(
        self, key: bytes | None, size_bytes: int, bounds: Bounds, *, from_floor: bool = False
    ) -> bool:
        """Promises room for a fill, charged to the quotas `bounds`. Returns False, with nothing
        changed, if there is none. `from_floor`: see `Ledger.reserve`."""
        if not self.ledger.reserve(size_bytes, from_floor=from_floor):
            return False
        if bounds and key is not None:
            self.charges.promise(key, bounds, size_bytes)
        return True

    def unreserve(self, key: bytes | None, size_bytes: int) -> None:
        """Returns promised room that was not used."""
        self.ledger.reserved_bytes -= size_bytes
        if key is not None:
            self.charges.withdraw(key, size_bytes)
        self.room_changed.notify()

    def use_reserved(self, size_bytes: int) -> None:
        """Ends a promise whose bytes are accounted as cached now."""
        self.ledger.reserved_bytes -= size_bytes

    def grow_cached(self, size_bytes: int) -> None:
        """Adds to the bytes of recorded files (below 0: subtracts)."""
        self.ledger.cached_bytes += size_bytes

    def grow_unlinked(self, size_bytes: int) -> None:
        """Adds to the bytes of unlinked open files (below 0: subtracts)."""
        self.ledger.unlinked_bytes += size_bytes

    def unlink(self, size_bytes: int) -> None:
        """Accounts a file as unlinked and still open."""
        self.ledger.cached_bytes -= size_bytes
        self.ledger.unlinked_bytes += size_bytes

    def close_unlinked(self, size_bytes: int) -> None:
        """Accounts the last close of an unlinked file."""
        self.ledger.unlinked_bytes -= size_bytes
        self.room_changed.notify()

    def want_floor(self) -> None:
        """Notes that a reader needs the room for segments: files that take it are evicted."""
        self._floor_wanted_s = self._clocks.monotonic()

    @property
    def lends_floor(self) -> bool:
        """True if no reader has needed the room for segments lately."""
        return self._clocks.monotonic() - self._floor_wanted_s >= LEND_FLOOR_S

    def take_scratch(self, size_bytes: int) -> bool:
        """Takes room for a segment. Returns False, with nothing changed, if there is none."""
        return self.ledger.take_scratch(size_bytes)

    def free_scratch(self, size_bytes: int) -> None:
        """Returns the room of a segment."""
        self.ledger.scratch_bytes -= size_bytes

    def set_overhead(self, size_bytes: int) -> None:
        """Sets the measured bytes of the index and the directories."""
        self.ledger.overhead_bytes = size_bytes

    def check_invariants(self) -> None:
        self.ledger.check_invariants()


def new_contents(
    config: WorkerConfig, directory: TierDirectory, clocks: Clocks, node: NodeParts
) -> Contents:
    """Returns the accounts of a tier as an earlier process left its directory."""
    limit_bytes = config.limit_bytes
    if directory.in_memory:
        limit_bytes = _within_memory(limit_bytes, node.memory)
    ledger = Ledger(limit_bytes, cached_bytes=directory.cached_at_start_bytes)
    return Contents(ledger, config.order(owned_last=node.is_owned is not None), clocks, node)


def _within_memory(limit_bytes: int, memory: MemoryBudget) -> int:
    """Returns the limit of a cache in memory, which respects the memory limit, too."""
    lowered_bytes = memory.take_tier(limit_bytes)
    if lowered_bytes < limit_bytes:
        log.info(
            "the cache is memory: it is limited to %s, as the memory limit is %s",
            format_size(lowered_bytes),
            format_size(memory.limit_bytes),
        )
    return lowered_bytes
