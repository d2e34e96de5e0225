"""The reasons why a load does not fit: what of a tier must stay. For people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cachefs.core.jobs import Room
from worker.store.directory import TierDirectory
from worker.store.removal import is_busy
from worker.tier.catalog import Catalog
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk
from worker.tier.maintenance import Housekeeping
from worker.tier.permission import EvictionPermission

LIMIT_S: Final = 3.0  # then what is known by then has to do
ANSWER_S: Final = 2.0
AT_ONCE: Final = 1000  # contents in one request
MOST_PROBED: Final = 2000  # files, whether they are open

Sizes = dict[bytes, int]


async def room(
    context: TierContext,
    disk: TierDisk,
    contents: Contents,
    catalog: Catalog,
    permission: EvictionPermission,
    housekeeping: Housekeeping,
) -> Room:
    """Returns the tier's room as it is now."""
    ledger, until_s = contents.ledger, context.monotonic() + LIMIT_S
    held_bytes, busy_bytes = 0, ledger.reserved_bytes + ledger.unlinked_bytes
    for entry in catalog.entries():
        if contents.is_held(entry.key):
            held_bytes += entry.allocated_bytes
        else:
            busy_bytes += entry.allocated_bytes
    others: Sizes = {}
    try:
        async for batch in housekeeping.records():
            for key, record in batch:
                if catalog.live(key) is not None:
                    continue
                if contents.is_held(key):
                    held_bytes += record.allocated_bytes
                else:
                    others[key] = record.allocated_bytes
        pinned = await _protected(context, permission, others, until_s)
        probed = [key for key in others if key not in pinned][:MOST_PROBED]
        busy_bytes += await disk.call(_busy_bytes, disk.directory, probed, others)
    except OSError as err:
        catalog.disk_fault(err)
        pinned = {}
    limit_bytes = ledger.limit_bytes - ledger.headroom_bytes - ledger.scratch_floor_bytes
    return Room(limit_bytes, held_bytes, sum(pinned.values()), busy_bytes)


async def _protected(
    context: TierContext, permission: EvictionPermission, sizes: Sizes, until_s: float
) -> Sizes:
    """Returns those that the master refuses to have evicted, as far as it answers until then."""
    found: Sizes = {}
    keys = [*sizes]
    for start in range(0, len(keys), AT_ONCE):
        if context.monotonic() >= until_s:
            break
        answer = await permission.request(keys[start : start + AT_ONCE], ANSWER_S)
        found.update((key, sizes[key]) for key in answer.refused)
    return found


def _busy_bytes(tier: TierDirectory, keys: Sequence[bytes], sizes: Sizes) -> int:
    """Returns the bytes of those that a client has open. In a thread."""
    return sum(sizes[key] for key in keys if is_busy(tier, key.hex()))
