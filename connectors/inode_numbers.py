"""The devices whose inode numbers are stable. Many FUSE file systems (sshfs, gcsfuse, s3fs: libfuse
without `use_ino`) give a file another inode number after the kernel has forgotten the inode."""

from __future__ import annotations

from typing import Final

from cachefs.core.mountinfo import device_name, read_mounts

MOST_KNOWN: Final = 1024
_keeps: dict[int, bool] = {}  # by device; threads may compute the same value twice


def has_stable_inode_numbers(device: int) -> bool:
    """Returns whether inode numbers on this device (`st_dev`) are stable. Thread-safe. Reads the
    mount table, never the file system, which may hang."""
    known = _keeps.get(device)
    if known is None:
        if len(_keeps) >= MOST_KNOWN:
            _keeps.clear()
        mounts = read_mounts().of_device(device_name(device))
        known = _keeps[device] = not any(mount.fstype.startswith("fuse") for mount in mounts)
    return known
