"""The removal of a whole tree of a view, in batches, so that others use its tier in between.

It follows the records from the top down: the names of a batch are removed, then their records are
deleted, then the caller releases their contents. A kill at any step leaves a record for every link,
and the next start continues. Blocking: for threads of the tier's disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from worker.store import trees
from worker.store.changes import DropNames, PutView
from worker.store.directory import TierDirectory
from worker.store.trees import NAMES_AT_ONCE
from worker.store.view_records import (
    DIRECTORY,
    FILE,
    NameRecord,
    directory_key,
    name_of,
    view_key,
)
from worker.store.writer import Writer


class RemovedNames(NamedTuple):
    """A batch. `contents` are no longer in the tree. `files`, `size_bytes`: as of its records."""

    contents: list[bytes]
    files: int
    size_bytes: int


def remove(tier: TierDirectory, writer: Writer, view: int) -> Iterator[RemovedNames]:
    """Removes a tree and its records. A start removes empty directories that were busy. Raises
    OSError; may be called again then."""
    removal = _NamesRemoval(tier, writer, view)
    record = tier.index.views().get(view)
    if record is not None and record.top:
        yield from removal.below((), record.top)
    trees.empty(tier, view)
    _remove_top(tier, view)
    yield from removal.rest()
    writer.write([PutView(view, None)])
    if not tier.index.views():
        tier.note_views(has_views=False)


def _remove_top(tier: TierDirectory, view: int) -> None:
    try:
        os.rmdir(trees.name_in_tier(view), dir_fd=tier.views_fd)
    except OSError as err:
        if err.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise


class _NamesRemoval:
    """The removal of one tree: the names that were removed, and whose records are deleted next."""

    def __init__(self, tier: TierDirectory, writer: Writer, view: int) -> None:
        self._tier = tier
        self._writer = writer
        self._view = view
        self._attributes = trees.attributes_of(tier)
        self._gone: dict[bytes, NameRecord] = {}

    def below(self, path: tuple[bytes, ...], ino: int) -> Iterator[RemovedNames]:
        """Removes the names in a directory, and all below it."""
        index, after = self._tier.index, b""
        while names := index.names(self._view, ino, after, limit=NAMES_AT_ONCE):
            after = next(reversed(names))
            directories = {key: one for key, one in names.items() if one.kind == DIRECTORY}
            self._unlink(path, ino, names)
            if len(self._gone) >= NAMES_AT_ONCE:
                yield self._flush()
            for key, record in directories.items():
                yield from self.below((*path, name_of(key)), record.ino)
            self._remove_directories(path, ino, directories)

    def rest(self) -> Iterator[RemovedNames]:
        """Deletes the records that are left."""
        head = view_key(self._view)
        yield self._flush()
        while names := dict(self._tier.index.scan_names(head, NAMES_AT_ONCE)):
            own = {key: record for key, record in names.items() if key.startswith(head)}
            if not own:
                return
            for record in own.values():
                trees.restore(self._tier, record, self._attributes)
            self._gone.update(own)
            yield self._flush()

    def _unlink(self, path: tuple[bytes, ...], ino: int, names: Mapping[bytes, NameRecord]) -> None:
        files = {key: record for key, record in names.items() if record.kind != DIRECTORY}
        with suppress(FileNotFoundError), trees.opened(self._tier, self._view, path) as fd:
            for key in files:
                try:
                    os.unlink(key, dir_fd=fd)
                except FileNotFoundError:
                    pass
        for record in files.values():
            trees.restore(self._tier, record, self._attributes)
        self._note(ino, files)

    def _remove_directories(
        self, path: tuple[bytes, ...], ino: int, directories: Mapping[bytes, NameRecord]
    ) -> None:
        if not directories:
            return
        with suppress(FileNotFoundError), trees.opened(self._tier, self._view, path) as fd:
            for key in directories:
                trees.remove_directory(fd, name_of(key))
        self._note(ino, directories)

    def _note(self, ino: int, names: Mapping[bytes, NameRecord]) -> None:
        head = directory_key(self._view, ino)
        self._gone.update((head + key, record) for key, record in names.items())

    def _flush(self) -> RemovedNames:
        gone, self._gone = self._gone, {}
        if gone:
            self._writer.write([DropNames(gone)])
        files = [record for record in gone.values() if record.kind == FILE]
        contents = [record.content for record in files if record.content]
        return RemovedNames(contents, len(files), sum(record.size for record in files))
