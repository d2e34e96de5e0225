"""Loop devices, and file systems on them. Needs root, `losetup` and `umount`."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.services.processes import wait_until

LIMIT_S: Final = 60.0


@contextlib.contextmanager
def loop_device(image: Path) -> Iterator[str]:
    """Yields the path of a block device whose bytes are those of `image`."""
    device = run("losetup", "--show", "--find", image).strip()
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


def unmount_when_free(path: Path) -> None:
    """Unmounts a file system that is in use for another moment: by threads that were stuck in it,
    or by a loop device, which the kernel may let go of after `losetup --detach` has returned."""

    def unmounted() -> bool:
        done = subprocess.run(["umount", path], capture_output=True, timeout=LIMIT_S, check=False)
        return done.returncode == 0

    wait_until(unmounted, f"{path} is unmounted", LIMIT_S)


def run(*command: str | Path) -> str:
    """Returns the output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout
