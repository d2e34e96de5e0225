"""A piece: a page range of one content with a fill in flight. Owned by the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.model import PAGE_BYTES
from cachefs.core.pages import ByteRange, page_span, range_bytes
from worker.fill.source import NO_EPOCH, Purpose
from worker.fill.transfer import Transfer
from worker.stats.by_path import url_of
from worker.tier.entry import Entry
from worker.tier.ledger import allocation

if TYPE_CHECKING:
    from worker.fill.segment import Segment


class Piece:
    """The page range of one fill. `room_bytes`: reserved in the ledger and not used yet."""

    __slots__ = (
        "background", "cache_only", "end", "ended", "entry", "first", "is_counted", "last",
        "origin_bytes", "past", "purpose", "room_bytes", "segment", "size_bytes", "started_s",
        "transit", "unsettled", "whole",
    )  # fmt: skip

    def __init__(self, entry: Entry, first: int, end: int) -> None:
        self.entry = entry
        self.first = first
        self.end = end
        self.size_bytes = range_bytes(entry.size, first, end)
        self.unsettled = set(range(first, end))  # claimed pages whose waiters have no result yet
        self.room_bytes = 0
        self.started_s = 0.0  # monotonic
        self.background = False  # no reader waits for it (yet)
        self.cache_only = False  # if the cache refuses it, the fill ends
        self.whole = False  # a segment is of use only with all pages
        self.past = False  # past the tier's disk, into memory
        self.transit = False  # into `segment`, which has room for all of it
        self.purpose = Purpose.READ
        self.last: tuple[int, int] | None = None  # the last page of a transfer, with its checksum
        self.origin_bytes = 0  # received for this piece
        self.is_counted = False  # in `fills_in_flight`
        self.segment: Segment | None = None  # the destination of the transfer in progress
        self.ended: Callable[[Piece, CacheFSError | None], None] | None = None

    @property
    def offset(self) -> int:
        return self.first * PAGE_BYTES

    @property
    def span(self) -> ByteRange | None:
        """The bytes to fetch, if these are not all bytes of the pages."""
        return None

    @property
    def is_all(self) -> bool:
        """True if the piece is the whole file: no other piece writes to it."""
        return self.end - self.first == self.entry.page_count

    @property
    def is_small(self) -> bool:
        """True if the piece is a whole file of one page."""
        return self.end == 1 and self.is_all

    @property
    def is_for_nobody(self) -> bool:
        """True if no reader waits for the piece: a load, a prefetch, or the completion of a
        file."""
        return self.background and (self.cache_only or self.transit)

    @property
    def need_bytes(self) -> int:
        """The cache room that the piece needs."""
        return allocation(self.size_bytes)

    @property
    def cacheable(self) -> bool:
        entry = self.entry
        return not self.past and entry.failed is None and not entry.detached

    def ask_peers(self) -> None:
        """Makes the piece a `CUT_OFF`: peers that wait for its pages do so no longer, since it may
        have to wait for them."""
        self.purpose = Purpose.CUT_OFF
        self.entry.asked_in.update(dict.fromkeys(self.unsettled, NO_EPOCH))

    def tell_ended(self, error: CacheFSError | None = None) -> None:
        """Tells the owner of the piece of its end. Later calls are ignored."""
        ended, self.ended = self.ended, None
        if ended is not None:
            ended(self, error)

    def settle_all(self, error: CacheFSError | None = None) -> None:
        """Resolves the futures of all pages that have none yet."""
        for page in [*self.unsettled]:
            self.settle(page, error)

    def settle(self, page: int, error: CacheFSError | None = None) -> None:
        """Resolves the page's future. Later calls are ignored."""
        if page in self.unsettled:
            self.unsettled.discard(page)
            self.entry.settle(page, error)


class Part(Piece):
    """The bytes `span` of a file, for a single read. A part claims no pages and bypasses the
    tier's disk. `done` is set when its bytes are in its segment, or the fill has failed."""

    __slots__ = ("_span", "done", "has_reader")

    def __init__(self, entry: Entry, span: ByteRange, done: asyncio.Future[None]) -> None:
        super().__init__(entry, *page_span(span[0], span[1] - span[0]))
        self.size_bytes = span[1] - span[0]
        self.unsettled = {self.end - 1}
        self.past = True
        self.done = done
        self.has_reader = True
        self._span = span

    @property
    def offset(self) -> int:
        return self._span[0]

    @property
    def span(self) -> ByteRange:
        return self._span

    def ask_peers(self) -> None:
        """Makes the part a `CUT_OFF`. No peer waits for it."""
        self.purpose = Purpose.CUT_OFF

    def settle(self, page: int, error: CacheFSError | None = None) -> None:
        """Resolves `done` for the last page. Later calls are ignored."""
        if page not in self.unsettled:
            return
        self.unsettled.discard(page)
        if self.done.done():  # the reader has left
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            self.done.exception()  # marks it as retrieved: the reader may be cancelled


class FailedAttempt(NamedTuple):
    """The first transfer of a piece, which failed, and its error."""

    transfer: Transfer
    error: BaseException


def path_of(entry: Entry) -> str:
    path = entry.origin.path.decode("utf-8", "backslashreplace")
    return f"{url_of(entry.origin)}/{path}"


def described(entry: Entry, error: CacheFSError) -> str:
    path = entry.origin.path.decode(errors="replace")
    return error.one_line() if error.path else f"{path}: {error.one_line()}"
