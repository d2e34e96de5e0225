"""The trees of views: `views/ID/` with directories, symbolic links, and hard links to cache files.

Order: the record of a name is committed before the name is made, and deleted after the name is
removed. So there is no link without a record. The caller makes sure that no content of a page is
evicted or dropped meanwhile. A cache file has the attributes of the mount while it is in a tree.
Blocking: for threads of the tier's disk.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from worker.store.changes import PutName, PutView
from worker.store.directory import FILE_MODE, TierDirectory, place
from worker.store.index import Index
from worker.store.ownership import DIRECTORY as OPEN_DIRECTORY
from worker.store.view_page import ViewPage, change
from worker.store.view_records import (
    DIRECTORY,
    SYMLINK,
    NameRecord,
    ViewRecord,
    directory_key,
    name_of,
    split_name_key,
    view_key,
)
from worker.store.writer import Writer

NAMES_AT_ONCE: Final = 1000
_PRIVATE_MODE: Final = 0o600
_OF_GROUP: Final = 0o040


@dataclass(slots=True)
class Applied:
    """The result of a page. `missing`: order keys of files that are not complete here. `released`:
    contents that are no longer in the tree."""

    missing: list[bytes] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)


class Place(NamedTuple):
    """The place of a content in a tree. `path`: of its directory, below the top."""

    view: int
    ino: int
    path: tuple[bytes, ...]
    key: bytes
    record: NameRecord


# ---- whole trees ----


def make(tier: TierDirectory, writer: Writer, view: int, record: ViewRecord) -> None:
    """Records a view, then makes its empty tree. Idempotent. Raises OSError."""
    tier.note_views(has_views=True)
    writer.write([PutView(view, record)])
    with suppress(FileExistsError):
        os.mkdir(_name(view), 0o700, dir_fd=tier.views_fd)


def open_top(tier: TierDirectory, view: int, path: Sequence[bytes] = ()) -> int:
    """Returns a descriptor (O_PATH) of a directory in a tree. Raises OSError."""
    with _opened(tier, view, path) as fd:
        return os.open(b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)


def empty(tier: TierDirectory, view: int) -> None:
    """Unlinks all names of a tree, whose records stay. Its top stays, so that a cover of it is
    empty from then on; so do directories that are mount points. Raises OSError."""
    try:
        with _opened(tier, view, ()) as fd:
            _clear(fd)
    except FileNotFoundError:
        pass


def _clear(fd: int) -> None:
    for entry in [*os.scandir(fd)]:
        name = os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(name, dir_fd=fd, onerror=_raise_unless_busy)
        else:
            os.unlink(name, dir_fd=fd)


def _raise_unless_busy(_function: object, _path: str, failure: Any) -> None:
    """Passes over a directory on which a user has mounted something, and those above it."""
    if failure[1].errno not in (errno.EBUSY, errno.ENOTEMPTY):
        raise failure[1]


def remove(tier: TierDirectory, writer: Writer, view: int) -> list[bytes]:
    """Removes a tree, then its records; returns the contents that were in it. A start removes empty
    directories that were busy. Raises OSError."""
    empty(tier, view)
    try:
        os.rmdir(_name(view), dir_fd=tier.views_fd)
    except OSError as err:
        if err.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise
    released: list[bytes] = []
    head = view_key(view)
    while names := _first(tier.index, head):
        for record in names.values():
            _restore(tier, record, released)
        writer.write([PutName(key, None) for key in names])
    writer.write([PutView(view, None)])
    if not tier.index.views():
        tier.note_views(has_views=False)
    return released


def _first(index: Index, head: bytes) -> dict[bytes, NameRecord]:
    """Returns the first names whose keys begin with `head`."""
    return {
        key: record for key, record in index.scan_names(head, NAMES_AT_ONCE) if key.startswith(head)
    }


def remove_unrecorded(tier: TierDirectory) -> None:
    """Removes trees without a record. Raises OSError."""
    known = {_name(view) for view in tier.index.views()}
    for name in os.listdir(tier.views_fd):
        if name not in known:
            shutil.rmtree(name, dir_fd=tier.views_fd)


def contents(index: Index) -> Iterator[list[bytes]]:
    """Yields the contents of all views, in batches."""
    after = b""
    while names := dict(index.scan_names(after, NAMES_AT_ONCE)):
        after = next(reversed(names))
        yield [record.content for record in names.values() if record.content]


def directories(index: Index, view: int) -> list[int]:
    """Returns the inos of the directories below the top of a tree."""
    found: list[int] = []
    after = head = view_key(view)
    while names := dict(index.scan_names(after, NAMES_AT_ONCE)):
        found += [
            record.ino
            for key, record in names.items()
            if key.startswith(head) and record.kind == DIRECTORY
        ]
        after = next(reversed(names))
        if not after.startswith(head):
            break
    return found


# ---- pages ----


def differs(tier: TierDirectory, page: ViewPage) -> bool:
    """Returns whether the records of a part of a directory are other ones."""
    return tier.index.names(page.view, page.ino, page.after, page.upto) != page.names


def apply(tier: TierDirectory, writer: Writer, page: ViewPage) -> Applied:
    """Makes a part of a directory show what the page says, but for files that are not complete.
    Raises OSError."""
    applied = Applied()
    known = tier.index.names(page.view, page.ino, page.after, page.upto)
    complete = _complete(tier, page.names)
    applied.missing = [key for key in page.names if key not in complete]
    gone, put = change(known, complete)
    with _opened(tier, page.view, page.path) as fd:
        _remove(tier, writer, (page.view, page.ino), fd, gone, applied.released)
        head = directory_key(page.view, page.ino)
        if put:
            writer.write([PutName(head + key, record) for key, record in put.items()])
        for key, record in complete.items():
            made = _show(tier, fd, name_of(key), record)
            if record.kind != DIRECTORY and (made or key in put):
                _set_attributes(name_of(key), fd, record)
    return applied


def finish_directory(
    tier: TierDirectory, view: int, path: Sequence[bytes], record: NameRecord
) -> None:
    """Sets the attributes of a directory, whose names are complete. Raises OSError."""
    with _opened(tier, view, path) as fd:
        os.fchown(fd, record.uid, record.gid)
        os.fchmod(fd, record.mode)
        os.utime(fd, ns=(record.mtime_ns, record.mtime_ns))


def find(tier: TierDirectory, wanted: frozenset[bytes]) -> list[Place]:
    """Returns the places of contents. Reads the records of all views."""
    parents: dict[tuple[int, int], tuple[int, bytes]] = {}
    found: list[tuple[bytes, NameRecord]] = []
    after = b""
    while names := dict(tier.index.scan_names(after, NAMES_AT_ONCE)):
        after = next(reversed(names))
        for full, record in names.items():
            if record.kind == DIRECTORY:
                view, ino, key = split_name_key(full)
                parents[view, record.ino] = ino, name_of(key)
            elif record.content in wanted:
                found.append((full, record))
    return [_place_of(parents, full, record) for full, record in found]


def _place_of(
    parents: Mapping[tuple[int, int], tuple[int, bytes]], full: bytes, record: NameRecord
) -> Place:
    view, ino, key = split_name_key(full)
    return Place(view, ino, _path(parents, view, ino), key, record)


def _path(
    parents: Mapping[tuple[int, int], tuple[int, bytes]], view: int, ino: int
) -> tuple[bytes, ...]:
    path: list[bytes] = []
    while (known := parents.get((view, ino))) is not None:
        ino, name = known
        path.append(name)
    return tuple(reversed(path))


def withdraw(tier: TierDirectory, writer: Writer, places: Iterable[Place]) -> None:
    """Removes single names. Raises OSError."""
    for one in places:
        with suppress(FileNotFoundError), _opened(tier, one.view, one.path) as fd:
            os.unlink(name_of(one.key), dir_fd=fd)
        _restore(tier, one.record, [])
        writer.write([PutName(directory_key(one.view, one.ino) + one.key, None)])


# ---- names ----


def _name(view: int) -> str:
    return f"{view:016x}"


@contextmanager
def _opened(tier: TierDirectory, view: int, path: Sequence[bytes]) -> Iterator[int]:
    """Yields a descriptor of a directory of a tree."""
    fd = os.open(_name(view), OPEN_DIRECTORY, dir_fd=tier.views_fd)
    try:
        for name in path:
            below = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _complete(tier: TierDirectory, names: Mapping[bytes, NameRecord]) -> dict[bytes, NameRecord]:
    """Returns the names without those of files that are not complete, trusted and here."""
    files = [(key, record) for key, record in names.items() if record.content]
    records = tier.index.get_all([record.content for _, record in files])
    missing = {
        key
        for (key, record), known in zip(files, records, strict=True)
        if known is None
        or not (known.complete and tier.header.trusts(known.epoch))
        or not tier.has_file(record.content.hex(), record.size)
    }
    return {key: record for key, record in names.items() if key not in missing}


def _show(tier: TierDirectory, fd: int, name: bytes, record: NameRecord) -> bool:
    """Makes a name; returns False if it exists."""
    try:
        if record.kind == DIRECTORY:
            os.mkdir(name, 0o700, dir_fd=fd)
        elif record.kind == SYMLINK:
            os.symlink(record.target, name, dir_fd=fd)
        elif not record.content:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd))
        else:
            _link(tier, fd, name, record)
    except FileExistsError:
        return False if not record.content else _link_again(tier, fd, name, record)
    return True


def _link(tier: TierDirectory, fd: int, name: bytes, record: NameRecord) -> None:
    source = os.fsencode(place(record.content.hex()))
    os.link(source, name, src_dir_fd=tier.files_fd, dst_dir_fd=fd)


def _link_again(tier: TierDirectory, fd: int, name: bytes, record: NameRecord) -> bool:
    """Replaces a link to another file; returns False if it is the right one."""
    source = os.stat(place(record.content.hex()), dir_fd=tier.files_fd, follow_symlinks=False)
    shown = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if (source.st_dev, source.st_ino) == (shown.st_dev, shown.st_ino):
        return False
    os.unlink(name, dir_fd=fd)
    _link(tier, fd, name, record)
    return True


def _set_attributes(name: bytes, fd: int, record: NameRecord) -> None:
    os.chown(name, record.uid, record.gid, dir_fd=fd, follow_symlinks=False)
    if record.kind != SYMLINK:
        os.chmod(name, record.mode, dir_fd=fd)
    times = record.mtime_ns, record.mtime_ns
    os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)


def _restore(tier: TierDirectory, record: NameRecord, released: list[bytes]) -> None:
    """Gives a cache file that left a tree the attributes of others."""
    if not record.content:
        return
    released.append(record.content)
    with suppress(FileNotFoundError):
        path = place(record.content.hex())
        os.chown(path, os.geteuid(), os.getegid(), dir_fd=tier.files_fd, follow_symlinks=False)
        shared = os.fstat(tier.pub_fd).st_mode & _OF_GROUP  # the worker shares its files
        os.chmod(path, FILE_MODE if shared else _PRIVATE_MODE, dir_fd=tier.files_fd)


def _remove(
    tier: TierDirectory,
    writer: Writer,
    directory: tuple[int, int],
    fd: int,
    names: Mapping[bytes, NameRecord],
    released: list[bytes],
) -> None:
    """Removes names of a directory (view, ino) and all below them, then their records."""
    for key, record in names.items():
        if record.kind == DIRECTORY:
            _remove_directory(tier, writer, (directory[0], record.ino), fd, name_of(key), released)
        else:
            with suppress(FileNotFoundError):
                os.unlink(name_of(key), dir_fd=fd)
            _restore(tier, record, released)
    if names:
        writer.write([PutName(directory_key(*directory) + key, None) for key in names])


def _remove_directory(
    tier: TierDirectory,
    writer: Writer,
    directory: tuple[int, int],
    parent_fd: int,
    name: bytes,
    released: list[bytes],
) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent_fd)  # after a crash only its records may exist
    fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
    try:
        while names := tier.index.names(*directory, limit=NAMES_AT_ONCE):
            _remove(tier, writer, directory, fd, names, released)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent_fd)
