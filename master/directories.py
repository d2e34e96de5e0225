"""Directories: pages of fresh listings, from the store as far as the origin's listing has come.
All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.core.errors import CacheFSError, DeadlineExceeded
from cachefs.core.messages import Dentry, Listing
from cachefs.core.model import Inode, Kind
from master.state.freshness import DEGRADED_VALID_S, valid_for
from master.state.health import is_down
from master.store.base import Store
from master.store.records import NO_PARENT, DirectoryState, inode_bytes, name_of
from master.store.snapshot import Names
from master.sync import Listing as Running
from master.sync import Syncer
from master.tree import Place, Tree

PAGE_BYTES: Final = 150 << 10  # of names and records, below MAX_FRAME_BYTES
PAGE_WAIT_S: Final = 120.0  # for the next page of a listing under way
CONTINUE_S: Final = 300.0  # a directory stream may go on in a listing of that age
NEXT: Final = 16  # names behind a directory's among which the next directory is looked for
_UNKNOWN: Final = DirectoryState()


class Directories:
    """Listings of one namespace."""

    def __init__(self, store: Store, tree: Tree, sync: Syncer, clock: Callable[[], float]) -> None:
        self._store = store
        self._tree = tree
        self._sync = sync
        self._clock = clock

    async def list_dir(self, ino: int, after: bytes, limit: int) -> Listing:
        """See MetadataService: at most `limit` (>= 1) entries and 150 KiB. A page after the first
        continues in a listing up to 5 minutes old, so that a slow reader sees one directory."""
        until = asyncio.get_running_loop().time() + PAGE_WAIT_S
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
                raise DeadlineExceeded("the origin's listing made no progress")

    def _page_now(
        self,
        names: Names,
        place: Place,
        ino: int,
        after: bytes,
        limit: int,
        running: Running | None,
    ) -> Listing | None:
        """The page that can be answered at once; None: ask the origin, or wait for it."""
        mount, now = place.mount, self._clock()
        state = names.directory(ino) or _UNKNOWN
        if running is not None and running.error is None and running.safe_below != b"":
            valid_s = valid_for(running.started_at, place.interval_s, now)
            page = _page(names, ino, after, limit, running.safe_below, valid_s)
            return page if page.entries or running.safe_below is None else None
        valid_s = valid_for(state.listed_at, place.interval_s, now)
        if state.complete and mount.health.down and place.interval_s != 0 and not valid_s:
            if mount.health.may_probe(now):
                self._sync.list_directory(ino, place)
            return _page(names, ino, after, limit, None, DEGRADED_VALID_S)
        going_on = after and valid_for(state.listed_at, CONTINUE_S, now)
        if running is None and state.complete and (valid_s or going_on):
            return _page(names, ino, after, limit, None, valid_s)
        return None

    def list_ahead(self, ino: int) -> None:
        """Begins to list a directory that will be asked for soon, unless that is of no use."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            place = self._tree.directory(names, ino)
            state = names.directory(ino) or _UNKNOWN
        interval_s = place.interval_s
        fresh = state.complete and valid_for(state.listed_at, interval_s, self._clock())
        if interval_s != 0 and not fresh and not place.mount.health.down:
            self._sync.list_directory(ino, place)

    async def list_next(self, ino: int) -> None:
        """See MetadataService: `list_ahead` of what follows the directory of a file where both lie;
        returns once some of its names are here. Only what was never listed is listed to find out
        which it is, for it may be large. Raises Stale, and what the origin answers."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            at = names.place(ino)
            above = names.place(at[0]) if at is not None else None
            if above is None or above[0] == NO_PARENT:
                return
            place = self._tree.directory(names, above[0])
            if place.interval_s == 0 or place.mount.health.down:
                return
            state = names.directory(above[0])
            found = names.children(*above, None, NEXT) if state and state.complete else None
        if found is None:
            page = await self.list_dir(*above, NEXT)
            inodes = [msgspec.msgpack.decode(entry.inode, type=Inode) for entry in page.entries]
        else:
            inodes = [stored.inode for _, stored in found]
        following = (inode.ino for inode in inodes if inode.kind is Kind.DIRECTORY)
        if (directory := next(following, 0)) == 0:
            return
        self.list_ahead(directory)
        if (running := self._sync.listing(directory)) is not None:
            await running.progress(PAGE_WAIT_S)

    def _degraded_page(
        self, ino: int, after: bytes, limit: int, place: Place, err: CacheFSError
    ) -> Listing:
        """The page as it was known, when the origin failed. Raises `err` where it was not."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            state = names.directory(ino)
            known = state is not None and state.complete
            if not known or not is_down(err) or place.interval_s == 0:
                raise err
            return _page(names, ino, after, limit, None, DEGRADED_VALID_S)


def _page(
    names: Names, ino: int, after: bytes, limit: int, below: bytes | None, valid_s: float
) -> Listing:
    """Stored children with `after` < order key < `below` (None: to the end of the directory)."""
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
