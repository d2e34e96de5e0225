"""Transfers that bring nothing: who waits for their pages gets an error.

A transfer runs in a thread, and ends when its connector lets it. A fill does not wait for that: its
pages fail once no page has come for the deadline of origins, or for the time that a page takes at
the least rate where that is longer. The next reader's request is then a new one. The thread writes
nothing more when it returns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from cachefs.core.errors import Unreachable
from cachefs.core.model import PAGE_BYTES
from connectors.until import LEAST_BYTES_PER_S
from worker.piece import Piece, path_of
from worker.transfer import Transfer

PAGE_LIMIT_S: Final = PAGE_BYTES / LEAST_BYTES_PER_S
GRACE_S: Final = 1.0  # the source's own error comes first, and says more


def give_up_stalled(
    running: Mapping[Transfer, Piece], deadline_s: float, now: float | None = None
) -> None:
    """Fails the pages of transfers that have stood still for too long. `now` is of
    `time.monotonic`. Called in the loop."""
    before_s = (time.monotonic() if now is None else now) - max(deadline_s, PAGE_LIMIT_S) - GRACE_S
    for transfer, piece in running.items():
        if 0.0 < transfer.moved_s < before_s and not transfer.aborted:
            error = Unreachable(
                "the origin sends nothing, or too slowly", path=path_of(piece.entry)
            )
            transfer.cut(error)
            for page in [*piece.unsettled]:
                piece.settle(page, error)
