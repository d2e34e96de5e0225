"""The directory of the namespace that a mount shows as its root. Pure.

The kernel's root is always nodeid 1, so the mount shows that directory as ino 1. A mount of a
subdirectory never shows the namespace's root.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cachefs.core.model import ROOT_INO, Inode


class Root:
    """Maps inos between the mount and the namespace. `inode`: the mounted directory; `path`: its
    path in the namespace."""

    def __init__(self, inode: Inode, path: bytes = b"") -> None:
        self.ino = inode.ino
        self._names = frozenset(path.split(b"/")) - {b""}

    def real(self, ino: int) -> int:
        """Returns the namespace's ino for an ino of the mount."""
        return self.ino if ino == ROOT_INO else ino

    def shown(self, inode: Inode) -> Inode:
        """Returns an inode of the namespace as the mount shows it."""
        if inode.ino != self.ino or self.ino == ROOT_INO:
            return inode
        return msgspec.structs.replace(inode, ino=ROOT_INO)

    def may_have_moved(self, entries: Iterable[tuple[int, bytes]]) -> bool:
        """Returns whether one of these (parent, name) pairs of the namespace may be the mounted
        directory or one above it: the inos of those above are not known here."""
        if self.ino == ROOT_INO:
            return False
        return any(name in self._names and parent != self.ino for parent, name in entries)

    def below(self, entries: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Returns (parent, name) pairs of the namespace as the mount shows them, without those in
        the namespace's root if that is not mounted."""
        if self.ino == ROOT_INO:
            return list(entries)
        return [
            (ROOT_INO if parent == self.ino else parent, name)
            for parent, name in entries
            if parent != ROOT_INO
        ]
