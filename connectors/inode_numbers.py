"""The devices whose inode numbers are stable. Many FUSE file systems (sshfs, gcsfuse, s3fs: libfuse
without `use_ino`) give a file another inode number after the kernel has forgotten the inode."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MOST_KNOWN: Final = 1024
_keeps: dict[int, bool] = {}  # by device; threads may compute the same value twice


def has_stable_inode_numbers(device: int) -> bool:
    """Returns whether inode numbers on this device (`st_dev`) are stable. Thread-safe. Reads the
    mount table, never the file system, which may hang."""
    known = _keeps.get(device)
    if known is None:
        if len(_keeps) >= MOST_KNOWN:
            _keeps.clear()
        with Path("/proc/self/mountinfo").open("rb") as table:
            known = _keeps[device] = device not in fuse_devices(table)
    return known


def fuse_devices(table: Iterable[bytes]) -> set[int]:
    """Returns the devices of FUSE file systems, from the lines of /proc/self/mountinfo."""
    found = set()
    for line in table:
        mount, _, rest = line.partition(b" - ")
        if rest.startswith(b"fuse"):
            major, minor = mount.split(b" ")[2].split(b":")
            found.add(os.makedev(int(major), int(minor)))
    return found
