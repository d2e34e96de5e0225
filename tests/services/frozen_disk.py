"""A file system that is frozen for a while: ext4 on a loop device, as a snapshot freezes it.

    with frozen_disk(tmp_path) as disk:
        ...          # use disk.path
        disk.hang()  # writes wait from now on, through memory maps as well; reads do not
        disk.go_on()

Needs root, `losetup`, `mkfs.ext4` and `fsfreeze`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.services.late_command import LateCommand
from tests.services.loop_device import loop_device, run

IMAGE_BYTES: Final = 512 << 20
HANGS_S: Final = 120.0
FIFREEZE: Final = 0xC0045877
FITHAW: Final = 0xC0045878


class FrozenDisk:
    """The file system at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._late: LateCommand | None = None

    def hang(self) -> None:
        """Writes everything back, so that the next write to a mapped page needs the file system.
        For `HANGS_S` at most: if all threads of this process wait for the disk, a test fails."""
        self._late = LateCommand(HANGS_S, "fsfreeze", "--unfreeze", str(self.path))
        self._call(FIFREEZE)

    def go_on(self) -> None:
        """Idempotent."""
        with contextlib.suppress(OSError):
            self._call(FITHAW)
        if self._late is not None:
            self._late.cancel()

    def _call(self, request: int) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, request, 0)
        finally:
            os.close(fd)


@contextlib.contextmanager
def frozen_disk(root: Path) -> Iterator[FrozenDisk]:
    """Mounted below `root` until the block ends."""
    path, image = root / "frozen", root / "frozen-image"
    path.mkdir()
    with contextlib.ExitStack() as stack:
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        device = stack.enter_context(loop_device(image))
        run("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=1", device)
        run("mount", device, path)
        # Lazily: a tier that was closed while a thread was stuck in it keeps its map.
        stack.callback(run, "umount", "--lazy", path)
        disk = FrozenDisk(path)
        stack.callback(disk.go_on)
        yield disk
