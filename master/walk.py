"""A walk over every file below a directory, in batches, holding one page per level of depth.

It has two sources of pages. `Fresh` lists stale directories at the origin, the next ones ahead.
`Known` only reads the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cachefs.core.errors import NotADirectory, NotFound, Stale
from cachefs.core.messages import LIST_LIMIT, Listing
from cachefs.core.model import Inode, Kind
from master.state.records import decode_inode, name_of
from master.store.base import Store
from master.store.snapshot import Names
from master.tree import Tree, join

AHEAD: Final = 6  # directories listed ahead of the walk

Named = tuple[bytes, Inode]
Files = AsyncIterator[list[Named]]


class Source(Protocol):
    """A source of directory pages, called by the walk."""

    async def page(self, ino: int, after: bytes) -> tuple[list[Named], bytes]:
        """Returns children after an order key, and the key to continue after (b"": the end)."""

    def ahead(self, inos: Sequence[int]) -> None:
        """Announces the directories that the walk reads next."""


class Fresh:
    """Pages of fresh listings."""

    def __init__(
        self,
        list_dir: Callable[[int, bytes, int], Awaitable[Listing]],
        ahead: Callable[[int], None],
    ) -> None:
        self._list_dir = list_dir
        self._ahead = ahead

    async def page(self, ino: int, after: bytes) -> tuple[list[Named], bytes]:
        listing = await self._list_dir(ino, after, LIST_LIMIT)
        return [(d.name, decode_inode(d.inode)) for d in listing.entries], listing.next

    def ahead(self, inos: Sequence[int]) -> None:
        for ino in inos:
            self._ahead(ino)


class Known:
    """Pages from the store. The walk calls `on_unlisted` with each directory that was never
    listed: it cannot know the names below it. `shows_unlisted`: a page of such a directory has the
    directory itself, with an empty name."""

    def __init__(
        self,
        store: Store,
        on_unlisted: Callable[[int], None] | None = None,
        *,
        shows_unlisted: bool = False,
    ) -> None:
        self._store = store
        self._on_unlisted = on_unlisted
        self._shows_unlisted = shows_unlisted

    async def page(self, ino: int, after: bytes) -> tuple[list[Named], bytes]:
        await asyncio.sleep(0)  # a long walk must yield to other tasks
        with self._store.snapshot() as reader:
            names = Names(reader)
            found = names.children(ino, after, None, LIST_LIMIT)
            unlisted = names.inode(ino) if not after and names.directory(ino) is None else None
        following = found[-1][0] if len(found) == LIST_LIMIT else b""
        entries = [(name_of(key), stored.inode) for key, stored in found]
        if unlisted is not None and self._on_unlisted is not None:
            self._on_unlisted(ino)
        if unlisted is not None and self._shows_unlisted:
            entries.append((b"", unlisted.inode))
        return entries, following

    def ahead(self, inos: Sequence[int]) -> None:
        """Does nothing: the store needs no read-ahead."""


@dataclass(slots=True)
class _Level:
    """A directory of the walk: its listing position and the subdirectories still to walk."""

    ino: int
    path: bytes
    after: bytes = b""
    ended: bool = False
    waiting: list[Named] = field(default_factory=list)  # in reverse order


async def files(store: Store, tree: Tree, ino: int, source: Source) -> Files:
    """Yields batches of (path below the namespace root, inode). Skips subdirectories that are
    removed during the walk. Raises Stale for a removed ino, and the source's errors."""
    start = _start(store, tree, ino)
    if start[1].kind is not Kind.DIRECTORY:
        yield [start]
        return
    stack = [_Level(ino, start[0])]
    while stack:
        level = stack[-1]
        if level.waiting:
            path, inode = level.waiting.pop()
            source.ahead([child.ino for _, child in level.waiting[-AHEAD:]])
            stack.append(_Level(inode.ino, path))
        elif level.ended:
            stack.pop()
        elif batch := await _next_page(level, source, nested=len(stack) > 1):
            yield batch


async def _next_page(level: _Level, source: Source, *, nested: bool) -> list[Named]:
    """Returns the files of a directory's next page and queues its subdirectories in the level."""
    try:
        entries, level.after = await source.page(level.ino, level.after)
    except (NotFound, Stale, NotADirectory):
        if not nested:
            raise
        entries, level.after = [], b""
    level.ended = not level.after
    below = [(join(level.path, name), inode) for name, inode in entries if name]
    level.waiting = [item for item in below if item[1].kind is Kind.DIRECTORY][::-1]
    found = [item for item in below if item[1].kind is not Kind.DIRECTORY]
    return found + [(level.path + b"/", inode) for name, inode in entries if not name]


def path_of(store: Store, tree: Tree, ino: int) -> bytes:
    """Returns the path of an ino below the namespace root. Raises Stale."""
    return _start(store, tree, ino)[0]


def _start(store: Store, tree: Tree, ino: int) -> Named:
    """Returns the path of an ino below the namespace root, and its inode. Raises Stale."""
    with store.snapshot() as reader:
        names = Names(reader)
        stored, at = names.inode(ino), names.place(ino)
        if stored is None or at is None:
            raise Stale(f"inode {ino} is gone")
        if stored.inode.kind is Kind.DIRECTORY:
            place = tree.directory(names, ino)
            return place.mount.in_namespace(place.path), stored.inode
        place = tree.directory(names, at[0])
        return place.mount.in_namespace(place.of(name_of(at[1]))), stored.inode
