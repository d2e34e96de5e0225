"""A node's cache: pages on disks that outlive its process, in one tier or two, with the real
ledgers, admission, eviction orders, and the real decisions of what goes to which tier.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from functools import partial

from tests.simulator.origin import BAD, File, Origin, Page
from worker.cache.tier_choice import Moved, Promote, Promotions, Room, Used, place
from worker.store.holdings import Holding
from worker.tier.admission_rule import Verdict, judge
from worker.tier.eviction_order import NEVER_S, eviction_order
from worker.tier.ledger import Ledger, allocation

DISK_S = 0.001
BATCH_FILES = 8
IDLE_S = 3600.0
MAKES_ROOM = frozenset(
    {Verdict.MAKE_ROOM, Verdict.MAKE_ROOM_FROM_COPIES, Verdict.MAKE_ROOM_FROM_IDLE}
)


class Disk:
    """What is kept over restarts: the pages of each content, since when each is there, and the tier
    of each content."""

    def __init__(self) -> None:
        self.pages: dict[bytes, dict[int, Page]] = {}
        self.since: dict[Page, float] = {}
        self.tier_of: dict[bytes, int] = {}
        self.flipped: set[Page] = set()  # whose bytes changed on the disk
        self.answer_s = DISK_S

    def flip(self, key: bytes, page: int) -> None:
        self.pages[key][page] = BAD
        self.flipped.add((key, page))


class Tier:
    """The accounts of one tier."""

    def __init__(self, limit_bytes: int) -> None:
        self.ledger = Ledger(limit_bytes, scratch_floor_bytes=0)
        self.order = eviction_order("sieve", owned_last=True)

    def take(self, size_bytes: int) -> bool:
        """Room is promised, then used. False where there is none."""
        if not self.ledger.reserve(size_bytes):
            return False
        self.ledger.reserved_bytes -= size_bytes
        self.ledger.cached_bytes += size_bytes
        return True

    def check_invariants(self) -> None:
        self.ledger.check_invariants()
        assert self.ledger.used_bytes <= self.ledger.limit_bytes, "a tier is above its limit"


class Cache:
    """Of one process. Figures are bytes; times are seconds of the simulator's clock."""

    def __init__(
        self,
        disk: Disk,
        origin: Origin,
        limits_bytes: Sequence[int],
        owns: Callable[[bytes], bool],
        *,
        admission: str,
    ) -> None:
        """`limits_bytes` of the tiers, the fastest first."""
        self._disk = disk
        self._origin = origin
        self._owns = owns
        self._admission = admission
        self._promotions = Promotions()
        self._tiers = [Tier(limit_bytes) for limit_bytes in limits_bytes]
        self.users: dict[bytes, int] = {}
        self.demoted = self.promoted = 0
        self._bits: dict[bytes, int] = {}
        for key, pages in disk.pages.items():
            self._bits[key] = sum(1 << page for page in pages)
            tier = self._tiers[disk.tier_of[key]]
            tier.ledger.cached_bytes += self._size_bytes(key)
            tier.order.insert(key, 0)

    # ---- what is here ----

    def bits(self, key: bytes) -> int:
        return self._bits.get(key, 0)

    def has(self, key: bytes, page: int) -> bool:
        return bool(self._bits.get(key, 0) >> page & 1)

    def read(self, key: bytes, page: int) -> Page:
        return self._disk.pages[key][page]

    def use(self, key: bytes, now_s: float) -> list[Promote]:
        """What is to be copied to a faster tier, for it is used so often."""
        number = self._disk.tier_of.get(key)
        if number is None:
            return []
        self._tiers[number].order.hit(key, int(now_s))
        return self._promotions.handle(Used(key, number), now_s)

    def holdings(self, after: bytes, limit: int) -> tuple[Holding, ...]:
        keys = sorted(self._bits)
        start = bisect.bisect_right(keys, after)
        return tuple(
            Holding(key, self._origin.by_key[key].size_bytes, self._bits[key])
            for key in keys[start : start + limit]
        )

    @property
    def free_bytes(self) -> int:
        return sum(max(0, tier.ledger.free_for_files) for tier in self._tiers)

    # ---- coming ----

    def tier_for(self, file: File, now_s: float) -> int:
        """Where its pages go."""
        known = self._disk.tier_of.get(file.key)
        if known is not None:
            return known
        return place(file.size_bytes, [self._room(tier, file, now_s) for tier in self._tiers])

    def _room(self, tier: Tier, file: File, now_s: float) -> Room:
        return Room(
            in_service=True,
            writable=True,
            limit_bytes=tier.ledger.limit_bytes - tier.ledger.headroom_bytes,
            free_bytes=tier.ledger.free_for_files,
            makes_room=partial(self._makes_room, tier, file, now_s),
        )

    def _makes_room(self, tier: Tier, file: File, now_s: float, size_bytes: int) -> bool:
        return self._judge(tier, file, size_bytes, now_s) is not Verdict.REFUSE

    def put(self, file: File, page: int, value: Page, now_s: float) -> bool:
        """False where it has no room without something leaving."""
        if self.has(file.key, page):
            return True
        number = self.tier_for(file, now_s)
        tier = self._tiers[number]
        if not tier.take(allocation(file.page_bytes(page))):
            return False
        new = file.key not in self._bits
        self._disk.pages.setdefault(file.key, {})[page] = value
        self._disk.since[file.key, page] = now_s
        self._disk.tier_of[file.key] = number
        self._bits[file.key] = self._bits.get(file.key, 0) | 1 << page
        if new:
            tier.order.insert(file.key, int(now_s))
            tier.order.set_owned(file.key, owned=self._owns(file.key))
        return True

    def verdict(self, file: File, size_bytes: int, now_s: float) -> Verdict:
        return self._judge(self._tiers[self.tier_for(file, now_s)], file, size_bytes, now_s)

    def _judge(self, tier: Tier, file: File, size_bytes: int, now_s: float) -> Verdict:
        return judge(
            self._admission,
            size_bytes=size_bytes,
            free_bytes=tier.ledger.free_for_files,
            cached_bytes=tier.ledger.cached_bytes,
            oldest_use_s=min(tier.order.oldest_use_s(), int(now_s)),
            idle_after_s=IDLE_S,
            now_s=now_s,
            takes_copies=lambda: bool(tier.order.copy_count) and self._owns(file.key),
        )

    # ---- views ----

    def is_complete(self, file: File) -> bool:
        return len(self._disk.pages.get(file.key, ())) == file.pages

    def in_view(self, key: bytes) -> bool:
        return any(tier.order.held(key)[0] == NEVER_S for tier in self._tiers)

    def hold(self, keys: Collection[bytes]) -> list[bytes]:
        """Returns those that are held from now on."""
        here = sorted(key for key in keys if key in self._bits)
        return [
            key
            for number, tier in enumerate(self._tiers)
            for key in tier.order.hold_all(self._of(number, here), NEVER_S)
        ]

    def release(self, keys: Collection[bytes], now_s: float) -> None:
        for number, tier in enumerate(self._tiers):
            tier.order.release_all(self._of(number, sorted(keys)), NEVER_S, int(now_s))

    def _of(self, number: int, keys: Sequence[bytes]) -> list[bytes]:
        return [key for key in keys if self._disk.tier_of.get(key) == number]

    def held(self) -> set[bytes]:
        return {key for key in self._bits if self.in_view(key)}

    # ---- going ----

    def candidates(self, number: int, verdict: Verdict, now_s: float) -> list[bytes]:
        """What may go next of a tier, if the master allows it; those in use are passed over."""
        order = self._tiers[number].order
        if verdict is Verdict.MAKE_ROOM_FROM_COPIES:
            keys = order.copies(BATCH_FILES)
        else:
            idle = verdict is Verdict.MAKE_ROOM_FROM_IDLE
            keys = order.candidates(BATCH_FILES, int(now_s - IDLE_S) if idle else NEVER_S)
        for key in keys:
            if key in self.users:
                order.defer(key)
        return [key for key in keys if key not in self.users]

    def keep(self, key: bytes) -> None:
        """It must not go."""
        number = self._disk.tier_of.get(key)
        if number is not None:
            self._tiers[number].order.defer(key)

    def is_short(self, number: int, size_bytes: int) -> bool:
        return self._tiers[number].ledger.free_for_files < size_bytes

    def demote(self, key: bytes) -> bool:
        """To the next tier, if it was used and there is room below."""
        number = self._disk.tier_of.get(key)
        if number is None or number + 1 == len(self._tiers) or self.in_view(key):
            return False
        moved = self._tiers[number].order.was_used(key) and self._move(key, number + 1)
        self.demoted += moved
        return moved

    def promote(self, key: bytes, now_s: float) -> None:
        """The copy for a `Promote` is made."""
        number = self._disk.tier_of.get(key, 0)
        moved = number > 0 and not self.in_view(key) and self._move(key, number - 1)
        self.promoted += moved
        self._promotions.handle(Moved(key, moved), now_s)

    def _move(self, key: bytes, number: int) -> bool:
        old, new = self._tiers[self._disk.tier_of[key]], self._tiers[number]
        size_bytes = self._size_bytes(key)
        if not new.take(size_bytes):
            return False
        last_use_s = old.order.last_use_s(key)
        old.ledger.cached_bytes -= size_bytes
        old.order.remove(key)
        new.order.insert(key, last_use_s)
        new.order.set_owned(key, owned=self._owns(key))
        self._disk.tier_of[key] = number
        return True

    def drop(self, key: bytes) -> None:
        number = self._disk.tier_of.pop(key, None)
        if number is None:
            return
        tier = self._tiers[number]
        tier.ledger.cached_bytes -= self._size_bytes(key)
        tier.order.remove(key)
        for page in self._disk.pages.pop(key):
            del self._disk.since[key, page]
            self._disk.flipped.discard((key, page))
        del self._bits[key]

    def look_at_owners(self) -> None:
        """Who owns what has changed."""
        for key, number in self._disk.tier_of.items():
            self._tiers[number].order.set_owned(key, owned=self._owns(key))

    def _size_bytes(self, key: bytes) -> int:
        file = self._origin.by_key[key]
        return sum(allocation(file.page_bytes(page)) for page in self._disk.pages[key])

    def check_bytes(self) -> None:
        """No byte is counted twice, or lost."""
        for number, tier in enumerate(self._tiers):
            here = sum(self._size_bytes(key) for key in self._of(number, [*self._bits]))
            assert tier.ledger.cached_bytes == here, "the accounts of a tier are wrong"
            assert tier.ledger.reserved_bytes == 0, "promised room was not returned"

    def check_invariants(self) -> None:
        for tier in self._tiers:
            tier.check_invariants()
        self._promotions.check_invariants()
        count = sum(len(tier.order) for tier in self._tiers)
        assert count == len(self._bits) == len(self._disk.pages) == len(self._disk.tier_of)


__all__ = ["MAKES_ROOM", "Cache", "Disk"]
