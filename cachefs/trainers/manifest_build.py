"""Builds the tables of a manifest from listings, and again from what changed since."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence

from cachefs.trainers.listings import AHEAD, FolderContents, FolderGone, FoundFolder, Listings
from cachefs.trainers.manifest_tables import TableMap, TableWriter


class Everything:
    """The set of all folders."""

    def __contains__(self, ino: object) -> bool:
        return True


class ManifestBuild:
    """One walk over the folders below a root, each before those below it. Takes a folder that did
    not change from the earlier manifest, and lists the others."""

    def __init__(
        self,
        listings: Listings,
        old: TableMap | None = None,
        changed: Container[int] = Everything(),
    ) -> None:
        self.tables = TableWriter()
        self._listings = listings
        self._old = old
        self._changed = changed
        self._known = _KnownFolders(old) if old is not None else None

    def run(self) -> TableWriter:
        """Returns the tables, without folders that are removed meanwhile. Raises NotFound for a
        missing root, and what the listings raise."""
        waiting = [(b"", self._listings.root_ino())]
        while waiting:
            self._listings.expect(self._next_to_list(waiting))
            path, ino = waiting.pop()
            prefix = path + b"/" if path else b""
            try:
                below = self._folder(path, ino)
            except FolderGone:
                if not path:
                    raise
                continue
            waiting += [(prefix + one.name, one.ino) for one in reversed(below)]
        return self.tables

    def _next_to_list(self, waiting: Sequence[tuple[bytes, int]]) -> list[int]:
        soon = itertools.islice(reversed(waiting), 1 + AHEAD)
        return [ino for path, ino in soon if self._unchanged(path, ino) is None]

    def _folder(self, path: bytes, ino: int) -> list[FoundFolder]:
        """Adds a folder with its files; returns the folders in it. Raises FolderGone."""
        number = self._unchanged(path, ino)
        if number is None or self._known is None or self._old is None:
            found: FolderContents = self._listings.contents(path, ino)
            self.tables.folder(path, ino)
            self.tables.files(found.files)
            return found.folders
        self.tables.folder(path, ino)
        self.tables.copied(self._old, *self._old.files_of(number))
        return self._known.below(path)

    def _unchanged(self, path: bytes, ino: int) -> int | None:
        """Returns the number of a folder in the earlier manifest if it did not change."""
        if self._known is None or ino in self._changed:
            return None
        return self._known.number(path, ino)


class _KnownFolders:
    """The folders of an earlier manifest, by path and by the folder above them."""

    def __init__(self, old: TableMap) -> None:
        self._numbers: dict[bytes, int] = {}
        self._below: dict[bytes, list[FoundFolder]] = {}
        self._inos = old.folder_inos
        for number in range(len(old.folder_inos)):
            path = old.folder_path(number)
            self._numbers[path] = number
            above, _, name = path.rpartition(b"/")
            if path:
                found = FoundFolder(name, old.folder_inos[number])
                self._below.setdefault(above, []).append(found)

    def number(self, path: bytes, ino: int) -> int | None:
        number = self._numbers.get(path)
        return number if number is not None and self._inos[number] == ino else None

    def below(self, path: bytes) -> list[FoundFolder]:
        return self._below.get(path, [])
