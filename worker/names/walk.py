"""A walk of all files below a directory, requested from a master batch by batch. If the master has
lost the walk (it was restarted), the walk restarts and skips the files already yielded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from cachefs.core.cluster import Walked
from cachefs.core.errors import PositionGone
from cachefs.core.model import Inode

MOST_STARTS: Final = 10

Batch = list[tuple[bytes, Inode]]
Ask = Callable[[int, bool, bytes], Awaitable[Walked]]  # ino, known, cursor


async def files(ask: Ask, ino: int, *, known: bool) -> AsyncIterator[Batch]:
    """Yields batches in the master's order, no file twice. Raises what `ask` raises; PositionGone
    if the master lost the walk `MOST_STARTS` times, or the last yielded file no longer exists."""
    cursor, starts = b"", 1
    last: bytes | None = None  # the last file that was yielded
    skipping = False  # up to that file, after a restart
    while True:
        try:
            reply = await ask(ino, known, cursor)
        except PositionGone:
            if not cursor or starts == MOST_STARTS:
                raise
            cursor, starts, skipping = b"", starts + 1, last is not None
            continue
        batch, skipping = _after(reply.files, last) if skipping else (reply.files, False)
        if batch:
            last = batch[-1][0]
            yield batch
        cursor = reply.cursor
        if not cursor:
            break
    if skipping:
        raise PositionGone("the directory changed while it was walked", remedy="start again")


def _after(batch: Batch, path: bytes | None) -> tuple[Batch, bool]:
    """Returns the files after `path`, and whether a later batch has `path`."""
    for i, (name, _) in enumerate(batch):
        if name == path:
            return batch[i + 1 :], False
    return [], True
