"""The kernel's mounts, as /proc/PID/mountinfo lists them.

Nothing here accesses a mount: a dead or hanging one blocks every access.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

SUBTYPE: Final = "cachefs"
FSTYPE: Final = f"fuse.{SUBTYPE}"
OWN: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo. `root` is the part of the file system that is shown (bind mounts)."""

    device: str  # major:minor
    root: str
    mountpoint: str
    fstype: str
    source: str
    options: tuple[str, ...]  # of the file system ("super options")
    mount_id: str = ""

    @property
    def is_cachefs(self) -> bool:
        return self.fstype == FSTYPE

    @property
    def owner_uid(self) -> int:
        """The user who mounted it (FUSE); -1 if unknown."""
        for option in self.options:
            if option.startswith("user_id="):
                return int(option.removeprefix("user_id="))
        return -1


def parse_mountinfo(text: bytes) -> Iterator[Mount]:
    """Yields the mounts in kernel order: of several on one mount point the last is on top."""
    for line in text.splitlines():
        left, separator, right = line.partition(b" - ")
        fields, rest = left.split(b" "), right.split(b" ")
        if separator and len(fields) >= 5 and len(rest) >= 2:
            options = rest[2].decode(errors="replace").split(",") if len(rest) > 2 else []
            yield Mount(
                device=fields[2].decode(),
                root=_unescape(fields[3]),
                mountpoint=_unescape(fields[4]),
                fstype=rest[0].decode(),
                source=_unescape(rest[1]),
                options=tuple(options),
                mount_id=fields[0].decode(),
            )


def _unescape(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


def device_name(st_dev: int) -> str:
    """Returns a device as mountinfo shows it: major:minor."""
    return f"{os.major(st_dev)}:{os.minor(st_dev)}"


class Mounts:
    """A snapshot of the mounts of one mount namespace."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._mounts = tuple(mounts)
        self._on_top = {mount.mountpoint: mount for mount in self._mounts}

    def __iter__(self) -> Iterator[Mount]:
        return iter(self._mounts)

    def at(self, path: str) -> Mount | None:
        """Returns the top mount at exactly this path."""
        return self._on_top.get(path)

    def layers(self, path: str) -> int:
        """Returns how many mounts are at exactly this path."""
        return sum(mount.mountpoint == path for mount in self._mounts)

    def ours(self) -> list[Mount]:
        """Returns the CacheFS mounts without bind mounts of them."""
        return [m for m in self._on_top.values() if m.is_cachefs and m.root == "/"]

    def original(self, mount: Mount) -> Mount:
        """Returns the mount that a bind mount was made from, or the mount itself."""
        same = (m for m in self.ours() if m.device == mount.device)
        return mount if mount.root == "/" else next(same, mount)

    def of_device(self, device: str) -> list[Mount]:
        """Returns every mount of one file system, bind mounts included."""
        return [mount for mount in self._mounts if mount.device == device]

    def below(self, mountpoint: str) -> list[Mount]:
        """Returns the mounts below a mount point."""
        prefix = mountpoint.rstrip("/") + "/"
        return [mount for mount in self._mounts if mount.mountpoint.startswith(prefix)]


def read_mounts(path: Path = OWN) -> Mounts:
    """Returns the current mounts, of this process's mount namespace unless `path` is another
    mountinfo. Raises OSError."""
    return Mounts(parse_mountinfo(path.read_bytes()))
