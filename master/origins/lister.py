"""The listing of one directory in a thread: fetches a page while the previous page is committed.
Reports the changes of each page to an optional watcher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cachefs.core.errors import CacheFSError, InUse, NoSpace, NotFound
from connectors.base import Page
from connectors.pages import closing
from connectors.sorted_pages import sorted_pages
from master.origins.listing import Listing
from master.state.merge import Batch, Change, Pages
from master.store.comparison import Compared
from master.store.transaction import Merged, Transaction, transact
from master.tree import Place

if TYPE_CHECKING:
    from master.origins.syncer import Syncer


class Watcher(Protocol):
    """A receiver of the changes that a listing finds."""

    def saw(self, compared: Compared) -> None:
        """Called by the listing's thread for each part in order, in a real sync after its write."""


class _Part(NamedTuple):
    """A page whose write is in flight, and the end of the listing if it is known."""

    batch: Batch
    end: Batch | None
    written: Future[list[Merged]]


class Lister:
    """The listing of one directory; `run` is called in a thread."""

    def __init__(
        self,
        syncer: Syncer,
        loop: asyncio.AbstractEventLoop,
        listing: Listing,
        place: Place,
        watched: frozenset[bytes],
        watcher: Watcher | None,
    ) -> None:
        self._syncer = syncer
        self._watcher = watcher
        self._loop = loop
        self._listing = listing
        self._place = place
        self._watched = watched
        self._may_be_absent = listing.directory != place.mount.root and syncer.is_held(
            listing.directory
        )
        self._pages = Pages()
        self._hidden = 0
        self.empty = True  # the listing had neither shown nor hidden names
        self.has_origin_failed = False  # else an error is one of the master's store

    def run(self) -> None:
        """Lists and writes all pages. Raises the connector's errors, and Stale if the directory
        or its source was removed during the listing."""
        written: _Part | None = None
        try:
            with contextlib.closing(self._listed()) as pages:
                for page in pages:
                    batch = self._pages.add(page.entries, page.hidden)
                    self._hidden += batch.hidden
                    self.empty = self.empty and not (page.entries or page.hidden)
                    if page.last:
                        last: tuple[Batch, Batch | None] = batch, self._pages.end()
                        break
                    before, written = written, self._write(batch)
                    if before is not None:
                        self._settle(before)
                else:
                    last = self._pages.end(), None
        finally:
            if written is not None:
                self._settle(written)
        # The end is written last: a failed write must not leave a listing marked as complete.
        self._settle(self._write(*last))

    def _listed(self) -> Generator[Page, None, None]:
        scratch = self._syncer.store.scratch
        try:
            yield from listed(self._place, scratch, may_be_absent=self._may_be_absent)
        except NoSpace:  # of the directory `scratch`
            raise
        except CacheFSError:
            self.has_origin_failed = True
            raise

    def _write(self, batch: Batch, end: Batch | None = None) -> _Part:
        """Queues the write of a page. The same transaction writes the listing's end if it could
        merge the whole page."""
        listing, now, hidden = self._listing, self._syncer.now, self._hidden
        if self._syncer.stopping:
            raise InUse("the master is stopping")
        kept: list[Sequence[Change]] = []

        def one(txn: Transaction, batch: Batch) -> Merged:
            began, skipped = listing.started_at, listing.skipped()
            merged = txn.merge(listing.directory, batch, began, now, self._watched, skipped)
            if self._watcher is not None:
                kept.append(merged.compared.changes)
                self._syncer.keep(merged.compared.changes)
            if batch.last and merged.resume_after is None:
                txn.complete_listing(listing.directory, listing.started_at, hidden)
            return merged

        def merge(txn: Transaction) -> list[Merged]:
            txn.check_source(listing.directory, listing.mount.root, listing.mount.key)
            merged = one(txn, batch)
            if end is None or merged.resume_after is not None:
                return [merged]
            return [merged, one(txn, end)]

        def release(written: Future[list[Merged]]) -> None:
            for changes in kept if written.exception() else ():
                self._syncer.release(changes)

        written = transact(self._syncer.store, merge)
        written.add_done_callback(release)
        return _Part(batch, end, written)

    def _settle(self, part: _Part) -> None:
        """Waits until a part is in the store, then moves the frontier."""
        while True:
            batch, end, written = part
            merged = written.result()
            for one in merged:
                self._tell(one)
            if len(merged) == 2 and end is not None:
                batch, end = end, None
            if (cut := merged[-1].resume_after) is None:
                break
            part = self._write(batch.rest(cut), end)
        if batch.safe_below is not None:  # `finish` reports the end, after the last join
            self._loop.call_soon_threadsafe(self._listing.advance, batch.safe_below)

    def _tell(self, merged: Merged) -> None:
        """Wakes clients first: the watcher may need long to count names in removed directories."""
        self._loop.call_soon_threadsafe(self._syncer.wake)
        removed = merged.removed_directories
        if removed:
            self._loop.call_soon_threadsafe(self._syncer.directories_removed)
        if self._watcher is None:
            return
        try:
            self._watcher.saw(merged.compared)
        finally:
            self._syncer.release(merged.compared.changes)
            if removed:
                self._loop.call_soon_threadsafe(self._syncer.directories_removed)


def listed(
    place: Place, scratch: str | None, *, may_be_absent: bool
) -> Generator[Page, None, None]:
    """Yields the pages of a directory in order. A directory that the origin lacks yields no page if
    `may_be_absent` (a mount below holds it). `scratch`: as of `sorted_pages`."""
    connector = place.mount.connector
    try:
        with closing(connector.list_dir(place.path)) as pages:
            if connector.capabilities.ordered_listings:
                yield from pages
            else:
                yield from sorted_pages(pages, scratch)
    except NotFound:
        if not may_be_absent:
            raise
