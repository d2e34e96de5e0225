"""The status of one tier: plain values for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefs.core.policies import shown
from cachefs.core.units import format_size
from worker.fill.segments import Segments
from worker.runtime.memory import PROCESS_BYTES
from worker.tier.catalog import Catalog
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk
from worker.tier.maintenance import count_memory
from worker.tier.unlinked import UnlinkedOpenFiles

TOLD: Final = (
    "hits", "misses", "hit_bytes", "peer_bytes", "origin_bytes", "fills_in_flight",
    "evicted_bytes", "slow_fills", "quota_used_bytes", "origins",
)  # fmt: skip
TOLD_PATHS: Final = 16
_OF_TIER: Final = ("path", "kind", "state", "cause", "is_full", "limit_bytes", "used_bytes")


@dataclass(frozen=True, slots=True)
class TierStatus:
    """The parts of a tier that its status shows."""

    context: TierContext
    disk: TierDisk
    contents: Contents
    catalog: Catalog
    segments: Segments
    leftovers: UnlinkedOpenFiles

    def tree(self) -> dict[str, Any]:
        """Returns numbers and texts; sizes in bytes, counts since the start of the process."""
        context, contents = self.context, self.contents
        counters, ledger, config = context.counters, contents.ledger, context.config
        return {
            "limit_bytes": ledger.limit_bytes,
            "used_bytes": ledger.used_bytes,
            "reserved_bytes": ledger.reserved_bytes,
            "admission": config.admission,
            "eviction": config.eviction,
            "memory": self._memory(),
            "tiers": [self._tier()],
            "hits": counters.hits,
            "hit_bytes": counters.hit_bytes,
            "misses": counters.misses,
            "origin_bytes": counters.origin_bytes,
            "peer_bytes": counters.peer_bytes,
            "tier_bytes": counters.tier_bytes,
            "origin_requests": counters.origin_requests,
            "fills_in_flight": counters.fills_in_flight,
            "fill_s": counters.fill_s.status(),
            "refused": counters.refused,
            "paths": context.paths.counts(),
            "origins": context.origins.rows(context.monotonic()),
            "slow_fills": context.slowest.rows(context.monotonic()),
            "evicted_files": dict(counters.evicted_files),
            "evicted_bytes": counters.evicted_bytes,
            "freed_files": counters.freed_files,
            "quota_used_bytes": {
                shown(path): used for path, used in contents.charges.used().items()
            },
            "verified_files": counters.verified,
            "bad_pages": counters.bad_pages,
            "scrubbed_bytes": counters.scrubbed_bytes,
            "errors": dict(counters.errors),
        }

    def _memory(self) -> dict[str, Any]:
        """The memory budget, and what of it is taken by what."""
        count_memory(self.context, self.disk, self.contents, self.catalog)
        memory = self.context.memory
        return {
            "limit_bytes": memory.limit_bytes,
            "used_bytes": memory.used_bytes,
            "process_bytes": PROCESS_BYTES,
            **memory.parts(),
        }

    def _tier(self) -> dict[str, Any]:
        context, disk, ledger = self.context, self.disk, self.contents.ledger
        over = (
            f"above its limit by {format_size(ledger.over_limit_bytes)}: it takes no files for now"
        )
        return {
            "path": context.config.cache_dir,
            "state": disk.health.state(context.monotonic()),
            "cause": disk.health.cause or (over if ledger.over_limit_bytes else ""),
            "is_full": disk.health.is_full,
            "limit_bytes": ledger.limit_bytes,
            "over_limit_bytes": ledger.over_limit_bytes,
            "used_bytes": ledger.used_bytes,
            "cached_bytes": ledger.cached_bytes,
            "unlinked_bytes": ledger.unlinked_bytes,
            "unlinked_files": len(self.leftovers),
            "scratch_bytes": ledger.scratch_bytes,
            "scratch_limit_bytes": ledger.scratch_limit_bytes,
            "segments": len(self.segments),
            "overhead_bytes": ledger.overhead_bytes,
            "files": disk.directory.index.file_count,
            "commits_waiting": disk.writer.waiting,
            "live_files": len(self.catalog),
        }


def facts(status: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a worker sends to its master with every heartbeat: the parts of its status that
    are shown of many workers together, and the most used paths."""
    found = {name: status[name] for name in TOLD}
    used = sorted(status["paths"].items(), key=lambda one: -sum(one[1].values()))
    found["paths"] = dict(used[:TOLD_PATHS])
    found["tiers"] = [
        {name: tier[name] for name in _OF_TIER if name in tier} for tier in status["tiers"]
    ]
    return found
