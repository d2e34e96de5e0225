"""The kernel's mounts, as /proc/PID/mountinfo lists them.

Nothing here accesses a mount: a dead or hanging one blocks every access. A *cover* is a read-only
clone of a view's tree over a directory of a CacheFS mount. `Mounts` keeps the covers apart, so that
they hide no CacheFS mount: a path below a cover is a path below the mount.
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
_TREE: Final = re.compile(r"/views/[0-9a-f]{16}(?=/|$)")  # of a view, in a tier's directory


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo. `root` is the part of the file system that is shown (bind mounts)."""

    device: str  # major:minor
    root: str
    mountpoint: str
    fstype: str
    source: str
    options: tuple[str, ...]  # of the file system ("super options")
    mount_id: str = ""
    parent_id: str = ""
    flags: tuple[str, ...] = ()  # of this mount: ro, nosuid, ...

    @property
    def is_cachefs(self) -> bool:
        return self.fstype == FSTYPE

    @property
    def shows_view(self) -> bool:
        """True for a read-only mount of (a part of) the tree of a view."""
        return "ro" in self.flags and _TREE.search(self.root) is not None

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
        if separator and len(fields) >= 6 and len(rest) >= 2:
            options = rest[2].decode(errors="replace").split(",") if len(rest) > 2 else []
            yield Mount(
                device=fields[2].decode(),
                root=_unescape(fields[3]),
                mountpoint=_unescape(fields[4]),
                fstype=rest[0].decode(),
                source=_unescape(rest[1]),
                options=tuple(options),
                mount_id=fields[0].decode(),
                parent_id=fields[1].decode(),
                flags=tuple(fields[5].decode(errors="replace").split(",")),
            )


def _unescape(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


def device_name(st_dev: int) -> str:
    """Returns a device as mountinfo shows it: major:minor."""
    return f"{os.major(st_dev)}:{os.minor(st_dev)}"


class Mounts:
    """A snapshot of the mounts of one mount namespace, `covers` apart."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        everything = tuple(mounts)
        ours = {mount.mount_id for mount in everything if mount.is_cachefs}
        self.covers = tuple(_covers(everything, ours))
        covers = {cover.mount_id for cover in self.covers}
        self._mounts = tuple(mount for mount in everything if mount.mount_id not in covers)
        self._on_top = {mount.mountpoint: mount for mount in self._mounts}

    def __iter__(self) -> Iterator[Mount]:
        return iter(self._mounts)

    def at(self, path: str) -> Mount | None:
        """Returns the top mount at exactly this path."""
        return self._on_top.get(path)

    def covers_of(self, mount: Mount) -> list[Mount]:
        """Returns the covers that lie over directories of a CacheFS mount, in kernel order."""
        return _covers(self.covers, {mount.mount_id})

    def beneath(self, cover: Mount) -> Mount | None:
        """Returns the mount over a directory of which a cover lies."""
        return next((mount for mount in self._mounts if mount.mount_id == cover.parent_id), None)

    def is_hidden(self, mount: Mount) -> bool:
        """Returns whether another mount lies over the root of a mount."""
        return any(
            other.parent_id == mount.mount_id and other.mountpoint == mount.mountpoint
            for other in self._mounts
        )

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

    def containing(self, path: str) -> Mount | None:
        """Returns the mount that an absolute path without links and `..` lies on."""
        while True:
            mount = self.at(path or "/")
            if mount is not None or not path:
                return mount
            path = path.rpartition("/")[0]

    def below(self, mountpoint: str) -> list[Mount]:
        """Returns the mounts below a mount point."""
        prefix = mountpoint.rstrip("/") + "/"
        return [mount for mount in self._mounts if mount.mountpoint.startswith(prefix)]


def _covers(mounts: Iterable[Mount], below: set[str]) -> list[Mount]:
    """Returns the covers over mounts with these ids, and the covers over those."""
    ids, found = set(below), []
    for mount in mounts:
        if mount.shows_view and mount.parent_id in ids:
            ids.add(mount.mount_id)
            found.append(mount)
    return found


def read_mounts(path: Path = OWN) -> Mounts:
    """Returns the current mounts, of this process's mount namespace unless `path` is another
    mountinfo. Raises OSError."""
    return Mounts(parse_mountinfo(path.read_bytes()))
