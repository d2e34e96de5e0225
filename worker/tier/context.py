"""The surroundings of one tier: settings, clocks, the master's service, memory budget, counters."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cachefs.core.model import NamespaceId
from cachefs.core.services import MetadataService
from worker.runtime.clocks import Clocks
from worker.runtime.memory import MemoryBudget
from worker.runtime.tasks import Tasks
from worker.stats.arrivals import LastPageTimes
from worker.stats.by_path import PathTally
from worker.stats.counters import Counters
from worker.stats.origin_failures import OriginFailures
from worker.stats.slowest import Slowest
from worker.tier.config import WorkerConfig


def _new_tally() -> PathTally:
    return PathTally(random.randrange)


@dataclass(slots=True)
class TierContext:
    """`metadata` returns the master's service of a namespace. It raises NotFound if the namespace
    is not attached. `tasks` owns the tasks of the tier."""

    config: WorkerConfig
    clocks: Clocks
    metadata: Callable[[NamespaceId], MetadataService]
    memory: MemoryBudget
    arrivals: LastPageTimes = field(default_factory=LastPageTimes)
    counters: Counters = field(default_factory=Counters)
    paths: PathTally = field(default_factory=_new_tally)
    origins: OriginFailures = field(default_factory=OriginFailures)
    slowest: Slowest = field(default_factory=Slowest)
    tasks: Tasks = field(default_factory=Tasks)
    _metadata_bytes: int = 0  # as counted in `memory`
    _tier_bytes: int = 0

    def monotonic(self) -> float:
        """Returns the monotonic clock, in seconds."""
        return self.clocks.monotonic()

    def wall(self) -> float:
        """Returns the wall clock, in seconds since the epoch."""
        return self.clocks.wall()

    def wall_s(self) -> int:
        return int(self.clocks.wall())

    def count_memory(self, metadata_bytes: int, tier_bytes: int) -> None:
        """Replaces this tier's share of the memory budget."""
        self.memory.metadata_bytes += metadata_bytes - self._metadata_bytes
        self.memory.tiers_bytes += tier_bytes - self._tier_bytes
        self._metadata_bytes, self._tier_bytes = metadata_bytes, tier_bytes
