"""What a mount shows of an inode: mode, owner, times, sizes. Pure, the same for every transport."""

from __future__ import annotations

import stat
from typing import Final

import msgspec

from cachefs.core.model import Inode, Kind

BLOCK_BYTES: Final = 512  # unit of st_blocks
PREFERRED_IO_BYTES: Final = (
    1 << 20
)  # st_blksize: what cp and Python's open() read at a time; a page
KERNEL_FOREVER_S: Final = 365 * 86400.0  # the kernel has no "never"
NOMINAL_BYTES: Final = 1 << 50  # statfs: an object store has no size, and `df` must not say 0
NOMINAL_FILES: Final = 1 << 40
_TYPE: Final = {
    Kind.FILE: stat.S_IFREG,
    Kind.DIRECTORY: stat.S_IFDIR,
    Kind.SYMLINK: stat.S_IFLNK,
}


class Defaults(msgspec.Struct, frozen=True):
    """What is shown where the origin says nothing."""

    uid: int
    gid: int
    file_mode: int = 0o644
    dir_mode: int = 0o755

    def mode(self, inode: Inode) -> int:
        """st_mode: type and permission bits."""
        if inode.mode >= 0:
            return _TYPE[inode.kind] | inode.mode & 0o7777
        if inode.kind is Kind.FILE:
            return stat.S_IFREG | self.file_mode
        if inode.kind is Kind.DIRECTORY:
            return stat.S_IFDIR | self.dir_mode
        return stat.S_IFLNK | 0o777

    def owner(self, inode: Inode) -> tuple[int, int]:
        """(uid, gid)."""
        uid = inode.uid if inode.uid >= 0 else self.uid
        return uid, inode.gid if inode.gid >= 0 else self.gid


def blocks(inode: Inode) -> int:
    """st_blocks as if every byte were here, so that `du` shows what a copy would take."""
    return -(-inode.size // BLOCK_BYTES)


def kernel_time(valid_for_s: float) -> float:
    """A `valid_for_s` (negative: for ever) as a time-out of the kernel, in seconds."""
    return KERNEL_FOREVER_S if valid_for_s < 0 else min(valid_for_s, KERNEL_FOREVER_S)
