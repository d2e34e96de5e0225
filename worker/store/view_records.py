"""The records of views in a tier's index. Pure. docs/FORMAT.md describes them.

    views       view (8 BE)                                -> msgpack array `ViewRecord`
    view_names  view (8 BE), directory's ino (8 BE), key   -> msgpack array `NameRecord`

The key is the order key of the namespace: the name, with `/` at its end for a directory.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from cachefs.core.model import Inode, Kind

_VIEW = struct.Struct(">Q")
_DIRECTORY = struct.Struct(">QQ")


class ViewRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A view. Trailing fields may be added.

    `namespace`: 16 bytes. `path`: of its directory, below the namespace root. `defaults`: uid, gid,
    mode of files and of directories where the origin has none. `pinned`: the freeze set the pin.
    `cover`: the number by which clients know its present covers; 0: none was laid since the last
    change of the tree, which may be incomplete. `position`: of the master's events; the tree shows
    the names as of this position. `losses`: the end of the last distrusted range of epochs at that
    time. `thawed`: the view is being removed. `top`: the ino of its directory; 0: not known yet.
    `policy`: the policy `view` that made it; "": it was frozen. `unsure`: a mount may show the tree
    although it was uncovered: another tree takes its place."""

    namespace: bytes
    path: bytes
    defaults: tuple[int, int, int, int]
    pinned: bool = False
    cover: int = 0
    position: int = -1
    files: int = 0
    size_bytes: int = 0
    losses: int = 0
    thawed: bool = False
    top: int = 0
    policy: str = ""
    unsure: bool = False


class NameRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name in a view, with the attributes that the tree shows. `content`: the content id of a
    file with bytes, else b"". `target`: of a symbolic link."""

    ino: int
    kind: int
    content: bytes
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    target: bytes = b""


FILE: Final = Kind.FILE.value
DIRECTORY: Final = Kind.DIRECTORY.value
SYMLINK: Final = Kind.SYMLINK.value

encode_view = encode_name = msgspec.msgpack.Encoder().encode
decode_view = msgspec.msgpack.Decoder(ViewRecord).decode
decode_name = msgspec.msgpack.Decoder(NameRecord).decode


def view_key(view: int) -> bytes:
    return _VIEW.pack(view)


def view_of_key(key: bytes) -> int:
    number: int = _VIEW.unpack_from(key)[0]
    return number


def directory_key(view: int, ino: int) -> bytes:
    """Returns the beginning of the keys of all names in a directory."""
    return _DIRECTORY.pack(view, ino)


def split_name_key(key: bytes) -> tuple[int, int, bytes]:
    """Returns the view, the ino of the directory, and the order key."""
    view, ino = _DIRECTORY.unpack_from(key)
    return view, ino, key[_DIRECTORY.size :]


def name_of(order_key: bytes) -> bytes:
    return order_key.rstrip(b"/")


def name_record(inode: Inode, content: bytes, defaults: tuple[int, int, int, int]) -> NameRecord:
    """Returns the record of a name with the attributes that a mount with these defaults shows."""
    uid, gid, file_mode, dir_mode = defaults
    kind = int(inode.kind)  # a fifth of the time of `value`
    is_directory = kind == DIRECTORY
    mode = inode.mode & 0o7777 if inode.mode >= 0 else dir_mode if is_directory else file_mode
    return NameRecord(
        inode.ino,
        kind,
        content,
        mode,
        inode.uid if inode.uid >= 0 else uid,
        inode.gid if inode.gid >= 0 else gid,
        inode.mtime_ns,
        0 if is_directory else inode.size,
        inode.target,
    )
