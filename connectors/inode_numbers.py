"""The devices whose inode numbers are stable. Many FUSE file systems (sshfs, gcsfuse, s3fs: libfuse
without `use_ino`) give a file another inode number after the kernel has forgotten the inode."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from cachefs.core.mountinfo import device_name, read_mounts

MOST_KNOWN: Final = 1024
KNOWN_S: Final = 5.0  # after an unmount the kernel gives its device number to another mount


class _Known(NamedTuple):
    is_stable: bool
    until_s: float  # monotonic


_keeps: dict[int, _Known] = {}  # by device; threads may compute the same value twice


def has_stable_inode_numbers(device: int) -> bool:
    """Returns whether inode numbers on this device (`st_dev`) are stable. Thread-safe. Reads the
    mount table, never the file system, which may hang."""
    known, now = _keeps.get(device), time.monotonic()
    if known is not None and now < known.until_s:
        return known.is_stable
    try:
        mounts = read_mounts().of_device(device_name(device))
    except OSError:  # no descriptor is left
        if known is None:
            raise
        return known.is_stable
    if len(_keeps) >= MOST_KNOWN:
        _keeps.clear()
    is_stable = not any(mount.fstype.startswith("fuse") for mount in mounts)
    _keeps[device] = _Known(is_stable, now + KNOWN_S)
    return is_stable
