"""The resolution of one path in a namespace, link by link. Pure.

Links are followed inside the tree of the source only: what lies outside of it has no inode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from cachefs.core.errors import (
    BadConfig,
    CacheFSError,
    NameTooLong,
    NotADirectory,
    NotFound,
    OriginError,
    Unsupported,
)
from cachefs.core.model import MAX_NAME_BYTES, Inode, Kind

MOST_LINKS: Final = 40  # as the kernel follows


class Question(msgspec.Struct, frozen=True, gc=False):
    """A name whose inode the walk needs next."""

    parent: int
    name: bytes


class PathWalk:
    """A walk from `root` along `path`. While `question` is not None, the caller calls `answer`.
    Then `inode` is the result, or `error` is the reason why none exists."""

    def __init__(self, root: Inode, path: bytes) -> None:
        self.inode = root
        self.error: CacheFSError | None = None
        self._above = [root]  # the directories from the root to the current one
        self._todo = parts_of(path)
        self._links = 0
        self._skip_dots()

    @property
    def question(self) -> Question | None:
        if self.error is not None or not self._todo:
            return None
        return Question(self.inode.ino, self._todo[-1])

    def answer(self, inode: Inode | None) -> None:
        """Continues with the inode of the name in question; None: the name does not exist."""
        self._todo.pop()
        if inode is None:
            self.fail(NotFound("no such file or directory"))
        elif inode.kind is Kind.SYMLINK:
            self._follow(inode)
        else:
            self.inode = inode
            if inode.kind is Kind.DIRECTORY:
                self._above.append(inode)
        self._skip_dots()

    def fail(self, error: CacheFSError) -> None:
        """Ends the walk with an error."""
        self.error = error
        self._todo = []

    def _follow(self, link: Inode) -> None:
        self._links += 1
        if self._links > MOST_LINKS:
            return self.fail(OriginError("too many levels of symbolic links"))
        if link.target.startswith(b"/"):
            return self.fail(_outside())
        self._todo += parts_of(link.target)

    def _skip_dots(self) -> None:
        """Handles `..` by itself, and refuses names that cannot exist."""
        while self._todo:
            if self.inode.kind is not Kind.DIRECTORY:
                return self.fail(NotADirectory("not a directory"))
            name = self._todo[-1]
            if len(name) > MAX_NAME_BYTES:
                return self.fail(NameTooLong("a name has at most 255 bytes"))
            if name != b"..":
                return
            if len(self._above) == 1:
                return self.fail(_outside())
            self._todo.pop()
            self._above.pop()
            self.inode = self._above[-1]


def parts_of(path: bytes) -> list[bytes]:
    """Returns the names of a path, the last one first. Raises BadConfig for a NUL byte."""
    if b"\0" in path:
        raise BadConfig(f"not a path: {path!r}")
    return [part for part in reversed(path.split(b"/")) if part not in (b"", b".")]


def join(*parts: bytes) -> bytes:
    """Returns parts of a path joined by single slashes, without one at its ends."""
    return b"/".join(_stripped(parts))


def _stripped(parts: Iterable[bytes]) -> list[bytes]:
    return [part for part in (one.strip(b"/") for one in parts) if part]


def _outside() -> Unsupported:
    return Unsupported(
        "the path leads out of the source", remedy="open it below a mount of the source"
    )
