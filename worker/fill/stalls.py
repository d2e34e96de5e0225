"""Stalled transfers: readers that wait for their pages get an error.

A transfer runs in a thread and ends when its connector returns. A fill does not wait for that: its
pages fail once no page has arrived within the origins' deadline, or within the time of a page at
the minimum rate if that is longer. The next reader's request is then a new one. When the
connector returns, the thread writes nothing more.

A thread that has not returned after its transfer was cut is stuck. Another thread replaces it, as
far as `Threads.count_out` allows. A source with `MOST_STUCK` stuck threads gets no more: requests
for it fail at once until one of those threads returns, so other sources keep theirs.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from cachefs.core.errors import CacheFSError, Unreachable
from cachefs.core.model import PAGE_BYTES, NamespaceId, Origin
from connectors.deadline import LEAST_BYTES_PER_S
from worker.fill.fetch import Piece, described, path_of
from worker.runtime.memory import buffer_bytes
from worker.stats.by_path import url_of

if TYPE_CHECKING:
    from worker.fill.supply import Supply
    from worker.fill.transfer import Transfer
    from worker.tier.context import TierContext
    from worker.tier.entry import Entry

log = logging.getLogger(__name__)

PAGE_LIMIT_S: Final = PAGE_BYTES / LEAST_BYTES_PER_S
GRACE_S: Final = 1.0  # the source's own error is more precise, and arrives first
MOST_STUCK: Final = 16  # threads of one source

Key = tuple[NamespaceId, str]


class SourceStuck(Unreachable):
    """Raised where requests to the source hang in as many threads as it may have. A fill never
    retries it: the retry would wait for its deadline."""

    retryable = False


class Stalls:
    """The transfers in progress. Owned by the loop; any thread may call `check`."""

    def __init__(self, context: TierContext, supply: Supply) -> None:
        self._context = context
        self._supply = supply
        self.running: dict[Transfer, Piece] = {}
        self._cut: dict[Transfer, Key] = {}
        self._stuck: collections.Counter[Key] = collections.Counter()

    def began(self, transfer: Transfer, piece: Piece) -> None:
        """Records the start of a request. The piece's buffer counts from now until `ended`."""
        self.running[transfer] = piece
        self._count_buffer(piece, buffer_bytes(piece.size_bytes))

    def check(self, origin: Origin) -> None:
        """Raises SourceStuck if the source may get no more requests. Thread-safe."""
        if self._stuck[_key(origin)] >= MOST_STUCK:
            raise SourceStuck(
                f"{MOST_STUCK} requests to {url_of(origin)} hang, and no more are made until one"
                " of them ends",
                remedy="see to that server or file system",
            )

    def cut(self, now: float | None = None) -> list[tuple[Transfer, Piece]]:
        """Fails the pages of stalled transfers, and returns these transfers. `now` is of
        `time.monotonic`."""
        limit_s = max(self._context.config.origin_deadline_s, PAGE_LIMIT_S) + GRACE_S
        before_s = (time.monotonic() if now is None else now) - limit_s
        found = [
            (transfer, piece)
            for transfer, piece in self.running.items()
            if 0.0 < transfer.moved_s < before_s and not transfer.aborted
        ]
        for transfer, piece in found:
            self._cut_one(transfer, piece)
        return found

    def _cut_one(self, transfer: Transfer, piece: Piece) -> None:
        error = Unreachable("the origin sends nothing, or too slowly", path=path_of(piece.entry))
        transfer.cut(error)
        piece.settle_all(error)
        piece.tell_ended(error)
        self.origin_failed(piece.entry, error)
        key = self._cut[transfer] = _key(piece.entry.origin)
        self._stuck[key] += 1
        if self._stuck[key] == MOST_STUCK:
            log.warning(
                "%d requests to %s hang: reads of it fail at once until one of them ends",
                MOST_STUCK,
                url_of(piece.entry.origin),
            )
        self._count_out()

    def disk_writes(self) -> list[Hashable]:
        """Returns a unique key for each disk operation in progress."""
        running = [*self.running]
        return [(transfer, step) for transfer in running if (step := transfer.at_disk) & 1]

    def leave_tier(self) -> None:
        """Aborts the transfers to a disk that hangs. Other threads replace those stuck there."""
        stuck = sum(transfer.at_disk & 1 for transfer in self.running)
        for transfer, piece in self.running.items():
            if not piece.past:
                transfer.abort()
        self._supply.count_out(stuck)

    def ended(self, transfer: Transfer) -> None:
        """Records that the thread of a transfer has returned, and counts its bytes."""
        piece = self.running.pop(transfer)
        self._count_buffer(piece, -buffer_bytes(piece.size_bytes))
        self._count(transfer, piece)
        key = self._cut.pop(transfer, None)
        if key is not None:
            self._stuck[key] -= 1
            self._stuck += collections.Counter()  # drops what is zero
            self._count_out()

    def failed(self, entry: Entry, error: CacheFSError) -> None:
        """Counts and logs the error of a fill."""
        self._context.counters.errors[error.code] += 1
        self.origin_failed(entry, error)
        if not isinstance(error, SourceStuck):  # logged once, for all of them
            log.warning("%s", described(entry, error))

    def origin_failed(self, entry: Entry, error: CacheFSError) -> None:
        """Records for the health that a request to the origin failed."""
        context = self._context
        url = url_of(entry.origin)
        context.origins.failed(url, error, context.monotonic(), context.wall())

    def _count(self, transfer: Transfer, piece: Piece) -> None:
        counters = self._context.counters
        moved = transfer.peer_bytes or transfer.tier_bytes
        counters.origin_requests += transfer.origin_bytes > 0 or not moved
        counters.tier_bytes += transfer.tier_bytes
        counters.origin_bytes += transfer.origin_bytes
        piece.origin_bytes += transfer.origin_bytes
        if transfer.origin_bytes:
            self._context.origins.succeeded(url_of(piece.entry.origin))
        counters.peer_bytes += transfer.peer_bytes
        self._context.paths.brought(piece.entry.origin, transfer.origin_bytes, transfer.peer_bytes)

    def _count_buffer(self, piece: Piece, size_bytes: int) -> None:
        if piece.background:
            self._context.memory.windows_bytes += size_bytes
        else:
            self._context.memory.buffers_bytes += size_bytes

    def _count_out(self) -> None:
        self._supply.count_out(len(self._cut), cause="origin")


def _key(origin: Origin) -> Key:
    return origin.content.namespace, origin.ufs
