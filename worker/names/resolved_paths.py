"""The directories that were resolved by path, for replies while the master is down. Pure.

The root of a cluster's mount is such a directory: the client resolves its path and never looks up
its name, so the cache of names does not have it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cachefs.core.model import Inode

MOST: Final = 32  # more than the mounts of a node


class ResolvedPaths:
    """The last `MOST` directories, by their path below the namespace root."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Inode] = OrderedDict()

    def put(self, path: bytes, inode: Inode) -> None:
        """Keeps the directory at a path; drops the oldest one if there are more than `MOST`."""
        self._known[path] = inode
        self._known.move_to_end(path)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    def nearest(self, path: bytes) -> tuple[Inode | None, list[bytes]]:
        """Returns the known directory that is nearest to a path, at or above it, and the names that
        lead from there to the path; None where only the root is above it."""
        names = path.split(b"/") if path else []
        for end in range(len(names), -1, -1):
            known = self._known.get(b"/".join(names[:end]))
            if known is not None:
                return known, names[end:]
        return None, names

    def forget(self, name: bytes) -> None:
        """Drops the directories that have a changed name in their path."""
        for path in [path for path in self._known if name in path.split(b"/")]:
            del self._known[path]

    def clear(self) -> None:
        self._known.clear()
