"""A thin volume: ext4 without a journal, on a loop device over a sparse file in a small tmpfs.

    with thin_disk(tmp_path) as disk:
        ...             # use disk.path
        disk.exhaust()  # from now on bytes that need new blocks are accepted, and lost later

Needs root, `losetup` and `mkfs.ext4`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.services.loop_device import LIMIT_S, loop_device, run, unmount_when_free
from tests.services.processes import wait_until

MIB: Final = 1 << 20
IMAGE_BYTES: Final = 512 * MIB


class ThinDisk:
    """The file system at `path`; `below` is the tmpfs that holds its image."""

    def __init__(self, path: Path, below: Path) -> None:
        self.path = path
        self.below = below

    def exhaust(self, left_bytes: int = 0) -> None:
        """Leaves so many bytes for blocks that were never written."""
        with open(self.below / "ballast", "ab") as file:

            def taken() -> bool:
                """Returns False where the loop device took blocks between look and allocation: the
                kernel writes back, and ext4 initialises its tables, at any time."""
                vfs = os.statvfs(self.below)
                taken_bytes = vfs.f_bavail * vfs.f_frsize - left_bytes
                if taken_bytes <= 0:
                    return True
                size_bytes = os.fstat(file.fileno()).st_size
                try:
                    os.posix_fallocate(file.fileno(), size_bytes, taken_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return False
                return True

            wait_until(taken, f"{self.below} has {left_bytes} bytes left", LIMIT_S)

    def extend(self) -> None:
        """Gives the volume room again."""
        os.unlink(self.below / "ballast")


@contextlib.contextmanager
def thin_disk(root: Path, size_bytes: int = 256 * MIB) -> Iterator[ThinDisk]:
    """Mounted below `root` until the block ends, with so much room below it."""
    path, below = root / "thin", root / "thin-below"
    path.mkdir()
    below.mkdir()
    with contextlib.ExitStack() as stack:
        run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", below)
        stack.callback(unmount_when_free, below)
        image = below / "image"
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        device = stack.enter_context(loop_device(image))
        run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "nodiscard", device)
        run("mount", device, path)
        stack.callback(run, "umount", path)
        yield ThinDisk(path, below)


def drop_pages(path: Path) -> None:
    """Makes the kernel drop what it has of a file, as it does when memory is short."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def drop_pages_below(directory: Path) -> None:
    """Drops the pages of the files two levels below. A directory whose own blocks are lost cannot
    be listed: then all pages of the machine are dropped."""
    try:
        for path in directory.glob("*/*"):
            drop_pages(path)
    except OSError:
        Path("/proc/sys/vm/drop_caches").write_text("1")
