"""A survey of directories: their known files, those that each tier lacks, their last uses. It reads
names from the store of the master, never from the origin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, NamespaceId
from cachefs.core.services import MetadataService
from worker.tier.eviction_order import NEVER_S
from worker.views.choice import Counts, FileCounts


class KnownContents(Protocol):
    """The contents of a tier (`worker.tier.eviction_order.EvictionOrder`)."""

    def __contains__(self, key: object) -> bool: ...
    def last_use_s(self, key: bytes) -> int: ...


async def survey(
    service: MetadataService,
    tops: Sequence[bytes],
    tiers: Sequence[KnownContents],
    least_files: int,
) -> dict[bytes, FileCounts]:
    """Returns the counts of each directory at and below `tops`, with all below it, that has so many
    files and is complete in a tier. Raises the errors of the namespace."""
    counts = Counts(len(tiers), least_files)
    for top in tops:
        ino = await _ino_of(service, top)
        if ino is None:
            continue
        async for batch in service.known_files(ino, shows_unlisted=True):
            for path, one in batch:
                directory = path.rpartition(b"/")[0]
                if one.kind is Kind.DIRECTORY:
                    counts.count_unlisted(directory)
                    continue
                missing, used_s = _looked_up(service.namespace, one, tiers)
                counts.count(directory, one.ino, one.size, missing, used_s)
            await asyncio.sleep(0)  # the loop serves others
    return counts.totals()


async def _ino_of(service: MetadataService, top: bytes) -> int | None:
    """Returns a directory's ino; None for what is none. The root needs no request."""
    if not top:
        return ROOT_INO
    inode = (await service.resolve(top)).inode
    return inode.ino if inode is not None and inode.kind is Kind.DIRECTORY else None


def _looked_up(
    namespace: NamespaceId, inode: Inode, tiers: Sequence[KnownContents]
) -> tuple[list[bool], int]:
    """Returns for each tier whether it has nothing of a file, and the last known use of it: none of
    what a view or a load holds."""
    if inode.kind is not Kind.FILE or not inode.size:
        return [False] * len(tiers), 0
    key = ContentId.key_at(namespace, inode)
    missing = [key not in tier for tier in tiers]
    uses = [tier.last_use_s(key) for tier, lacks in zip(tiers, missing, strict=True) if not lacks]
    return missing, max((use_s for use_s in uses if use_s != NEVER_S), default=0)
