"""Finds the file system of a descriptor without a call to that file system, which may hang."""

from __future__ import annotations

import os
from typing import Final

from cachefs.core.mountinfo import OWN, parse_mountinfo

MEMORY: Final = frozenset({"tmpfs", "ramfs"})
# An inode that is open or in the dentry cache is in memory there: open and fstat do no I/O.
LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"})


def file_system_of(fd: int) -> str:
    """Returns the type ("tmpfs" for a memfd), "" if unknown. Raises OSError without descriptors."""
    mount_id = _mount_of(fd)
    if not mount_id:
        return ""
    for mount in parse_mountinfo(OWN.read_bytes()):
        if mount.mount_id == mount_id:
            return mount.fstype
    return "" if not _is_memory(fd) else "tmpfs"


def _mount_of(fd: int) -> str:
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii", errors="replace") as info:
            for line in info:
                name, _, value = line.partition(":")
                if name == "mnt_id":
                    return value.strip()
    except FileNotFoundError:
        pass
    return ""


def _is_memory(fd: int) -> bool:
    """Returns whether this is a memfd: the kernel's internal mount of memfds is in no table."""
    return os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
