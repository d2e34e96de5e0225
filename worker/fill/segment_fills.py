"""The transfers of fills into segments. Owned by the loop; threads run them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.fill.segment import make_file, no_file
from worker.fill.transfer import CallInLoop, DiskFault, Transfer

if TYPE_CHECKING:
    from worker.fill.attempts import Attempts
    from worker.fill.fetch import FailedAttempt, Piece
    from worker.fill.segment import Segment
    from worker.fill.segments import Segments
    from worker.fill.stalls import Stalls
    from worker.fill.supply import Supply
    from worker.tier.context import TierContext
    from worker.tier.disk import TierDisk


@dataclass(eq=False)
class SegmentFills:
    """Those of one tier."""

    _context: TierContext
    _disk: TierDisk
    _supply: Supply
    _segments: Segments
    _stalls: Stalls
    _attempts: Attempts

    async def fill(
        self, piece: Piece, segment: Segment, begun: FailedAttempt | None = None
    ) -> None:
        """Fills all of a segment. Raises the error that ended the fill."""
        await self._attempts.run(
            piece,
            segment.first,
            segment.end,
            functools.partial(self.transfer, piece, segment),
            functools.partial(self.run, piece, segment),
            begun,
        )

    async def fill_transit(
        self, piece: Piece, segment: Segment, begun: FailedAttempt | None
    ) -> None:
        """Fills the segment of a transit, and ends its transfer. Raises NoSpace where the disk
        failed, and the error that ended the fill."""
        try:
            await self.fill(piece, segment, begun)
        except DiskFault as fault:
            cause = "the cache disk failed a write of the transit window"
            raise no_file(fault, cause) from fault
        else:
            self._have_last(piece, segment)
        finally:
            self._segments.filled(segment)

    def finish(self, piece: Piece, segment: Segment) -> None:
        """Ends the first transfer of a transit, which has all bytes."""
        self._have_last(piece, segment)
        self._segments.filled(segment)

    def transfer(self, piece: Piece, segment: Segment, first: int) -> Transfer:
        """Returns a transfer of the pages from `first` on."""

        def on_page(call: CallInLoop, page: int, checksum: int) -> None:
            if piece.transit and page == piece.end - 1:
                piece.last = page, checksum  # reported with the end of the transfer
            else:
                call(self._have_page, piece, segment, page, checksum)

        origin, wake = piece.entry.origin, self._disk.wake.call
        return Transfer(origin, first, segment.end, segment.start, on_page, wake, segment.span)

    def run(self, piece: Piece, segment: Segment, transfer: Transfer) -> None:
        """Runs a transfer, in a thread."""
        self._stalls.check(piece.entry.origin)
        self._make_file(segment, transfer)
        transfer.run(self._supply.source, segment.fd, piece.purpose)

    def store(self, segment: Segment, transfer: Transfer, body: memoryview) -> None:
        """Writes all of a small file: in a thread, or in the loop if the tier is in memory."""
        self._make_file(segment, transfer)
        transfer.store(segment.fd, body)

    def open_file(self, segment: Segment, transfer: Transfer) -> int:
        """Returns the file of a segment for a download: in a thread, or in the loop if the tier is
        in memory."""
        self._make_file(segment, transfer)
        return segment.fd

    def _make_file(self, segment: Segment, transfer: Transfer) -> None:
        transfer.raise_if_aborted()
        transfer.at_disk += 1
        make_file(segment, self._disk.directory)
        transfer.at_disk += 1

    def _have_last(self, piece: Piece, segment: Segment) -> None:
        if piece.last is not None:
            self._have_page(piece, segment, *piece.last)

    def _have_page(self, piece: Piece, segment: Segment, page: int, checksum: int) -> None:
        segment.checksums.append(checksum)
        segment.ready_end = page + 1
        self._context.arrivals.came(piece.entry.origin)
        piece.settle(page)
