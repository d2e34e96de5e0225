"""Pages of directory listings, read from the store up to the progress of the origin's listing.
All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.core.errors import CacheFSError, DeadlineExceeded, Stale
from cachefs.core.messages import Dentry, Listing
from cachefs.core.model import ROOT_INO, Kind
from master.origins.late_store import is_late
from master.origins.listing import Listing as Running
from master.origins.syncer import Syncer
from master.state.freshness import DEGRADED_VALID_S, MAX_VALID_S, valid_for
from master.state.health import is_down
from master.state.records import NO_PARENT, DirectoryState, decode_inode, inode_bytes, name_of
from master.state.unchecked import ALL
from master.store.base import Store
from master.store.snapshot import Names
from master.tree import Place, Tree

PAGE_BYTES: Final = 150 << 10  # of names and records, below MAX_FRAME_BYTES
CONTINUE_S: Final = 300.0  # a directory stream may continue in a listing up to this old
UNCHECKED_VALID_S: Final = 1.0  # for pages of a directory with names that wait for a check
NEXT: Final = 16  # how many names after a directory are searched for the next directory
_UNKNOWN: Final = DirectoryState()


class Directories:
    """Listings of one namespace."""

    def __init__(self, store: Store, tree: Tree, sync: Syncer, clock: Callable[[], float]) -> None:
        self._store = store
        self._tree = tree
        self._sync = sync
        self._clock = clock

    async def list_dir(self, ino: int, after: bytes, limit: int) -> Listing:
        """See MetadataService. Returns at most `limit` (>= 1) entries and 150 KiB. Later pages
        continue in a listing up to 5 minutes old: a slow reader sees one consistent directory.
        A listing without progress until the origin's deadline continues without this caller."""
        until = asyncio.get_running_loop().time() + self._sync.deadline_s
        running: Running | None = None
        while True:
            with self._store.snapshot() as reader:
                names = Names(reader)
                place = self._tree.directory(names, ino)
                running = running or self._sync.listing(ino)
                page = self._page_now(names, place, ino, after, limit, running)
            if page is not None:
                return page
            if running is None:
                running = self._sync.list_directory(ino, place)
            elif running.error is not None:
                return self._degraded_page(ino, after, limit, place, running.error)
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0 or not await running.progress(left_s):
                cause = f"the origin's listing made no progress in {self._sync.deadline_s:g} s"
                return self._degraded_page(ino, after, limit, place, DeadlineExceeded(cause))

    def _page_now(
        self,
        names: Names,
        place: Place,
        ino: int,
        after: bytes,
        limit: int,
        running: Running | None,
    ) -> Listing | None:
        """Returns the page if the store has it. None: start a listing, or wait for one."""
        mount, now = place.mount, self._clock()
        state = names.directory(ino) or _UNKNOWN
        unchecked = self._sync.unchecked
        limit_s = UNCHECKED_VALID_S if unchecked.concerns(ino) else MAX_VALID_S
        if running is not None and running.error is None and running.safe_below != b"":
            valid_s = min(limit_s, place.valid_s(running.started_at, now))
            page = _page(names, ino, after, limit, running.safe_below, valid_s)
            return page if page.entries or running.safe_below is None else None
        listed_at = 0.0 if unchecked.covers(ino, ALL) else state.listed_at
        valid_s = min(limit_s, place.valid_s(listed_at, now))
        is_stuck = mount.health.down or is_late(self._store)
        if state.complete and is_stuck and place.interval_s != 0 and not valid_s:
            if mount.health.may_probe(now):
                self._sync.list_directory(ino, place)
            return _page(names, ino, after, limit, None, DEGRADED_VALID_S)
        going_on = after and valid_for(listed_at, CONTINUE_S, now)
        if running is None and state.complete and (valid_s or going_on):
            return _page(names, ino, after, limit, None, valid_s)
        return None

    def list_ahead(self, ino: int) -> None:
        """Starts listing a directory that will be read soon, unless that is of no use."""
        if (place := self._to_list(ino)) is not None:
            self._sync.list_directory(ino, place)

    def _to_list(self, ino: int) -> Place | None:
        """Returns the place of a directory, or None if listing it ahead is of no use."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            place = self._tree.directory(names, ino)
            state = names.directory(ino) or _UNKNOWN
        fresh = state.complete and place.valid_s(state.listed_at, self._clock())
        return None if fresh or not _is_listed_ahead(place) else place

    async def list_next(self, ino: int) -> None:
        """See MetadataService. Lists nothing where `list_ahead` would not. Raises Stale for a
        removed ino, and the origin's errors. After a cancellation the listing continues."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            file = names.place(ino)
            if file is not None and file[0] in (NO_PARENT, ROOT_INO):
                return  # nothing lies beside the root
            at = None if file is None else names.place(file[0])
            if at is None:
                raise Stale(f"inode {ino} is gone")
        directory = await self._next_directory(*at)
        if directory and self._to_list(directory) is not None:
            await self.list_dir(directory, b"", 1)

    async def _next_directory(self, above: int, after: bytes) -> int:
        """Returns the first directory among the `NEXT` names after a name, or 0. Lists the parent
        if it was never listed completely, but not if it is only stale: it may be large."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            if not _is_listed_ahead(self._tree.directory(names, above)):
                return 0
            if (names.directory(above) or _UNKNOWN).complete:
                return _first_directory(_page(names, above, after, NEXT, None, 0.0))
        left = NEXT
        while True:
            page = await self.list_dir(above, after, left)
            found = _first_directory(page)
            left, after = left - len(page.entries), page.next
            if found or not after or left <= 0:
                return found

    def _degraded_page(
        self, ino: int, after: bytes, limit: int, place: Place, err: CacheFSError
    ) -> Listing:
        """Returns the stale page after the origin is found down. Raises `err` if it is not down,
        if the directory was never listed completely, or if its interval is 0."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            state = names.directory(ino)
            known = state is not None and state.complete
            if not known or not is_down(err) or place.interval_s == 0:
                raise err
            return _page(names, ino, after, limit, None, DEGRADED_VALID_S)


def _is_listed_ahead(place: Place) -> bool:
    """Returns whether a listing can be reused later and the origin is up."""
    return place.interval_s != 0 and not place.mount.health.down


def _first_directory(page: Listing) -> int:
    inodes = (decode_inode(entry.inode) for entry in page.entries)
    return next((inode.ino for inode in inodes if inode.kind is Kind.DIRECTORY), 0)


def _page(
    names: Names, ino: int, after: bytes, limit: int, below: bytes | None, valid_s: float
) -> Listing:
    """Returns stored children with `after` < order key < `below` (None: no upper bound)."""
    found = names.raw_children(ino, after, below, limit + 1, PAGE_BYTES)
    more = len(found) > limit
    if more:
        found.pop()
    last = found[-1][0][8:] if found else b""
    if found and not more:
        more = below is not None or bool(names.raw_children(ino, last, None, 1))
    dentry, raw = Dentry, msgspec.Raw
    entries = [dentry(name_of(key[8:]), raw(inode_bytes(value))) for key, value in found]
    return Listing(entries, last if more else b"", valid_s)
