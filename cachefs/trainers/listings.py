"""The contents of folders, from the server of a mount or through the mount itself."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from cachefs.core import messages as m
from cachefs.core.errors import NotADirectory, NotFound, Stale
from cachefs.core.model import Kind
from cachefs.trainers.mount_session import MountSession

AHEAD: Final = 16  # folders that are listed while one is awaited
MOST_AHEAD: Final = 64  # first pages in flight or not used yet, of up to 150 KiB each


_GONE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESTALE))


class FolderGone(NotFound):
    """A folder was removed or replaced since the one above it was listed."""


class FoundFile(NamedTuple):
    name: bytes
    ino: int
    size: int


class FoundFolder(NamedTuple):
    name: bytes
    ino: int


class FolderContents(NamedTuple):
    """The regular files and the folders in one folder, by name. Symbolic links are neither."""

    files: list[FoundFile]
    folders: list[FoundFolder]


class Listings(Protocol):
    """Lists folders below one root."""

    def root_ino(self) -> int:
        """Returns the inode number of the root. Raises NotFound, or OSError."""

    def expect(self, inos: Sequence[int]) -> None:
        """Begins to list folders whose contents the caller requests next, in this order."""

    def contents(self, path: bytes, ino: int) -> FolderContents:
        """Returns what is in a folder, by its path below the root and its inode number. Raises
        FolderGone."""


class _Attributes(msgspec.Struct, array_like=True, gc=False):
    """The first fields of an `Inode`; the others are skipped, which takes half the time."""

    ino: int
    kind: Kind
    size: int = 0


class ServerListings:
    """Lists by the server: a thousand names a request, no call of the kernel for each name."""

    def __init__(self, session: MountSession) -> None:
        self.valid_for_s = math.inf  # every name that was listed
        self._session = session
        self._attributes = msgspec.msgpack.Decoder(_Attributes)
        self._first_pages: dict[int, int] = {}  # folder -> the request for its first page

    def root_ino(self) -> int:
        return self._session.resolve().ino

    def expect(self, inos: Sequence[int]) -> None:
        for ino in inos:
            if ino not in self._first_pages and len(self._first_pages) < MOST_AHEAD:
                self._first_pages[ino] = self._request(ino, b"")

    def contents(self, path: bytes, ino: int) -> FolderContents:
        found = FolderContents([], [])
        request: int | None = self._first_pages.pop(ino, None) or self._request(ino, b"")
        while request is not None:
            try:
                page = self._session.reply_to(request, m.Listing)
            except (NotFound, NotADirectory, Stale) as err:
                raise FolderGone(err.cause, path=os.fsdecode(path)) from err
            self.valid_for_s = min(self.valid_for_s, page.valid_for_s)
            request = self._request(ino, page.next) if page.next else None
            self._add(page, found)
        found.folders.sort()  # the order of a listing has a "/" behind their names
        return found

    def _request(self, ino: int, after: bytes) -> int:
        return self._session.send(m.ListDir(self._session.namespace, ino, after))

    def _add(self, page: m.Listing, found: FolderContents) -> None:
        decode = self._attributes.decode
        for name, encoded in ((entry.name, entry.inode) for entry in page.entries):
            inode = decode(encoded)
            if inode.kind is Kind.FILE:
                found.files.append(FoundFile(name, inode.ino, inode.size))
            elif inode.kind is Kind.DIRECTORY:
                found.folders.append(FoundFolder(name, inode.ino))


class MountListings:
    """Lists through the mount, as any user who may read it."""

    def __init__(self, root: bytes) -> None:
        self._root = root

    def root_ino(self) -> int:
        return os.stat(os.fsdecode(self._root)).st_ino  # errors show the path as text

    def expect(self, inos: Sequence[int]) -> None:
        pass

    def contents(self, path: bytes, ino: int) -> FolderContents:
        found = FolderContents([], [])
        try:
            with os.scandir(os.path.join(self._root, path)) as entries:
                for entry in entries:
                    self._add(entry, found)
        except OSError as err:
            if err.errno not in _GONE:
                raise
            raise FolderGone(str(err.strerror), path=os.fsdecode(path)) from err
        found.files.sort()
        found.folders.sort()
        return found

    def _add(self, entry: os.DirEntry[bytes], found: FolderContents) -> None:
        if entry.is_dir(follow_symlinks=False):
            found.folders.append(FoundFolder(entry.name, entry.inode()))
        elif entry.is_file(follow_symlinks=False):
            try:
                size = entry.stat(follow_symlinks=False).st_size
            except OSError as err:
                if err.errno not in _GONE:
                    raise
                return  # the file alone was removed meanwhile
            found.files.append(FoundFile(entry.name, entry.inode(), size))
