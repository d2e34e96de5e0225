"""The trees of views: `views/ID/` with directories, symbolic links, and hard links to cache files.

Order: the record of a name is committed before the name is made, and deleted after the name is
removed. So there is no link without a record. The caller makes sure that no content of a page is
evicted or dropped in between. A cache file has the attributes of the mount while it is in a tree.
Blocking: for threads of the tier's disk.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from worker.store.changes import DropNames, PutNames, PutView
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
_PERMISSIONS: Final = 0o7777
_READ_BY_OTHERS: Final = 0o044


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
        os.mkdir(name_in_tier(view), 0o700, dir_fd=tier.views_fd)


def replace(
    tier: TierDirectory,
    writer: Writer,
    former: tuple[int, ViewRecord],
    view: int,
    record: ViewRecord,
) -> None:
    """Records another view in place of a former one, whose record is marked as thawed, and makes
    its empty tree. Raises OSError."""
    writer.write([PutView(view, record), PutView(*former)])
    with suppress(FileExistsError):
        os.mkdir(name_in_tier(view), 0o700, dir_fd=tier.views_fd)


def open_top(tier: TierDirectory, view: int, path: Sequence[bytes] = ()) -> int:
    """Returns a descriptor (O_PATH) of a directory in a tree. Raises OSError."""
    with opened(tier, view, path) as fd:
        return os.open(b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)


def empty(tier: TierDirectory, view: int) -> None:
    """Unlinks all names of a tree, whose records stay. Its top stays, so that a cover of it is
    empty from then on; so do directories that are mount points. Raises OSError."""
    with suppress(FileNotFoundError), opened(tier, view, ()) as fd:
        _clear(fd)


def _clear(fd: int) -> None:
    with os.scandir(fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in names:
        if not is_directory:
            os.unlink(name, dir_fd=fd)
            continue
        below = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
        try:
            _clear(below)
        finally:
            os.close(below)
        remove_directory(fd, name)


def remove_directory(parent_fd: int, name: str | bytes) -> None:
    """Removes an empty directory, but not one on which, or below which, a user has mounted
    something. Raises OSError."""
    try:
        os.rmdir(name, dir_fd=parent_fd)
    except OSError as err:
        if err.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
            raise


def remove_unrecorded(tier: TierDirectory) -> None:
    """Removes trees without a record. Raises OSError."""
    known = {name_in_tier(view) for view in tier.index.views()}
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


def apply(
    tier: TierDirectory, writer: Writer, page: ViewPage, not_held: Collection[bytes] = ()
) -> Applied:
    """Makes a part of a directory match the page, but for files that are not complete,
    and for contents that the caller could not hold. Raises OSError."""
    applied = Applied()
    known = tier.index.names(page.view, page.ino, page.after, page.upto)
    cached = _cached(tier, page.names, not_held)
    complete = {key: one for key, one in page.names.items() if not one.content or key in cached}
    applied.missing = [key for key in page.names if key not in complete]
    gone, put = change(known, complete)
    with opened(tier, page.view, page.path) as fd:
        _remove(tier, writer, (page.view, page.ino), fd, gone, applied.released)
        head = directory_key(page.view, page.ino)
        if put:
            writer.write([PutNames(head, put)])
        for key, record in complete.items():
            if record.content:
                path, info = cached[key]
                _show_cached(tier, fd, key, path, info, is_known=key not in put)
                _set_attributes(key, fd, record, info)
            else:
                _show(fd, name_of(key), record)
    return applied


def finish_directory(
    tier: TierDirectory, view: int, path: Sequence[bytes], record: NameRecord
) -> None:
    """Sets the attributes of a directory, whose names are complete. Raises OSError."""
    with opened(tier, view, path) as fd:
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
        with suppress(FileNotFoundError), opened(tier, one.view, one.path) as fd:
            os.unlink(name_of(one.key), dir_fd=fd)
        restore(tier, one.record, attributes_of(tier))
        writer.write([DropNames([directory_key(one.view, one.ino) + one.key])])


# ---- names ----


def name_in_tier(view: int) -> str:
    """Returns the name of a tree below `views/`."""
    return f"{view:016x}"


@contextmanager
def opened(tier: TierDirectory, view: int, path: Sequence[bytes]) -> Iterator[int]:
    """Yields a descriptor of a directory of a tree."""
    fd = os.open(name_in_tier(view), OPEN_DIRECTORY, dir_fd=tier.views_fd)
    try:
        for name in path:
            below = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


class Attributes(NamedTuple):
    """Of cache files that are in no tree."""

    uid: int
    gid: int
    mode: int


def attributes_of(tier: TierDirectory) -> Attributes:
    shared = os.fstat(tier.pub_fd).st_mode & _OF_GROUP  # the worker shares its files
    return Attributes(os.geteuid(), os.getegid(), FILE_MODE if shared else _PRIVATE_MODE)


_CacheFile = tuple[str, os.stat_result]  # its path below `files/`; a plain tuple is made faster


def _cached(
    tier: TierDirectory, names: Mapping[bytes, NameRecord], not_held: Collection[bytes]
) -> dict[bytes, _CacheFile]:
    """Returns the files with bytes that are complete, trusted, held and here."""
    files = [
        (key, record)
        for key, record in names.items()
        if record.content and record.content not in not_held
    ]
    records = tier.index.get_all([record.content for _, record in files])
    header, files_fd = tier.header, tier.files_fd
    found: dict[bytes, _CacheFile] = {}
    for (key, record), known in zip(files, records, strict=True):
        if known is None or not known.complete:
            continue
        if header.distrusted and not header.trusts(known.epoch):
            continue
        path = place(record.content.hex())
        try:
            info = os.stat(path, dir_fd=files_fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if info.st_size == record.size:
            found[key] = path, info
    return found


def _show_cached(
    tier: TierDirectory, fd: int, name: bytes, path: str, info: os.stat_result, *, is_known: bool
) -> None:
    """Makes a hard link to the cache file at `path`. `is_known`: the name had this record before,
    so it is likely to exist."""
    if is_known and _is_link(fd, name, info):
        return
    try:
        os.link(path, name, src_dir_fd=tier.files_fd, dst_dir_fd=fd)
    except FileExistsError:
        if not _is_link(fd, name, info):
            os.unlink(name, dir_fd=fd)
            os.link(path, name, src_dir_fd=tier.files_fd, dst_dir_fd=fd)


def _is_link(fd: int, name: bytes, file: os.stat_result) -> bool:
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (info.st_dev, info.st_ino) == (file.st_dev, file.st_ino)


def _show(fd: int, name: bytes, record: NameRecord) -> None:
    """Makes the name of what has no bytes in a cache file. A directory gets its attributes when its
    names are complete."""
    with suppress(FileExistsError):
        if record.kind == DIRECTORY:
            os.mkdir(name, 0o700, dir_fd=fd)
        elif record.kind == SYMLINK:
            os.symlink(record.target, name, dir_fd=fd)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd))
    if record.kind != DIRECTORY:
        _set_attributes(name, fd, record, os.stat(name, dir_fd=fd, follow_symlinks=False))


def _set_attributes(name: bytes, fd: int, record: NameRecord, info: os.stat_result) -> None:
    """Gives a name the attributes of its record, where it has others."""
    if (info.st_uid, info.st_gid) != (record.uid, record.gid):
        os.chown(name, record.uid, record.gid, dir_fd=fd, follow_symlinks=False)
    if record.kind != SYMLINK and info.st_mode & _PERMISSIONS != record.mode:
        os.chmod(name, record.mode, dir_fd=fd)
    if info.st_mtime_ns != record.mtime_ns:
        times = record.mtime_ns, record.mtime_ns
        os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)


def restore(tier: TierDirectory, record: NameRecord, attributes: Attributes) -> None:
    """Gives a cache file that left a tree the attributes of others. It may stay readable for
    others, as the folder above is 0700: another chmod is a fifth of the time of a removal."""
    mode, others = record.mode, attributes.mode
    is_own = (record.uid, record.gid) == (attributes.uid, attributes.gid)
    has_mode = mode | _READ_BY_OTHERS == others | _READ_BY_OTHERS and mode & others == others
    if not record.content or (is_own and has_mode):
        return
    path = place(record.content.hex())
    with suppress(FileNotFoundError):
        if not is_own:
            os.chown(
                path, attributes.uid, attributes.gid, dir_fd=tier.files_fd, follow_symlinks=False
            )
        if not has_mode:
            os.chmod(path, attributes.mode, dir_fd=tier.files_fd)


def _remove(
    tier: TierDirectory,
    writer: Writer,
    directory: tuple[int, int],
    fd: int,
    names: Mapping[bytes, NameRecord],
    released: list[bytes],
) -> None:
    """Removes names of a directory (view, ino) and all below them, then their records."""
    attributes = attributes_of(tier)
    for key, record in names.items():
        if record.kind == DIRECTORY:
            _remove_directory(tier, writer, (directory[0], record.ino), fd, name_of(key), released)
        else:
            with suppress(FileNotFoundError):
                os.unlink(name_of(key), dir_fd=fd)
            restore(tier, record, attributes)
            if record.content:
                released.append(record.content)
    if names:
        head = directory_key(*directory)
        writer.write([DropNames([head + key for key in names])])


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
