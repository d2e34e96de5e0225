"""The FUSE protocol's structs as bytes: parsing requests, building replies and notifications. Pure.

Layouts and numbers are those of the kernel's `include/uapi/linux/fuse.h`, version 7.40 and up, on a
little-endian 64-bit machine; every struct is naturally aligned, so `<` adds no padding. Names are
those of the header without the `fuse_` prefix.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from cachefs.core.errors import ProtocolError

MAJOR: Final = 7
MIN_BUFFER_BYTES: Final = 8192  # FUSE_MIN_READ_BUFFER
RESENT: Final = 1 << 63  # of `unique`: the request was delivered before; the reply repeats the bit
UNIQUE_MASK: Final = RESENT - 1
NAME_ALIGNMENT: Final = 8  # of a directory entry
TYPE_SHIFT: Final = 12  # of st_mode, in a directory entry


class Op(enum.IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52
    COPY_FILE_RANGE_64 = 53


class Init(enum.IntFlag):
    """Flags of INIT, 64 bits (the upper half travels in `flags2`)."""

    ASYNC_READ = 1 << 0
    BIG_WRITES = 1 << 5
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    EXPLICIT_INVAL_DATA = 1 << 25
    INIT_EXT = 1 << 30
    HAS_EXPIRE_ONLY = 1 << 35
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39
    ALLOW_IDMAP = 1 << 40  # Linux 6.12


class OpenFlag(enum.IntFlag):
    """Flags in the reply to OPEN."""

    DIRECT_IO = 1
    KEEP_CACHE = 2
    CACHE_DIR = 8
    NOFLUSH = 32
    PASSTHROUGH = 128


class Notify(enum.IntEnum):
    """Codes of notifications."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    RESEND = 7
    INC_EPOCH = 8


IN_HEADER: Final = struct.Struct("<IIQQIIIHH")  # len opcode unique nodeid uid gid pid extlen pad
OUT_HEADER: Final = struct.Struct("<IiQ")  # len error unique
_ATTR: Final = "QQQQQQIIIIIIIIII"  # ino size blocks a m c, nsec a m c, mode nlink uid gid rdev
_ENTRY: Final = "QQQQII"  # nodeid generation entry_valid attr_valid, nsec of both
ENTRY_OUT: Final = struct.Struct("<" + _ENTRY + _ATTR)
ENTRY_REPLY: Final = struct.Struct("<IiQ" + _ENTRY + _ATTR)
ATTR_REPLY: Final = struct.Struct("<IiQ" + "QII" + _ATTR)
OPEN_IN: Final = struct.Struct("<II")  # flags open_flags
IOCTL_REPLY: Final = struct.Struct("<IiQiIII")  # header, result flags in_iovs out_iovs
OPEN_REPLY: Final = struct.Struct("<IiQ" + "QIi")  # fh open_flags backing_id
READ_IN: Final = struct.Struct("<QQIIQII")  # fh offset size read_flags lock_owner flags pad
RELEASE_IN: Final = struct.Struct("<QIIQ")  # fh flags release_flags lock_owner
INIT_IN: Final = struct.Struct("<IIIII")  # major minor max_readahead flags flags2 (11 unused)
_OLD_INIT_BYTES: Final = 16  # of an old kernel, without flags2
INIT_OUT: Final = struct.Struct("<IIIIHHIIHHIIH22x")
STATFS_REPLY: Final = struct.Struct("<IiQ" + "QQQQQIIII24x")
IOCTL_IN: Final = struct.Struct("<QIIQII")  # fh flags cmd arg in_size out_size
IOCTL_DIR: Final = 1 << 4  # of the flags: the ioctl is on a directory
INTERRUPT_IN: Final = struct.Struct("<Q")  # unique
ACCESS_IN: Final = struct.Struct("<II")  # mask pad
DIRENT: Final = struct.Struct("<QQII")  # ino off namelen type
BACKING_MAP: Final = struct.Struct("<iIQ")  # fd flags padding
_INVAL_ENTRY: Final = struct.Struct("<IiQ" + "QII")  # parent namelen flags
_EXPIRE_ONLY: Final = 1

HEADER_BYTES: Final = IN_HEADER.size
OUT_HEADER_BYTES: Final = OUT_HEADER.size
assert (HEADER_BYTES, OUT_HEADER_BYTES, ENTRY_OUT.size, INIT_OUT.size) == (40, 16, 128, 64)


class InitIn(NamedTuple):
    """A request INIT, unless `opcode` is another one; `flags` has all 64 bits."""

    opcode: int
    unique: int
    major: int
    minor: int
    max_readahead: int
    flags: int


def name_in(buffer: bytes | bytearray, length: int) -> bytes:
    """Returns the name at the end of a request of `length` bytes (LOOKUP). Raises ProtocolError
    when it does not end there, or is empty."""
    if buffer.find(b"\0", HEADER_BYTES, length) != length - 1 or length < HEADER_BYTES + 2:
        raise ProtocolError("a name without an end")
    return bytes(buffer[HEADER_BYTES : length - 1])


def parse_init(request: bytes | bytearray) -> InitIn:
    """Returns the first request. Raises ProtocolError when these bytes are not a whole INIT."""
    received = len(request)
    if received < HEADER_BYTES:
        raise ProtocolError(f"a request of {received} bytes")
    length, opcode, unique, *_ = IN_HEADER.unpack_from(request)
    if length != received or received < HEADER_BYTES + _OLD_INIT_BYTES:
        raise ProtocolError(f"opcode {opcode}: {received} bytes received, header says {length}")
    padded = bytes(request[HEADER_BYTES:]).ljust(INIT_IN.size, b"\0")
    major, minor, max_readahead, flags, flags2 = INIT_IN.unpack_from(padded)
    upper = flags2 if flags & Init.INIT_EXT else 0
    return InitIn(opcode, unique, major, minor, max_readahead, flags | upper << 32)


def error_reply(unique: int, errno: int) -> bytes:
    """Returns the reply of a failed request (errno > 0), or an empty reply (0)."""
    return OUT_HEADER.pack(OUT_HEADER_BYTES, -errno, unique)


def data_header(unique: int, size: int) -> bytes:
    """Returns the header of a reply with `size` bytes of data."""
    return OUT_HEADER.pack(OUT_HEADER_BYTES + size, 0, unique)


def open_reply(unique: int, fh: int, flags: int, backing_id: int) -> bytes:
    return OPEN_REPLY.pack(OPEN_REPLY.size, 0, unique, fh, flags, backing_id)


def ioctl_reply(unique: int, data: bytes) -> bytes:
    """Returns the reply to an IOCTL with the result 0 that writes `data` into its buffer."""
    length = IOCTL_REPLY.size + len(data)
    return IOCTL_REPLY.pack(length, 0, unique, 0, 0, 0, 0) + data


def statfs_reply(unique: int, blocks: int, files: int, block_bytes: int, name_bytes: int) -> bytes:
    """Returns the reply to STATFS of an empty file system."""
    return STATFS_REPLY.pack(
        STATFS_REPLY.size, 0, unique,
        blocks, blocks, blocks, files, files, block_bytes, name_bytes, block_bytes, 0,
    )  # fmt: skip


def dirent(ino: int, cookie: int, kind: int, name: bytes) -> bytes:
    """Returns a padded directory entry; `kind` is st_mode >> 12, `cookie` continues after it."""
    padding = b"\0" * (-len(name) % NAME_ALIGNMENT)
    return DIRENT.pack(ino, cookie, len(name), kind) + name + padding


def inval_entry(parent: int, name: bytes) -> bytes:
    """Returns the notification that invalidates a name. The kernel looks it up at its next use, and
    keeps what is mounted below it, and the working directories there, if it still leads to the same
    inode. Linux before 6.2 drops the name instead."""
    length = _INVAL_ENTRY.size + len(name) + 1
    header = _INVAL_ENTRY.pack(length, Notify.INVAL_ENTRY, 0, parent, len(name), _EXPIRE_ONLY)
    return header + name + b"\0"


def notification(code: Notify) -> bytes:
    """Returns a notification without a body (RESEND, INC_EPOCH)."""
    return OUT_HEADER.pack(OUT_HEADER_BYTES, code, 0)
