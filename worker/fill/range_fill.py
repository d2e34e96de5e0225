"""A fill of a page range into the cache, piece by piece, with a bounded number in flight. Loads,
migrations and fill-behind use it. Read-ahead does not: it waits for nothing, and may fill segments.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachefs.core.errors import CacheFSError, NoSpace
from cachefs.core.pages import PageRange, range_bytes, split
from worker.fill.source import Purpose
from worker.fill.transfer import PIECE_PAGES
from worker.tier.ledger import allocation

if TYPE_CHECKING:
    from worker.fill.fetch import Piece
    from worker.fill.fill import Filler
    from worker.tier.entry import Entry


@dataclass(frozen=True, slots=True)
class Limits:
    """`pieces` are in flight at once. Before each piece the fill awaits `gate(bytes)`, then calls
    `may_continue`: it ends the fill by False, or by raising a CacheFSError. `ends_on_refusal`: the
    fill ends after a piece for which the cache had no room."""

    pieces: int
    may_continue: Callable[[], bool]
    purpose: Purpose = Purpose.READ
    gate: Callable[[int], Awaitable[None]] | None = None
    ends_on_refusal: bool = False


class RangeFill:
    """One fill. `room_bytes` are reserved for pieces that are not claimed yet; the caller releases
    what `run` leaves. `origin_bytes` were fetched from the origin."""

    def __init__(self, filler: Filler, entry: Entry, limits: Limits, room_bytes: int = 0) -> None:
        self.room_bytes = room_bytes
        self.origin_bytes = 0
        self._filler = filler
        self._entry = entry
        self._limits = limits
        self._in_flight = 0
        self._error: CacheFSError | None = None
        self._refused = False
        self._loop = asyncio.get_running_loop()
        self._change: asyncio.Future[None] | None = None

    async def run(self, first: int, end: int) -> None:
        """Fills the missing pages once, and waits for those that other fills claimed. Pages without
        room, also for another fill, stay missing. Raises the first error of a piece. Cancelled:
        pieces continue."""
        entry = self._entry
        runs = [*entry.pages.missing(first, end, entry.inflight_bits)]
        for piece in (piece for run in runs for piece in split(*run, PIECE_PAGES)):
            if not await self._claim(piece):
                break
        await self._fewer_than(1)
        for page in range(first, end):
            if (future := entry.inflight.get(page)) is not None:
                with contextlib.suppress(NoSpace):  # a reader's: this fill may make room
                    await asyncio.shield(future)

    async def _claim(self, pages: PageRange) -> bool:
        """Claims the pages of a piece, except those that another fill has claimed. Returns False
        if the fill ends here."""
        entry, limits = self._entry, self._limits
        await self._fewer_than(limits.pieces)
        if limits.gate is not None:
            await limits.gate(range_bytes(entry.size, *pages))
        if (self._refused and limits.ends_on_refusal) or not limits.may_continue():
            return False
        for first, end in [*entry.pages.missing(*pages, entry.inflight_bits)]:
            share_bytes = min(self.room_bytes, allocation(range_bytes(entry.size, first, end)))
            self.room_bytes -= share_bytes
            self._in_flight += 1
            self._filler.claim(
                entry,
                first,
                end,
                background=True,
                cache_only=True,
                room_bytes=share_bytes,
                purpose=limits.purpose,
                ended=self._ended,
            )
        return True

    def _ended(self, piece: Piece, error: CacheFSError | None) -> None:
        self._in_flight -= 1
        self.origin_bytes += piece.origin_bytes
        self._error = self._error or error
        self._refused |= any(piece.entry.pages.missing(piece.first, piece.end))
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def _fewer_than(self, count: int) -> None:
        """Waits until fewer pieces are in flight. Raises the error of a piece."""
        while self._in_flight >= count and self._error is None:
            self._change = self._loop.create_future()
            await self._change
        if self._error is not None:
            raise self._error
