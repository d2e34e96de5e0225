"""Opens complete files of this node: one `openat` in a tier's `pub/` directory, no request.

The worker links a file there when it is complete and unlinks it before an eviction. While it evicts
it holds a lease on the file, so an open must not wait for it: O_NONBLOCK, EAGAIN = absent. An open
must not wait for a disk either: see `Way`. The server opens files that cannot be opened at once.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import struct
from collections.abc import Iterable
from typing import Final

from cachefs.client.published import MOST_TIERS, PublishedDir
from cachefs.fuse.file_systems import LOCAL, MEMORY, file_system_of

ANY_TIER: Final = -1
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
    """The way to open names in a directory."""

    MEMORY = enum.auto()  # tmpfs: nothing there waits for a disk
    CACHED = enum.auto()  # a local disk: only dentries and inodes that the kernel has in memory
    NEVER = enum.auto()  # any other file system may hang


_open, _fstat = os.open, os.fstat
_MEMORY, _NEVER = Way.MEMORY, Way.NEVER


class Published:
    """The `pub/` directories of the node's tiers. Callers pass their current descriptors."""

    def __init__(self) -> None:
        self._failed: set[int] = set()  # tiers whose disk does not respond
        self._ways: dict[int, tuple[PublishedDir, Way]] = {}

    def in_service(self, tier: int = ANY_TIER) -> bool:
        """Returns whether the disk of that tier responds; for `ANY_TIER`, whether all do."""
        return not self._failed if tier == ANY_TIER else tier not in self._failed

    def changed(self, tier: int, *, in_service: bool) -> None:
        """Records the server's report on the disk of a tier."""
        if in_service:
            self._failed.discard(tier)
        elif 0 <= tier < MOST_TIERS:
            self._failed.add(tier)

    def trust_all(self) -> None:
        """Marks all tiers as in service. In a new session the server reports those that fail."""
        self._failed.clear()

    def way(self, directory: PublishedDir) -> Way:
        known = self._ways.get(directory.tier)
        if known is None or known[0] is not directory:
            known = directory, way_of(file_system_of(directory.fd))
            self._ways[directory.tier] = known
        return known[1]

    def open(
        self, directories: Iterable[PublishedDir], name: str, size: int
    ) -> tuple[int, int, int] | None:
        """Opens the complete file in the first tier that has it. Returns (descriptor, st_dev,
        tier); the caller closes the descriptor. None when the file is absent, may be incomplete, or
        cannot be opened without waiting. Raises OSError when no descriptor is left."""
        for directory in directories:
            tier = directory.tier
            if tier in self._failed:
                continue
            known = self._ways.get(tier)
            way = known[1] if known and known[0] is directory else self.way(directory)
            if way is _MEMORY:
                try:
                    fd = _open(name, _FLAGS, dir_fd=directory.fd)
                except OSError as err:
                    if err.errno in _ABSENT:
                        continue
                    raise
            else:
                fd = -1 if way is _NEVER else _open_cached(directory.fd, name)
                if fd < 0:
                    continue
            info = _fstat(fd)
            if info.st_nlink >= 2 and info.st_size == size:
                return fd, info.st_dev, tier
            os.close(fd)  # unpublished between openat and now, or not of this size
        return None


def way_of(kind: str) -> Way:
    """Returns the way for a directory on a file system of that type."""
    if kind in MEMORY:
        return Way.MEMORY
    return Way.CACHED if kind in LOCAL else Way.NEVER


def _open_cached(dir_fd: int, name: str) -> int:
    """Returns a descriptor; -1 when the file is absent, when the kernel would have to read a
    directory from the disk, or when it has no RESOLVE_CACHED.

    EAGAIN is tried again once: a mount or unmount anywhere on the machine during the lookup causes
    it, too (`try_to_unlazy` in fs/namei.c), and the server may be dead at that time."""
    number = errno.EAGAIN
    for _ in range(2):
        fd: int = _syscall(_OPENAT2, dir_fd, name.encode(), _HOW, len(_HOW))
        if fd >= 0:
            return fd
        if (number := ctypes.get_errno()) != errno.EAGAIN:
            break
    if number in _ABSENT or number in _UNKNOWN:
        return -1
    raise OSError(number, os.strerror(number))
