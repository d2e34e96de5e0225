"""A node's cache: pages on a disk that outlives its process, with the real ledger, admission and
eviction order.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

from tests.simulator.origin import BAD, File, Origin, Page
from worker.state.accounting import Ledger, allocation
from worker.state.admission import Verdict, judge
from worker.state.eviction import NEVER_S, eviction_order
from worker.state.moves import Holding

DISK_S = 0.001
BATCH_FILES = 8


class Disk:
    """What is kept over restarts: the pages of each content, and since when each is there."""

    def __init__(self) -> None:
        self.pages: dict[bytes, dict[int, Page]] = {}
        self.since: dict[Page, float] = {}
        self.flipped: set[Page] = set()  # whose bytes changed on the disk
        self.answer_s = DISK_S

    def flip(self, key: bytes, page: int) -> None:
        self.pages[key][page] = BAD
        self.flipped.add((key, page))


class Cache:
    """Of one process. Figures are bytes; times are seconds of the simulator's clock."""

    def __init__(
        self,
        disk: Disk,
        origin: Origin,
        limit_bytes: int,
        owns: Callable[[bytes], bool],
        *,
        admission: str,
    ) -> None:
        self.disk = disk
        self._origin = origin
        self._owns = owns
        self._admission = admission
        self.ledger = Ledger(limit_bytes, scratch_floor_bytes=0)
        self.order = eviction_order("sieve", owned_last=True)
        self.users: dict[bytes, int] = {}
        self.evicted = 0
        self._bits: dict[bytes, int] = {}
        for key, pages in disk.pages.items():
            self._bits[key] = sum(1 << page for page in pages)
            self.ledger.cached_bytes += sum(self._bytes(key, page) for page in pages)
            self.order.insert(key, 0)

    # ---- what is here ----

    def bits(self, key: bytes) -> int:
        return self._bits.get(key, 0)

    def has(self, key: bytes, page: int) -> bool:
        return bool(self._bits.get(key, 0) >> page & 1)

    def read(self, key: bytes, page: int) -> Page:
        return self.disk.pages[key][page]

    def use(self, key: bytes, now_s: float) -> None:
        self.order.hit(key, int(now_s))

    def holdings(self, after: bytes, limit: int) -> tuple[Holding, ...]:
        keys = sorted(self._bits)
        start = bisect.bisect_right(keys, after)
        return tuple(
            Holding(key, self._origin.by_key[key].size_bytes, self._bits[key])
            for key in keys[start : start + limit]
        )

    @property
    def free_bytes(self) -> int:
        return self.ledger.free_for_files

    # ---- coming ----

    def put(self, file: File, page: int, value: Page, now_s: float) -> bool:
        """False where it has no room without something leaving."""
        if self.has(file.key, page):
            return True
        need_bytes = allocation(file.page_bytes(page))
        if not self.ledger.reserve(need_bytes):
            return False
        self.ledger.reserved_bytes -= need_bytes
        self.ledger.cached_bytes += need_bytes
        new = file.key not in self._bits
        self.disk.pages.setdefault(file.key, {})[page] = value
        self.disk.since[file.key, page] = now_s
        self._bits[file.key] = self._bits.get(file.key, 0) | 1 << page
        if new:
            self.order.insert(file.key, int(now_s))
            self.order.set_owned(file.key, owned=self._owns(file.key))
        return True

    def verdict(self, size_bytes: int, now_s: float) -> Verdict:
        return judge(
            self._admission,
            size_bytes=size_bytes,
            free_bytes=self.ledger.free_for_files,
            cached_bytes=self.ledger.cached_bytes,
            oldest_use_s=min(self.order.oldest_use_s(), int(now_s)),
            idle_after_s=3600.0,
            now_s=now_s,
        )

    # ---- going ----

    def candidates(self) -> list[bytes]:
        """What may go next, if the master allows it; those in use are passed over."""
        keys = self.order.candidates(BATCH_FILES, NEVER_S)
        for key in keys:
            if key in self.users:
                self.order.defer(key)
        return [key for key in keys if key not in self.users]

    def drop(self, key: bytes) -> None:
        pages = self.disk.pages.pop(key, {})
        for page in pages:
            self.ledger.cached_bytes -= self._bytes(key, page)
            del self.disk.since[key, page]
            self.disk.flipped.discard((key, page))
        self._bits.pop(key, None)
        self.order.remove(key)

    def look_at_owners(self) -> None:
        """Who owns what has changed."""
        for key in [*self._bits]:
            self.order.set_owned(key, owned=self._owns(key))

    def _bytes(self, key: bytes, page: int) -> int:
        return allocation(self._origin.by_key[key].page_bytes(page))

    def check_invariants(self) -> None:
        self.ledger.check_invariants()
        assert self.ledger.used_bytes <= self.ledger.limit_bytes, "the cache is above its limit"
        assert len(self.order) == len(self._bits) == len(self.disk.pages)


__all__ = ["Cache", "Disk"]
