"""The quotas that refused files of a load job, and whether one is full on all workers. Pure.

Each worker has a share of a quota. Files larger than the rest of the share fail one by one. Once
almost nothing is left on any worker, and all remaining paths lie below the quota, no further file
can be loaded. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefs.core.jobs import FullQuota
from cachefs.core.policies import above

LEFT: Final = 1 / 64  # free fraction at or below which a quota counts as full
FOR_S: Final = 60.0  # validity of a worker's report


class QuotaExhaustion:
    """The refusals of one job, by quota and worker."""

    def __init__(self) -> None:
        self._said: dict[bytes, dict[str, tuple[float, FullQuota]]] = {}

    def note(self, worker: str, full: FullQuota, now: float) -> None:
        said = self._said.setdefault(full.path, {})
        if any(one.quota_bytes != full.quota_bytes for _, one in said.values()):
            said.clear()  # the quota was changed
        said[worker] = now, full

    def full(self, now: float, left: Sequence[bytes]) -> FullQuota | None:
        """Returns a full quota that covers all paths in `left`, with totals over all workers."""
        for path, said in self._said.items():
            fresh = [one for at_s, one in said.values() if at_s + FOR_S > now]
            limit_bytes = sum(one.limit_bytes for one in fresh)
            used_bytes = sum(min(one.used_bytes, one.limit_bytes) for one in fresh)
            quota_bytes = fresh[0].quota_bytes if fresh else 1
            is_full = min(limit_bytes, used_bytes) >= quota_bytes * (1 - LEFT)
            if is_full and all(path in above(one) for one in left):
                return FullQuota(path, quota_bytes, used_bytes, quota_bytes)
        return None

    def clear(self) -> None:
        self._said.clear()
