"""Names, attributes and cached shares of files: fetched from a server in pages, shown as lines."""

from __future__ import annotations

import functools
import grp
import pwd
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from cachefs.cli import output
from cachefs.cli.names import UNKNOWN, Names
from cachefs.core import messages as m
from cachefs.core.errors import NotFound, Stale
from cachefs.core.model import Inode, Kind
from cachefs.launcher.state import MountRecord

_inodes: Final = msgspec.msgpack.Decoder(Inode)
_TYPES: Final = {Kind.FILE: "file", Kind.DIRECTORY: "directory", Kind.SYMLINK: "symlink"}
_BITS: Final = {Kind.FILE: stat.S_IFREG, Kind.DIRECTORY: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}


class Row(msgspec.Struct, frozen=True):
    """One path below the namespace root. `cached_bytes` is UNKNOWN if it was not fetched."""

    path: bytes
    inode: Inode
    cached_bytes: int = UNKNOWN


def children(names: Names, directory: Inode, path: bytes) -> Iterator[list[Row]]:
    """Yields the entries of a directory in pages, in the order of the store."""
    after = b""
    while True:
        page = names.call(m.ListDir(names.namespace, directory.ino, after), m.Listing)
        yield [Row(join(path, entry.name), _inodes.decode(entry.inode)) for entry in page.entries]
        if not page.next:
            return
        after = page.next


def tree(names: Names, directory: Inode, path: bytes) -> Iterator[list[Row]]:
    """Yields all entries below a directory, those of a directory before those of its children. What
    is removed meanwhile ends the list of its directory alone."""
    todo = [(path, directory)]
    while todo:
        here, inode = todo.pop()
        below = []
        try:
            for page in children(names, inode, here):
                yield page
                below += [(row.path, row.inode) for row in page if row.inode.kind is Kind.DIRECTORY]
        except (NotFound, Stale):
            if here == path:
                raise
        todo += reversed(below)


def with_cached(names: Names, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with the cached bytes of each file."""
    files = [row.inode for row in rows if row.inode.kind is Kind.FILE]
    found = zip((inode.ino for inode in files), names.cached_bytes(files), strict=True)
    cached = dict(found)
    return [
        msgspec.structs.replace(row, cached_bytes=cached.get(row.inode.ino, UNKNOWN))
        for row in rows
    ]


def join(directory: bytes, name: bytes) -> bytes:
    """Returns a path below the root, which is b"" itself."""
    return directory + b"/" + name if directory else name


def fields(row: Row, record: MountRecord, shown: str) -> list[str]:
    """Returns mode, owner, group, size, mtime, cached %, path; `shown` is the path to print."""
    inode = row.inode
    share = "-"
    if row.cached_bytes >= 0:
        share = output.percent_of(row.cached_bytes, inode.size)
    arrow = f" -> {output.text_of(inode.target)}" if inode.kind is Kind.SYMLINK else ""
    return [
        stat.filemode(_BITS[inode.kind] | mode_of(inode, record)),
        user_name(inode.uid if inode.uid >= 0 else record.uid),
        group_name(inode.gid if inode.gid >= 0 else record.gid),
        str(inode.size),
        output.time_of(inode.mtime_ns),
        share,
        shown + arrow,
    ]


def document(row: Row, record: MountRecord, shown: str) -> dict[str, Any]:
    """Returns a row as a JSON document."""
    inode = row.inode
    facts: dict[str, Any] = {"path": shown, "type": _TYPES[inode.kind], "size_bytes": inode.size}
    facts |= {"mtime_ns": inode.mtime_ns, "ino": inode.ino, "mode": f"{mode_of(inode, record):04o}"}
    facts["uid"] = inode.uid if inode.uid >= 0 else record.uid
    facts["gid"] = inode.gid if inode.gid >= 0 else record.gid
    facts["etag"] = inode.etag
    if row.cached_bytes >= 0:
        facts["cached_bytes"] = row.cached_bytes
    if inode.kind is Kind.SYMLINK:
        facts["target"] = output.text_of(inode.target)
    return facts


def mode_of(inode: Inode, record: MountRecord) -> int:
    """Returns the permission bits as the mount shows them."""
    if inode.mode >= 0:
        return inode.mode
    if inode.kind is Kind.SYMLINK:
        return 0o777
    return record.dir_mode if inode.kind is Kind.DIRECTORY else record.file_mode


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=1024)
def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
