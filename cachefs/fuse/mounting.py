"""The mount point of a session: its options, device number, kernel limits and unmounting.

No function here accesses the mounted file system, which would deadlock: they read /proc and /sys.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Final

from cachefs.client.sockets import MAX_IN_FLIGHT
from cachefs.core.errors import CannotMount, InUse
from cachefs.core.mountinfo import SUBTYPE, read_mounts
from cachefs.core.specs import ClientSpec

log = logging.getLogger(__name__)

READ_AHEAD_KIB: Final = 1024  # the kernel's default of 128 KiB halves sequential reads
# Read-ahead requests in flight; the kernel's default of 12 suffices for one reader. Fewer than the
# client may have in flight at its server, so that lookups do not wait behind reads.
MAX_BACKGROUND: Final = MAX_IN_FLIGHT - 256
CONGESTED: Final = 256  # of these; above it the kernel skips asynchronous read-ahead
FUSERMOUNT_S: Final = 10.0
MNT_DETACH: Final = 2
UMOUNT_NOFOLLOW: Final = 8
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the numbers of these system calls
_FSCONFIG_CMD_CREATE: Final = 6
_CLOEXEC: Final = 1  # of fsopen and of fsmount
_MAX_LAYERS: Final = 8  # covers of one root, one over the other
_CONNECTIONS: Final = "/sys/fs/fuse/connections"


def source_name(spec: ClientSpec) -> str:
    """Returns the source as the mount table shows it: in printable ASCII, other bytes as %XX."""
    url = os.fsencode(spec.source.url)
    return "".join(chr(byte) if 32 < byte < 127 else f"%{byte:02X}" for byte in url)


def mount_options(spec: ClientSpec) -> list[str]:
    """Returns options for libfuse and fusermount3, which need commas in values escaped."""
    name = source_name(spec).replace("\\", "\\\\").replace(",", "\\,")
    options = [f"fsname={name}", f"subtype={SUBTYPE}", "nosuid", "nodev"]
    if spec.read_only:
        options.append("ro")
    if spec.allow_other:
        options.append("allow_other")
    if spec.default_permissions:
        options.append("default_permissions")
    return options + [option.replace(",", "\\,") for option in spec.mount_options]


def device_at(mountpoint: str) -> str:
    """Returns major:minor of the topmost mount at exactly this path, "" when there is none. Covers
    do not count."""
    mount = read_mounts().at(mountpoint)
    return mount.device if mount else ""


def device_of(spec: ClientSpec) -> str:
    """Returns major:minor of the mount of a client; of the topmost one at its mount point if the
    process that started the client is of an earlier version."""
    if spec.deposit is not None:
        return spec.deposit.device
    return spec.device or device_at(spec.mountpoint)


def is_replaced(spec: ClientSpec) -> bool:
    """Returns whether another CacheFS mount is at the mount point of a client's mount, which was
    unmounted lazily before."""
    mount = read_mounts().at(spec.mountpoint)
    return mount is not None and mount.is_cachefs and mount.device != device_of(spec)


def raise_read_ahead(device: str) -> None:
    """Raises the kernel's read-ahead on this mount. Needs root; ignores errors."""
    path = Path(f"/sys/class/bdi/{device}/read_ahead_kb")
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_text()) < READ_AHEAD_KIB:
            path.write_text(f"{READ_AHEAD_KIB}\n")


def raise_background(device: str) -> None:
    """Lets the kernel send `MAX_BACKGROUND` read-ahead requests at once on this mount. With its
    default the kernel drops read-ahead when a dozen readers are active, and reads page by page.
    Above the limit readers wait in the kernel, which does not serve them in order; below it, the
    client serves requests in order of arrival. Needs root; ignores errors. Needs no mounted
    fusectl."""
    minor = device.partition(":")[2]
    with contextlib.suppress(OSError):
        control = control_file_system()
        try:
            limits = {"max_background": MAX_BACKGROUND, "congestion_threshold": CONGESTED}
            for name, value in limits.items():
                fd = os.open(f"{minor}/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=control)
                with open(fd, "w") as file:
                    file.write(f"{value}\n")
        finally:
            os.close(control)


def control_file_system() -> int:
    """Returns a descriptor of the root of fusectl, which the caller closes. Raises OSError."""
    context = _system_call(_FSOPEN, b"fusectl", _CLOEXEC)
    try:
        _system_call(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _system_call(_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)


def has_ended(fuse_fd: int) -> bool:
    """Returns whether the mount of this descriptor of /dev/fuse has ended."""
    poll = select.poll()
    poll.register(fuse_fd, 0)
    return bool(poll.poll(0))  # POLLERR, which poll always reports


def abort(device: str) -> None:
    """Aborts the connection: every caller gets an error. Closing our descriptors is not enough
    while the kernel holds a thread of a killed client in a notification that waits for an
    unanswered request. Raises OSError, for example for ordinary users if fusectl is not mounted."""
    minor = device.partition(":")[2]
    try:
        control = control_file_system()
    except PermissionError:
        control = os.open(_CONNECTIONS, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = os.open(f"{minor}/abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=control)
        with open(fd, "wb", buffering=0) as file:
            file.write(b"1")
    finally:
        os.close(control)


def _system_call(number: int, *arguments: bytes | int | None) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def unmount(mountpoint: str, device: str) -> bool:
    """Unmounts our mount, lazily when it is busy. Returns False after a lazy unmount, True
    otherwise. Leaves another file system at this path mounted (True). Blocks."""
    if device_at(mountpoint) != device:
        return True
    uncover_root(mountpoint)
    try:
        _detach(mountpoint, lazy=False)
        return True
    except InUse:
        log.info("%s is busy: unmounting lazily", mountpoint)
    with contextlib.suppress(InUse):
        _detach(mountpoint, lazy=True)
    return False


def uncover_root(mountpoint: str) -> None:
    """Removes the covers of the root of the CacheFS mount at this path, which an unmount of the
    path would remove instead of the mount. Does not access the mount. Raises CannotMount."""
    for _ in range(_MAX_LAYERS):
        mounts = read_mounts()
        mount = mounts.at(mountpoint)
        covers = [] if mount is None else mounts.covers_of(mount)
        if not any(cover.mountpoint == mountpoint for cover in covers):
            return
        umount2(mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW)


def _detach(mountpoint: str, *, lazy: bool) -> None:
    if os.geteuid() == 0:
        return umount2(mountpoint, MNT_DETACH if lazy else 0)
    tool = shutil.which("fusermount3")
    if tool is None:
        raise CannotMount("fusermount3 is not installed", remedy="install the package fuse3")
    command = [tool, "-u", *(["-z"] if lazy else []), "-q", "--", mountpoint]
    done = subprocess.run(command, check=False, timeout=FUSERMOUNT_S)
    if done.returncode:
        raise InUse("the mount is busy", path=mountpoint)


def umount2(mountpoint: str, flags: int) -> None:
    """Unmounts with flags of umount2(2). Does nothing if nothing is mounted there. Raises InUse,
    CannotMount."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(mountpoint), flags) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.EBUSY:
        raise InUse("the mount is busy", path=mountpoint)
    if number not in (errno.EINVAL, errno.ENOENT):  # these: it is not mounted any more
        raise CannotMount(f"cannot unmount: {os.strerror(number)}", path=mountpoint)
