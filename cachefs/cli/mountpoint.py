"""Checks of a mount point and of this machine, before a mount starts any process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from typing import Final

from cachefs.cli import detach
from cachefs.cli.mounts import is_dead, locate
from cachefs.core.errors import AccessDenied, CannotMount, InUse, NotADirectory
from cachefs.core.mountinfo import Mount, read_mounts
from cachefs.launcher.state import MountRecord, StateHome

DEV_FUSE: Final = "/dev/fuse"
FUSE_CONF: Final = "/etc/fuse.conf"


def prepare(path: str, home: StateHome) -> str:
    """Returns the real path of an empty directory to mount on; detaches a dead CacheFS mount of
    this user from it.

    Raises NotADirectory, CannotMount or InUse with the remedy.
    """
    mounts = read_mounts()
    place = locate(path, mounts)
    if place.mount is not None and place.inside:
        raise CannotMount("lies inside another CacheFS mount", path=path, remedy="mount elsewhere")
    mount = mounts.at(place.path)
    if mount is not None:
        _clear(mount, home)
    check_empty_directory(place.path)
    return place.path


def _clear(mount: Mount, home: StateHome) -> None:
    """Detaches a dead CacheFS mount. Raises InUse for a mount that is alive or not ours."""
    if (
        not mount.is_cachefs
        or not may_clear_mount(mount)
        or not is_unserved(mount.mountpoint, home.find_mount(mount.mountpoint))
    ):
        raise InUse(
            f"already a mount point ({mount.fstype}, {mount.source})",
            path=mount.mountpoint,
            remedy="unmount it first"
            f" (cachefs umount {shlex.quote(mount.mountpoint)}) or mount elsewhere",
        )
    clear_dead(mount.mountpoint, home)
    left = read_mounts().at(mount.mountpoint)
    if left is not None:  # another mount was below it
        _clear(left, home)


def is_unserved(mountpoint: str, record: MountRecord | None) -> bool:
    """Returns whether no process serves a mount. A mount whose root is covered cannot be reached by
    its path: its record decides, and without one it counts as served."""
    mounts = read_mounts()
    mount = mounts.at(mountpoint)
    covers = [] if mount is None else mounts.covers_of(mount)
    if any(cover.mountpoint == mountpoint for cover in covers):
        return record is not None and not record.is_served()
    return is_dead(mountpoint)


def may_clear_mount(mount: Mount) -> bool:
    """Returns whether this user may detach a mount: it is the user's own, or the user is root."""
    return os.geteuid() in (0, mount.owner_uid)


def clear_dead(mountpoint: str, home: StateHome) -> None:
    """Detaches a dead mount, and removes its record if no process serves it."""
    detach.detach(mountpoint, lazy=True)
    record = home.find_mount(mountpoint)
    if record is not None and not record.is_served():
        home.remove_mount(mountpoint, record.pid)


def check_empty_directory(path: str) -> None:
    """Raises CannotMount, NotADirectory or AccessDenied unless the path is an empty directory."""
    try:
        info = os.stat(path)
    except FileNotFoundError as err:
        remedy = f"create it: mkdir -p {shlex.quote(path)}"
        raise CannotMount("the mount point does not exist", path=path, remedy=remedy) from err
    except NotADirectoryError as err:
        raise NotADirectory("the mount point is not a directory", path=path) from err
    if not stat.S_ISDIR(info.st_mode):
        raise NotADirectory(
            "the mount point is not a directory", path=path, remedy="give an empty directory"
        )
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
    except PermissionError as err:
        raise AccessDenied("you may not read the mount point", path=path) from err
    if not empty:
        raise CannotMount(
            "the mount point is not empty", path=path, remedy="give an empty directory"
        )


@contextlib.contextmanager
def reserved(path: str, home: StateHome) -> Iterator[None]:
    """Keeps other commands of this user from mounting on a directory meanwhile: their mounts would
    lie over each other, and a start that fails would remove the mount of another one. The lock is
    in the state home: everybody who may read the directory could keep one on it. Raises InUse."""
    with home.mount_lock(path) as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            remedy = "wait for its end; lslocks shows its pid"
            raise InUse("another command mounts there", path=path, remedy=remedy) from err
        except OSError:
            pass  # a file system without locks
        if read_mounts().at(path) is not None:
            raise InUse("another command has mounted there", path=path)
        yield


def check_machine(allow_other: bool) -> None:
    """Raises CannotMount with the remedy if this user cannot mount a FUSE file system here."""
    if not os.path.exists(DEV_FUSE):
        raise CannotMount(
            f"{DEV_FUSE} is missing",
            remedy="load the kernel module (modprobe fuse), or give the container the device",
        )
    if not os.access(DEV_FUSE, os.R_OK | os.W_OK):
        raise CannotMount(f"you may not open {DEV_FUSE}", remedy=f"chmod 666 {DEV_FUSE}")
    if os.geteuid() == 0:
        return
    if shutil.which(detach.FUSERMOUNT) is None:
        raise CannotMount(
            f"{detach.FUSERMOUNT} is missing, which users other than root need",
            remedy="install the system package fuse3",
        )
    if allow_other and not user_allow_other():
        raise CannotMount(
            f"{FUSE_CONF} does not allow allow_other to users other than root",
            remedy=f"put the line user_allow_other into {FUSE_CONF}, or leave --allow-other out",
        )


def user_allow_other(path: str = FUSE_CONF) -> bool:
    """Returns whether users other than root may give others access to their mounts."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return any(line.strip() == "user_allow_other" for line in file)
    return False
