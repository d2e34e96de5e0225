"""The kernel's mount table, and paths resolved against it without touching a CacheFS mount.

A dead or hanging FUSE mount blocks every access. Paths are therefore resolved link by link outside
CacheFS mounts, and lexically inside them.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig

FSTYPE: Final = "fuse.cachefs"
MOUNTINFO: Final = "/proc/self/mountinfo"
MAX_LINKS: Final = 40
PROBE_S: Final = 2.0
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo. `root` is the part of the file system that is shown (bind mounts)."""

    device: str  # major:minor
    root: str
    mountpoint: str
    fstype: str
    source: str
    options: tuple[str, ...]  # of the file system ("super options")

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


def parse_mountinfo(text: bytes) -> list[Mount]:
    """Returns the mounts in kernel order: of several on one mount point the last is on top."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(b" - ")
        fields, rest = left.split(b" "), right.split(b" ")
        if separator and len(fields) >= 5 and len(rest) >= 2:
            options = rest[2].decode(errors="replace").split(",") if len(rest) > 2 else []
            found.append(
                Mount(
                    fields[2].decode(),
                    _unescape(fields[3]),
                    _unescape(fields[4]),
                    rest[0].decode(),
                    _unescape(rest[1]),
                    tuple(options),
                )
            )
    return found


def _unescape(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


class MountTable:
    """The mounts by mount point; of several on one mount point the top one counts."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self._mounts = tuple(mounts)
        self._on_top = {mount.mountpoint: mount for mount in mounts}

    def at(self, path: str) -> Mount | None:
        """Returns the top mount at exactly this path."""
        return self._on_top.get(path)

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


def read_mounts() -> MountTable:
    """Returns the current mounts of this mount namespace."""
    with open(MOUNTINFO, "rb") as file:
        return MountTable(parse_mountinfo(file.read()))


class ResolvedPath(msgspec.Struct, frozen=True):
    """The real path outside CacheFS mounts; inside one, the mount and the rest of the path."""

    path: str
    mount: Mount | None = None
    inside: str = ""  # below the root of the mount's file system, without a leading '/'


def locate(
    path: str,
    mounts: MountTable,
    *,
    cwd: str | None = None,
    readlink: Callable[[str], str] = os.readlink,
) -> ResolvedPath:
    """Resolves a path, links included, up to the first CacheFS mount on it. A name that does not
    exist is taken as written. Raises BadConfig for a cycle of links."""
    absolute = path if path.startswith("/") else os.path.join(cwd or os.getcwd(), path)
    todo = _parts(absolute)
    here, links = "/", 0
    while True:
        mount = mounts.at(here)
        if mount is not None and mount.is_cachefs:
            inside = _walk_inside(todo)
            if inside is not None:
                rest = "/".join([mount.root.strip("/"), *inside])
                return ResolvedPath(here, mount, rest.lstrip("/"))
            here = os.path.dirname(here)
            continue
        if not todo:
            return ResolvedPath(here)
        name = todo.pop()
        if name == "..":
            here = os.path.dirname(here)
            continue
        target = _link(os.path.join(here, name), mounts, readlink)
        if target is None:
            here = os.path.join(here, name)
            continue
        links += 1
        if links > MAX_LINKS:
            raise BadConfig("too many levels of symbolic links", path=path)
        here = "/" if target.startswith("/") else here
        todo += _parts(target)


def _walk_inside(todo: list[str]) -> list[str] | None:
    """Returns the rest of a path below a mount point with `..` resolved; None if `..` leads out."""
    inside: list[str] = []
    while todo:
        name = todo.pop()
        if name != "..":
            inside.append(name)
        elif inside:
            inside.pop()
        else:
            return None
    return inside


def _parts(path: str) -> list[str]:
    """Returns the components, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link(path: str, mounts: MountTable, readlink: Callable[[str], str]) -> str | None:
    mount = mounts.at(path)
    if mount is not None and mount.is_cachefs:
        return None
    try:
        return readlink(path)
    except OSError:
        return None


def is_dead(mountpoint: str, probe: Callable[[str], object] = os.statvfs) -> bool:
    """Returns whether the process behind a FUSE mount has ended. A hanging mount counts as alive.

    statvfs(2) always reaches the process behind the mount; the kernel may answer stat(2) from its
    cache. The probe runs in a thread that is abandoned after `PROBE_S`.
    """
    seen: list[int] = []

    def ask() -> None:
        try:
            probe(mountpoint)
        except OSError as err:
            seen.append(err.errno or 0)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_S)
    return bool(seen) and seen[0] in (errno.ENOTCONN, errno.ECONNABORTED)
