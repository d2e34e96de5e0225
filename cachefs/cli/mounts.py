"""Paths resolved against the kernel's mounts without touching a CacheFS mount.

A dead or hanging FUSE mount blocks every access. Paths are therefore resolved link by link outside
CacheFS mounts, and lexically inside them.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.core.errors import BadConfig
from cachefs.core.mountinfo import Mount, Mounts

MAX_LINKS: Final = 40
PROBE_S: Final = 2.0


class ResolvedPath(msgspec.Struct, frozen=True):
    """The real path outside CacheFS mounts; inside one, the mount and the rest of the path."""

    path: str
    mount: Mount | None = None
    inside: str = ""  # below the root of the mount's file system, without a leading '/'


def locate(
    path: str,
    mounts: Mounts,
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


def _link(path: str, mounts: Mounts, readlink: Callable[[str], str]) -> str | None:
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
