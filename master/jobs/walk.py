"""A walk over the files below a path in the order of their whole paths, from any path on.

Each directory is walked in the order of its order keys, and its subdirectories at their places. So
a path is a position, even if earlier names change. There are two sources of pages. `FreshPages`
lists stale directories at the origin. `StoredPages` reads the store, up to another walk's position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from cachefs.core.errors import CacheFSError, NotADirectory, NotFound, Stale
from cachefs.core.messages import LIST_LIMIT, Listing
from cachefs.core.model import Inode, Kind
from connectors.base import order_key
from master.state.records import decode_inode, name_of
from master.store.base import Store
from master.store.snapshot import Names
from master.tree import join

AHEAD: Final = 6  # directories listed ahead

Entries = list[tuple[bytes, Inode]]  # order key, inode


class ChildrenPage(NamedTuple):
    """Children of a directory. `after`: the key to continue after, b"" at the end. `blocked`: more
    children may exist but must not be read yet."""

    entries: Entries
    after: bytes
    blocked: bool = False


class PageSource(Protocol):
    """A source of directory pages, called by the walk."""

    async def page(self, ino: int, path: bytes, after: bytes) -> ChildrenPage:
        """Returns children after an order key, of the directory at a path."""

    def ahead(self, inos: Sequence[int]) -> None:
        """Announces the directories that the walk reads next."""


class FreshPages:
    """Pages of fresh listings."""

    def __init__(
        self,
        list_dir: Callable[[int, bytes, int], Awaitable[Listing]],
        ahead: Callable[[int], None],
    ) -> None:
        self._list_dir = list_dir
        self._ahead = ahead

    async def page(self, ino: int, path: bytes, after: bytes) -> ChildrenPage:
        await asyncio.sleep(0)
        listing = await self._list_dir(ino, after, LIST_LIMIT)
        entries = []
        for dentry in listing.entries:
            inode = decode_inode(dentry.inode)
            entries.append((order_key(dentry.name, inode.kind is Kind.DIRECTORY), inode))
        return ChildrenPage(entries, listing.next)

    def ahead(self, inos: Sequence[int]) -> None:
        for ino in inos:
            try:
                self._ahead(ino)
            except CacheFSError:
                pass  # `page` raises it when the walk reads this directory


class StoredPages:
    """Pages from the store. `come` returns the position of another walk, the path of a file;
    None: that walk has finished."""

    def __init__(self, store: Store, come: Callable[[], bytes | None]) -> None:
        self._store = store
        self._come = come

    async def page(self, ino: int, path: bytes, after: bytes) -> ChildrenPage:
        await asyncio.sleep(0)
        come = self._come()
        below = None if come is None else _below(path, come)
        with self._store.snapshot() as reader:
            found = Names(reader).children(ino, after, below, LIST_LIMIT)
        entries = [(key, stored.inode) for key, stored in found]
        if len(found) == LIST_LIMIT:
            return ChildrenPage(entries, found[-1][0])
        if below is None:
            return ChildrenPage(entries, b"")
        return ChildrenPage(entries, found[-1][0] if found else after, blocked=True)

    def ahead(self, inos: Sequence[int]) -> None:
        """Does nothing: the store needs no read-ahead."""


def _below(directory: bytes, come: bytes) -> bytes | None:
    """Returns the order key below which the walk at file `come` has passed a directory's children,
    or is inside them. None: it has passed all of them."""
    head = directory + b"/" if directory else b""
    if not come.startswith(head):
        return None if come > head else b"\0"
    name, slash, _ = come[len(head) :].partition(b"/")
    return name + slash + b"\0"


@dataclass(slots=True)
class _Level:
    """A directory of the walk: its current page and the position in it."""

    ino: int
    path: bytes
    after: bytes = b""
    ended: bool = False
    entries: Sequence[tuple[bytes, Inode]] = ()
    at: int = 0


class SelectedFiles(NamedTuple):
    """Files of one directory, in order, by order key."""

    directory: int
    path: bytes
    files: Entries


class OrderedWalk:
    """A walk below a directory. It skips subdirectories that cannot be listed and calls `failed`
    with their errors; it skips removed ones silently."""

    def __init__(
        self,
        store: Store,
        source: PageSource,
        failed: Callable[[bytes, CacheFSError], None],
    ) -> None:
        self._store = store
        self._source = source
        self._failed = failed
        self._stack: list[_Level] = []

    def begin(self, ino: int, path: bytes, after: bytes) -> None:
        """Sets the walk to start after the file `after`, a path at or below `path` (b"": at the
        first file)."""
        self._stack = [_Level(ino, path)]
        head = path + b"/" if path else b""
        if not after.startswith(head) or after == path:
            return
        *above, name = after[len(head) :].split(b"/")
        with self._store.snapshot() as reader:
            names = Names(reader)
            for segment in above:
                level = self._stack[-1]
                level.after = order_key(segment, True)
                stored = names.dentry(level.ino, level.after)
                if stored is None:
                    return
                self._stack.append(_Level(stored.inode.ino, join(level.path, segment)))
        self._stack[-1].after = name

    async def next(self) -> SelectedFiles | None:
        """Returns more files, or None at the end. No files: call again after the other walk has
        moved. Raises the source's errors for the directory where the walk began."""
        while self._stack:
            level = self._stack[-1]
            if level.at < len(level.entries):
                found = self._files(level)
                if found:
                    return SelectedFiles(level.ino, level.path, found)
            elif level.ended:
                self._stack.pop()
            elif await self._read(level):
                return SelectedFiles(level.ino, level.path, [])
        return None

    def _files(self, level: _Level) -> Entries:
        """Returns the files up to the next directory, which becomes the current level."""
        entries, start = level.entries, level.at
        directory = Kind.DIRECTORY
        for at in range(start, len(entries)):
            key, inode = entries[at]
            if inode.kind is directory:
                level.at = at + 1
                self._source.ahead(_directories(entries, at + 1))
                self._stack.append(_Level(inode.ino, join(level.path, name_of(key))))
                return list(entries[start:at])
        level.at = len(entries)
        return list(entries[start:])

    async def _read(self, level: _Level) -> bool:
        """Reads the next page of a level. Returns True if it is empty for now."""
        try:
            page = await self._source.page(level.ino, level.path, level.after)
        except CacheFSError as err:
            if len(self._stack) == 1:
                raise
            if not isinstance(err, NotFound | Stale | NotADirectory):
                self._failed(level.path, err)
            page = ChildrenPage([], b"")
        level.entries, level.at, level.after = page.entries, 0, page.after
        level.ended = not page.after and not page.blocked
        return page.blocked and not page.entries


def _directories(entries: Sequence[tuple[bytes, Inode]], start: int) -> list[int]:
    """Returns the inos of the next few directories of a page."""
    found: list[int] = []
    for at in range(start, min(len(entries), start + 4 * AHEAD)):
        if entries[at][1].kind is Kind.DIRECTORY and len(found) < AHEAD:
            found.append(entries[at][1].ino)
    return found
