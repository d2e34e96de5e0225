"""The attributes of an inode in a mount: mode, owner, times, sizes. Pure. All transports use it."""

from __future__ import annotations

import stat
from typing import Final

import msgspec

from cachefs.core.model import Inode, Kind

BLOCK_BYTES: Final = 512  # unit of st_blocks
PREFERRED_IO_BYTES: Final = 1 << 20  # st_blksize: one read of cp or Python's open(); a page
KERNEL_FOREVER_S: Final = 365 * 86400.0  # the kernel has no infinite timeout
NOMINAL_BYTES: Final = 1 << 50  # statfs: an object store has no size, and `df` must not show 0
NOMINAL_FILES: Final = 1 << 40
_TYPE: Final = {
    Kind.FILE: stat.S_IFREG,
    Kind.DIRECTORY: stat.S_IFDIR,
    Kind.SYMLINK: stat.S_IFLNK,
}


class Defaults(msgspec.Struct, frozen=True):
    """The mode and owner of inodes for which the origin has none."""

    uid: int
    gid: int
    file_mode: int = 0o644
    dir_mode: int = 0o755

    def mode(self, inode: Inode) -> int:
        """Returns st_mode: type and permission bits."""
        if inode.mode >= 0:
            return _TYPE[inode.kind] | inode.mode & 0o7777
        if inode.kind is Kind.FILE:
            return stat.S_IFREG | self.file_mode
        if inode.kind is Kind.DIRECTORY:
            return stat.S_IFDIR | self.dir_mode
        return stat.S_IFLNK | 0o777

    def owner(self, inode: Inode) -> tuple[int, int]:
        """Returns (uid, gid)."""
        uid = inode.uid if inode.uid >= 0 else self.uid
        return uid, inode.gid if inode.gid >= 0 else self.gid


def blocks(inode: Inode) -> int:
    """Returns st_blocks as if every byte were local, so that `du` shows the size of a copy."""
    return -(-inode.size // BLOCK_BYTES)


def kernel_time(valid_for_s: float) -> float:
    """Returns the kernel's timeout in seconds for a `valid_for_s` (negative: for ever)."""
    return KERNEL_FOREVER_S if valid_for_s < 0 else min(valid_for_s, KERNEL_FOREVER_S)
