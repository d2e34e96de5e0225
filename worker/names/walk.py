"""Every file below a directory, asked of a master batch by batch. A master that forgot the walk (it
was restarted) is asked anew from the beginning, and what was told before is passed over.
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
    """Batches in the master's order, no file twice. Raises what `ask` does; PositionGone for a walk
    that was forgotten again and again, or whose last file is gone at a new start."""
    cursor, starts = b"", 1
    told: bytes | None = None  # the last file that was passed on
    passing = False  # up to it
    while True:
        try:
            answer = await ask(ino, known, cursor)
        except PositionGone:
            if not cursor or starts == MOST_STARTS:
                raise
            cursor, starts, passing = b"", starts + 1, told is not None
            continue
        batch, passing = _behind(answer.files, told) if passing else (answer.files, False)
        if batch:
            told = batch[-1][0]
            yield batch
        cursor = answer.cursor
        if not cursor:
            break
    if passing:
        raise PositionGone("the directory changed while it was walked", remedy="start again")


def _behind(batch: Batch, path: bytes | None) -> tuple[Batch, bool]:
    """What comes after `path`, and whether it is still to come."""
    for i, (name, _) in enumerate(batch):
        if name == path:
            return batch[i + 1 :], False
    return [], True
