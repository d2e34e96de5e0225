"""A survey of directories: their known files, and those that each tier lacks. It reads names from
the store of the master, never from the origin."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

from cachefs.core.model import ContentId, Inode, Kind, NamespaceId
from cachefs.core.services import MetadataService
from worker.views.choice import Counts, FileCounts


async def survey(
    service: MetadataService, tops: Sequence[bytes], orders: Sequence[Container[bytes]]
) -> dict[bytes, FileCounts]:
    """Returns the counts of each directory at and below `tops`, with all below it. `orders`: the
    contents of each tier. Raises the errors of the namespace."""
    counts = Counts(len(orders))
    for top in tops:
        inode = (await service.resolve(top)).inode
        if inode is None or inode.kind is not Kind.DIRECTORY:
            continue
        async for batch in service.known_files(inode.ino):
            for path, one in batch:
                missing = _missing(service.namespace, one, orders)
                counts.count(path.rpartition(b"/")[0], one.ino, one.size, missing)
            await asyncio.sleep(0)  # the loop serves others
    return counts.totals()


def _missing(
    namespace: NamespaceId, inode: Inode, orders: Sequence[Container[bytes]]
) -> list[bool]:
    """Returns for each tier whether it has nothing of a file."""
    if inode.kind is not Kind.FILE or not inode.size:
        return [False] * len(orders)
    key = ContentId.key_at(namespace, inode)
    return [key not in order for order in orders]
