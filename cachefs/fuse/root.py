"""The directory of the namespace that a mount shows as its root. Pure.

The kernel's root is always nodeid 1, so that directory is shown as ino 1 whatever its ino is; the
namespace's own root cannot be seen in a mount of a directory below it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cachefs.core.model import ROOT_INO, Inode


class Root:
    """`inode`: of the directory that is mounted."""

    def __init__(self, inode: Inode) -> None:
        self.ino = inode.ino

    def real(self, ino: int) -> int:
        """The ino in the namespace of an ino as it is shown."""
        return self.ino if ino == ROOT_INO else ino

    def shown(self, inode: Inode) -> Inode:
        """An inode of the namespace as the mount shows it."""
        if inode.ino != self.ino or self.ino == ROOT_INO:
            return inode
        return msgspec.structs.replace(inode, ino=ROOT_INO)

    def below(self, entries: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """(parent, name) of the namespace as the mount knows them, without those above it."""
        if self.ino == ROOT_INO:
            return list(entries)
        return [
            (ROOT_INO if parent == self.ino else parent, name)
            for parent, name in entries
            if parent != ROOT_INO
        ]
