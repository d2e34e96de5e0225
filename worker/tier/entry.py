"""A live content: one that is open, being filled, or waits for its commit. Owned by the loop.

An entry is in the catalog while it has users (`users`) or uncommitted records (`uncommitted`). Only
the catalog changes its `state` (`worker.tier.entry_state`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.model import SMALL_FILE_BYTES, Origin
from cachefs.core.pages import PageMap, page_count
from worker.store.directory import TierDirectory
from worker.store.holds import Hold
from worker.tier.entry_state import State


class Ahead(NamedTuple):
    """Pages [first, end) that read-ahead wants, started a few at a time. `downwards`: the highest
    first."""

    first: int
    end: int
    downwards: bool = False


_NOTHING_AHEAD: Final = Ahead(0, 0)


class Entry:
    """A live content. `fd` is the cache file, opened for reading and writing, -1 while it does not
    exist. Pages in `inflight` are being filled. Their future is done when the page is in the cache
    file or in a segment, or fails with the typed error. It may also be done without either: the
    waiter checks again."""

    __slots__ = (
        "ahead", "allocated_bytes", "asked_in", "busy_pieces", "committing", "completing",
        "creation", "failed", "fd", "has_record", "hold", "hold_when_whole", "inflight",
        "inflight_bits", "key", "looking", "measured_bytes", "name", "on_commit", "origin",
        "page_count", "pages", "size", "state", "uncommitted", "unrecorded", "users",
    )  # fmt: skip

    def __init__(self, origin: Origin, key: bytes, state: State) -> None:
        self.state = state
        self.origin = origin  # of this content: its policies may change, its size does not
        self.size = origin.size
        self.page_count = page_count(origin.size)
        self.key = key
        self.name = key.hex()
        self.pages = PageMap(origin.size)
        self.fd = -1
        self.allocated_bytes = 0  # as counted
        self.measured_bytes = -1  # as last measured, where only threads may access the disk
        self.unrecorded: dict[int, int | None] = {}  # page -> checksum, not yet submitted
        self.committing: dict[int, int | None] = {}  # the same, submitted and not yet committed
        self.uncommitted = 0  # submissions to the index that are not committed
        self.has_record = False  # committed
        self.on_commit: list[Callable[[], None]] = []  # see `committed`
        self.hold: Hold | None = None  # as recorded
        self.hold_when_whole: Hold | None = None  # it is to be held once it is complete
        self.inflight: dict[int, asyncio.Future[None]] = {}
        self.inflight_bits = 0
        self.asked_in: dict[int, int] = {}  # page for which peers may be waited -> since epoch
        self.busy_pieces = 0
        self.ahead = _NOTHING_AHEAD
        self.users = 0
        self.looking: asyncio.Task[None] | None = None  # until it is known what is cached
        self.completing = False
        self.failed: CacheFSError | None = None
        self.creation = threading.Lock()  # of the file in a thread, against detaching in the loop

    @property
    def recorded(self) -> bool:
        """True if an index record exists or is submitted."""
        return self.state is State.RECORDED or self.state is State.PUBLISHED

    @property
    def published(self) -> bool:
        """True if clients can open the file without a request."""
        return self.state is State.PUBLISHED

    @property
    def detached(self) -> bool:
        """True if the file was unlinked, or the tier is bypassed."""
        return self.state is State.DETACHED

    @property
    def small(self) -> bool:
        return self.size <= SMALL_FILE_BYTES

    @property
    def complete(self) -> bool:
        return self.pages.complete and self.fd >= 0

    def claim(
        self, first: int, end: int, loop: asyncio.AbstractEventLoop, epoch: int | None = None
    ) -> None:
        """Marks pages as being filled; none is claimed already. `epoch`: a peer may fill them, by
        the view of that epoch or a later one."""
        for page in range(first, end):
            assert page not in self.inflight, f"page {page} is claimed twice"
            self.inflight[page] = loop.create_future()
        self.inflight_bits |= (1 << end) - (1 << first)
        if epoch is not None:
            self.asked_in.update(dict.fromkeys(range(first, end), epoch))

    def settle(self, page: int, error: CacheFSError | None = None) -> None:
        """Ends a claim; only who made it may, once."""
        future = self.inflight.pop(page)
        self.inflight_bits &= ~(1 << page)
        self.asked_in.pop(page, None)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # perhaps no caller waits: that is no mistake

    def raise_failed(self) -> None:
        """Raises the error of the file, if it has one, without the frames of those that got it
        before: it would keep them as long as the file is open."""
        if self.failed is not None:
            raise self.failed.with_traceback(None)

    def lacks_records(self, first: int, end: int) -> bool:
        """Returns whether cached pages of [first, end) are to be submitted to the index."""
        return any(first <= page < end for page in self.unrecorded)

    def committed(self) -> None:
        """Ends the waits for a commit: nothing is uncommitted, or the disk hangs."""
        waiting, self.on_commit = self.on_commit, []
        for call in waiting:
            call()

    def next_commit(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Done at the next `committed`."""
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.on_commit.append(wake)
        return waiter

    def make_file(self, tier: TierDirectory) -> None:
        """The cache file, unless there is one; in a thread, or where that does not block. It has a
        name only where the index has nothing: else it would replace a file of that name, and its
        holes would count as the pages of that. Raises OSError."""
        if self.fd >= 0:
            return
        with self.creation:
            if self.fd < 0 and self.state is State.EMPTY:
                self.fd = tier.create(self.name, self.size)
            elif self.fd < 0:
                self.fd = tier.scratch_file(self.size)


def stray(origin: Origin, key: bytes) -> Entry:
    """Returns a separate entry for a caller that cannot wait."""
    entry = Entry(origin, key, State.DETACHED)
    entry.users = 1
    return entry
