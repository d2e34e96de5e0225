"""The settings of a worker."""

from __future__ import annotations

from dataclasses import dataclass

from cachefs.core.errors import BadConfig
from worker.tier.admission_rule import POLICIES
from worker.tier.eviction_order import EvictionOrder, eviction_order


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Sizes in bytes really allocated, times in seconds."""

    cache_dir: str
    limit_bytes: int
    admission: str = "fill"  # fill, always
    eviction: str = "sieve"  # sieve, lru
    idle_after_s: float = 3600.0
    origin_deadline_s: float = 30.0
    memory_limit_bytes: int = 0  # of the process; 0: a share of what it may have
    fetch_threads: int = 128
    ask_threads: int = 64
    load_threads: int = 64
    disk_threads: int = 4
    sync_interval_s: float = 30.0
    # Data of a namespace that is not attached to this server can be protected by nobody here. True:
    # it may go once it was idle for `idle_after_s`. False: it stays.
    evict_detached: bool = True
    scrub_bytes_per_s: int = -1  # of complete files, verified in the background; below 0: default

    def order(self, *, owned_last: bool = False) -> EvictionOrder:
        """Raises BadConfig for values that mean nothing."""
        if self.admission not in POLICIES:
            raise BadConfig(f"bad admission {self.admission!r}", remedy="use fill or always")
        threads = self.fetch_threads, self.ask_threads, self.load_threads, self.disk_threads
        if self.limit_bytes <= 0 or min(threads) < 1:
            raise BadConfig("the cache limit and the numbers of threads must be positive")
        try:
            return eviction_order(self.eviction, owned_last=owned_last)
        except ValueError as err:
            raise BadConfig(str(err), remedy="use sieve or lru") from err
