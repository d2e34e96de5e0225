"""Detaches a file system from its mount point: umount2(2) for root, fusermount3 for other users."""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import shutil
import subprocess
from typing import Final

from cachefs.cli.owners import shown_user
from cachefs.core.errors import AccessDenied, CacheFSError, CannotMount, InUse
from cachefs.core.mountinfo import read_mounts
from cachefs.fuse import mounting

FUSERMOUNT: Final = "fusermount3"
_LIMIT_S: Final = 20.0


def detach(mountpoint: str, *, lazy: bool) -> None:
    """Unmounts a file system. Raises InUse if it is busy and not `lazy`, CannotMount if nothing is
    mounted there, AccessDenied for another user's mount."""
    if os.geteuid() == 0:
        _umount2(mountpoint, lazy)
    else:
        _check_owner(mountpoint)
        _fusermount(mountpoint, lazy)


def _check_owner(mountpoint: str) -> None:
    """Raises AccessDenied for another user's mount; fusermount3 does not report that cause."""
    mount = read_mounts().at(mountpoint)
    if mount is not None and mount.owner_uid not in (-1, os.geteuid()):
        owner = shown_user(mount.owner_uid)
        may = "root" if mount.owner_uid == 0 else f"{owner} or as root"
        remedy = f"unmount as {may}: sudo cachefs umount {shlex.quote(mountpoint)}"
        raise AccessDenied(f"it is a mount of user {owner}", path=mountpoint, remedy=remedy)


def _umount2(mountpoint: str, lazy: bool) -> None:
    if lazy:
        mounting.uncover_root(mountpoint)
    flags = mounting.UMOUNT_NOFOLLOW | (mounting.MNT_DETACH if lazy else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(mountpoint), flags) != 0:
        raise _error(mountpoint, os.strerror(ctypes.get_errno()), ctypes.get_errno())


def _fusermount(mountpoint: str, lazy: bool) -> None:
    program = shutil.which(FUSERMOUNT)
    if program is None:
        raise CannotMount(f"{FUSERMOUNT} is missing", remedy="install the system package fuse3")
    command = [program, "-u", *(["-z"] if lazy else []), "--", mountpoint]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False
    )
    if done.returncode != 0:
        cause = done.stderr.strip().splitlines()
        text = cause[-1] if cause else f"{FUSERMOUNT} ended with status {done.returncode}"
        number = errno.EBUSY if "busy" in text else errno.EINVAL if "not found" in text else 0
        raise _error(mountpoint, text, number)


def _error(mountpoint: str, text: str, number: int) -> CacheFSError:
    if number == errno.EBUSY:
        return InUse("in use", path=mountpoint)
    if number in (errno.EINVAL, errno.ENOENT):
        return CannotMount("nothing is mounted there", path=mountpoint)
    if number in (errno.EPERM, errno.EACCES):
        remedy = "unmount as root, or as the user who mounted it"
        return AccessDenied("you may not unmount it", path=mountpoint, remedy=remedy)
    return CannotMount(f"cannot be unmounted: {text}", path=mountpoint)
