"""Kernel calls on files and file systems: whether a file is in use, syncfs, the type of a mount.

The calls block. An event loop may call only `is_unused`, `reopen` and `allocated_bytes`, which
access memory only (the last two on `LOCAL` file systems).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import signal
from typing import Final

from cachefs.core.mountinfo import device_name, read_mounts

NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "afs"),
        *("9p", "ocfs2", "gfs2", "glusterfs"),
    }
)
MEMORY: Final = frozenset({"tmpfs", "ramfs"})
# Reopening an open file accesses memory only on these; on others it may wait for a server.
LOCAL: Final = frozenset({*MEMORY, "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"})
_DIRECT_BYTES: Final = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def is_unused(fd: int) -> bool:
    """Returns whether the file is open or mapped by `fd` only. The kernel grants a write lease only
    then; the lease is released at once. Returns True too if the file system has no leases:
    unlinking is still safe, only the accounting drops the bytes too early."""
    try:
        # The kernel signals a lease break by SIGURG, which is ignored by default, not by SIGIO.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as err:
        return err.errno not in (errno.EAGAIN, errno.EBUSY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def reopen(fd: int) -> int:
    """Returns a read-only descriptor of the same file with a separate open file description, so
    that leases count it. The caller closes it."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)


def allocated_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def syncfs(fd: int) -> None:
    """Forces all data of the file system that holds `fd` to its disk. Raises OSError."""
    if _libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_from_disk(name: str, dir_fd: int) -> None:
    """Reads the beginning of a file, past the page cache if supported. Raises OSError."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        with mmap.mmap(-1, _DIRECT_BYTES) as aligned:
            try:
                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
                os.preadv(fd, [aligned], 0)
            except OSError as err:
                if err.errno != errno.EINVAL:  # O_DIRECT is not supported
                    raise
    finally:
        os.close(fd)


def kind_of_mount(fd: int) -> str:
    """Returns the type of the file system that holds `fd` (`ext4`, `nfs4`); "": unknown."""
    device = device_name(os.fstat(fd).st_dev)
    try:
        mounts = read_mounts().of_device(device)
    except OSError:
        return ""
    return mounts[0].fstype if mounts else ""


def boot_id() -> bytes:
    """Returns 16 bytes that change at each boot of the machine; zeros if the kernel has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def directory_identity(path: str) -> tuple[int, int] | None:
    """Returns (st_dev, st_ino) of a directory; None when there is none. Blocks."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
