"""The walk over a directory of the namespace, page by page, as a mount shows it. Owned by the loop.

It lists what is not fresh at its origin, as the mount does. So a walk is also how a view learns
what changed while no reader used the mount.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from cachefs.core.errors import CacheFSError, NotADirectory, NotFound
from cachefs.core.messages import LIST_LIMIT, Dentry, Found
from cachefs.core.model import ContentId, Inode, Kind
from cachefs.core.policies import shown
from cachefs.core.services import MetadataService
from worker.store.view_page import ViewPage
from worker.store.view_records import NameRecord, name_record

MOST_DEPTH: Final = 200  # directories above a name, below the top

Defaults = tuple[int, int, int, int]
_DIRECTORY: Final = Kind.DIRECTORY
_FILE: Final = Kind.FILE
_decode = msgspec.msgpack.Decoder(Inode).decode


class TooDeep(CacheFSError):
    """A tree has more levels of directories than a view may have."""

    code = "too-deep"


class Step(NamedTuple):
    """A page. `finished`: the record of its directory, if this is the last page of it."""

    page: ViewPage
    finished: NameRecord | None


class _Directory(NamedTuple):
    path: tuple[bytes, ...]
    record: NameRecord


class TreeWalk:
    """One walk. `directories`: the inos of those that were begun. `chain`: the names (parent ino,
    name) of the path. `valid_until_s`: until then (monotonic) every name stays valid."""

    def __init__(
        self,
        service: MetadataService,
        view: int,
        path: bytes,
        defaults: Defaults,
        monotonic: Callable[[], float],
    ) -> None:
        self._service = service
        self._namespace = service.namespace
        self.view = view
        self._path = path
        self._defaults = defaults
        self._monotonic = monotonic
        self.directories: set[int] = set()
        self.chain: set[tuple[int, bytes]] = set()
        self.valid_until_s = float("inf")
        self.top = 0  # its ino

    async def steps(self) -> AsyncIterator[Step]:
        """Yields all pages. Raises NotFound, NotADirectory, TooDeep, Stale for what was removed
        during the walk, and the errors of listings."""
        top = await self.find_top()
        stack = [_Directory((), self._record(top))]
        while stack:
            directory = stack.pop()
            if len(directory.path) > MOST_DEPTH:
                raise TooDeep(f"more than {MOST_DEPTH} levels of directories")
            self.directories.add(directory.record.ino)
            async for step in self._pages(directory):
                yield step
                stack += _below(directory, step.page)

    async def find_top(self) -> Inode:
        """Finds the directory of the view. Raises NotFound, NotADirectory."""
        inode = self._seen(await self._service.resolve(b""))
        for name in self._path.split(b"/") if self._path else ():
            self.chain.add((inode.ino, name))
            inode = self._seen(await self._service.lookup(inode.ino, name))
        if inode.kind is not Kind.DIRECTORY:
            raise NotADirectory("not a directory", path=shown(self._path))
        self.top = inode.ino
        return inode

    def _seen(self, found: Found) -> Inode:
        if found.inode is None:
            raise NotFound("no such file or directory", path=shown(self._path))
        self._note_validity(found.valid_for_s)
        return found.inode

    def _note_validity(self, valid_for_s: float) -> None:
        if valid_for_s >= 0:
            self.valid_until_s = min(self.valid_until_s, self._monotonic() + valid_for_s)

    async def _pages(self, directory: _Directory) -> AsyncIterator[Step]:
        after = b""
        while True:
            listing = await self._service.list_dir(directory.record.ino, after, LIST_LIMIT)
            self._note_validity(listing.valid_for_s)
            names = self._named(listing.entries)
            page = ViewPage(
                self.view, directory.record.ino, directory.path, after, listing.next, names
            )
            yield Step(page, None if listing.next else directory.record)
            if not listing.next:
                return
            after = listing.next

    def _named(self, entries: Sequence[Dentry]) -> dict[bytes, NameRecord]:
        """Returns the records by order key."""
        found: dict[bytes, NameRecord] = {}
        for entry in entries:
            inode = _decode(entry.inode)
            key = entry.name + b"/" if inode.kind is _DIRECTORY else entry.name
            found[key] = self._record(inode)
        return found

    def _record(self, inode: Inode) -> NameRecord:
        has_bytes = inode.kind is _FILE and inode.size > 0
        content = ContentId.key_at(self._namespace, inode) if has_bytes else b""
        return name_record(inode, content, self._defaults)


def _below(directory: _Directory, page: ViewPage) -> list[_Directory]:
    return [
        _Directory((*directory.path, key[:-1]), record)
        for key, record in page.names.items()
        if record.kind == Kind.DIRECTORY
    ]
