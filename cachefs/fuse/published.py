"""Opening what is complete on this node: one `openat` in the tier's `pub/` directory, no message.

The worker links a file there when every byte is in it and unlinks it before it evicts. While it
evicts it holds a lease on the file, so an open must not wait for it: O_NONBLOCK, EAGAIN = absent.
Nor must it wait for a disk: see `Way`. What cannot be opened at once is the server's to open.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import struct
from typing import Final

from cachefs.fuse.file_systems import LOCAL, MEMORY, file_system_of

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_ABSENT: Final = frozenset(
    (errno.ENOENT, errno.EAGAIN, errno.ELOOP, errno.EBADF, errno.ENXIO, errno.EACCES, errno.EIO)
)
_OPENAT2: Final = 437  # of all architectures
_RESOLVE_CACHED: Final = 0x20  # Linux 5.12
_HOW: Final = struct.pack("=QQQ", _FLAGS, 0, _RESOLVE_CACHED)
_UNKNOWN: Final = frozenset((errno.ENOSYS, errno.EINVAL, errno.EPERM))
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]


class Way(enum.Enum):
    """How names in a directory are opened."""

    MEMORY = enum.auto()  # tmpfs: nothing there waits for a disk
    CACHED = enum.auto()  # a local disk: what the kernel has in memory
    NEVER = enum.auto()  # anything else may ask somebody who does not answer


class Published:
    """The `pub/` directory of the node's tier, by whatever descriptor it has at the moment."""

    def __init__(self) -> None:
        self.in_service = True  # False: its disk does not answer
        self._way = Way.NEVER
        self._known: tuple[int, int] | None = None

    def way(self, dir_fd: int, epoch: int) -> Way:
        """`epoch` changes with the directory that a descriptor's number stands for."""
        if self._known != (dir_fd, epoch):
            self._way = way_of(file_system_of(dir_fd))
            self._known = dir_fd, epoch
        return self._way

    def open(self, dir_fd: int, epoch: int, name: str, size: int) -> tuple[int, int] | None:
        """A descriptor of the complete file and its st_dev, or None when it is not there, or not
        surely, or cannot be opened without waiting.

        Raises OSError when this process, or the system, has no descriptor left.
        """
        if not self.in_service or dir_fd < 0:
            return None
        match self.way(dir_fd, epoch):
            case Way.MEMORY:
                fd = _open(dir_fd, name)
            case Way.CACHED:
                fd = _open_cached(dir_fd, name)
            case Way.NEVER:
                return None
        return None if fd < 0 else _checked(fd, size)


def way_of(kind: str) -> Way:
    """For a directory on a file system of that type."""
    if kind in MEMORY:
        return Way.MEMORY
    return Way.CACHED if kind in LOCAL else Way.NEVER


def _open(dir_fd: int, name: str) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=dir_fd)
    except OSError as err:
        if err.errno in _ABSENT:
            return -1
        raise


def _open_cached(dir_fd: int, name: str) -> int:
    """As `_open`, -1 also when the kernel would have to read a directory from the disk (or is too
    old to promise that it does not)."""
    fd: int = _syscall(_OPENAT2, dir_fd, name.encode(), _HOW, len(_HOW))
    if fd >= 0:
        return fd
    number = ctypes.get_errno()
    if number in _ABSENT or number in _UNKNOWN:
        return -1
    raise OSError(number, os.strerror(number))


def _checked(fd: int, size: int) -> tuple[int, int] | None:
    info = os.fstat(fd)
    if info.st_nlink >= 2 and info.st_size == size:
        return fd, info.st_dev
    os.close(fd)  # unpublished between openat and now, or not what its name says
    return None
