"""The system calls that clone and place mounts, by descriptors. libc has no functions for them on
older systems. Their numbers are the same on every architecture.

All of them block: a path below a FUSE mount is resolved by the client that serves it. Never call
them from the loop that answers the kernel. ctypes releases the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

import msgspec

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_AT_EMPTY_PATH: Final = 0x1000
_CLONE: Final = 1
_FROM_EMPTY, _TO_EMPTY = 0x4, 0x40  # of move_mount: both ends are descriptors
_BENEATH_TOP: Final = 0x200  # of move_mount, from Linux 6.5 on
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _NOATIME = 0x1, 0x2, 0x4, 0x8, 0x10
_NOSYMFOLLOW: Final = 0x200000
_ATIME_MODES: Final = 0x70
_MS_PRIVATE: Final = 1 << 18
_MNT_DETACH: Final = 2
# No mount is crossed, and no link followed, on the way to a directory.
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x1, 0x2, 0x4, 0x8
_EXTRA: Final = {"noexec": _NOEXEC, "nosymfollow": _NOSYMFOLLOW}
PATH_ONLY: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class _How(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64),
    ]  # fmt: skip


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64), ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64), ("userns", ctypes.c_uint64),
    ]  # fmt: skip


class MountFlags(msgspec.Struct, frozen=True):
    """The flags of a mount that its covers need, too, as mountinfo names them."""

    names: tuple[str, ...] = ()

    @property
    def bits(self) -> int:
        return sum(bit for name, bit in _EXTRA.items() if name in self.names)


def open_below(directory: int, path: bytes, *, any_kind: bool = False) -> int:
    """Returns a descriptor (O_PATH) of a directory below another one, with `any_kind` of a file,
    too. Raises OSError: EXDEV if the path crosses a mount, ELOOP for a symbolic link, ENOTDIR,
    ENOENT."""
    flags = PATH_ONLY & ~os.O_DIRECTORY if any_kind else PATH_ONLY
    how = _How(flags, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)
    size = ctypes.sizeof(how)
    return _call(_OPENAT2, directory, path or b".", ctypes.byref(how), size)


def clone_read_only(directory: int, flags: MountFlags) -> int:
    """Returns the descriptor of a new mount of a directory, which is attached nowhere: read-only,
    private, and gone when the descriptor is closed. Raises OSError: EINVAL for a directory of
    another mount namespace."""
    fd = _call(_OPEN_TREE, directory, b"", _AT_EMPTY_PATH | _CLONE | os.O_CLOEXEC)
    try:
        bits = _RDONLY | _NOSUID | _NODEV | _NOATIME | flags.bits
        attributes = _Attributes(bits, _ATIME_MODES, _MS_PRIVATE, 0)
        size = ctypes.sizeof(attributes)
        _call(_MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size)
    except OSError:
        os.close(fd)
        raise
    return fd


def attach(mount: int, directory: int, *, beneath: bool = False) -> None:
    """Attaches a new mount over a directory, or beneath the mount whose root that is. Raises
    OSError: EINVAL if the kernel cannot attach beneath."""
    flags = _FROM_EMPTY | _TO_EMPTY | (_BENEATH_TOP if beneath else 0)
    _call(_MOVE_MOUNT, mount, b"", directory, b"", flags)


def detach(root: int) -> None:
    """Unmounts the mount whose root is open as `root`; files that are open stay readable. Raises
    OSError: EINVAL if it is not attached any more, or another mount lies over it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(b"/proc/self/fd/%d" % root, _MNT_DETACH):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount_id(fd: int) -> str:
    """Returns the id of a descriptor's mount, as mountinfo has it. Asks no file system."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return line.split()[1].decode()
    return ""


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
