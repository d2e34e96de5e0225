"""Opens and reads complete files of this node in the caller's thread, without a request.

The rules are those of `cachefs.fuse.published`, but an open may wait for a local disk: it blocks no
loop. The worker links a complete file in `pub/` and unlinks it before an eviction, so a file with
two links and the right size has every byte.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import Final

from cachefs.client.published import PublishedDir, PublishedDirs
from cachefs.core.errors import BadBody
from cachefs.core.owned_fd import OwnedFd, opened
from cachefs.fuse.published import Published, Way

FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_ABSENT: Final = frozenset(
    (
        errno.ENOENT, errno.EAGAIN, errno.ELOOP, errno.EBADF, errno.ENXIO, errno.EACCES, errno.EIO,
        errno.ENOTDIR,
    )
)  # fmt: skip
_read, _fstat = os.read, os.fstat


class PublishedFiles:
    """The `pub/` directories of the node's tiers, as a session has them."""

    def __init__(self, published: PublishedDirs) -> None:
        self._published = published
        self._tiers = Published()
        self._seen: tuple[PublishedDir, ...] | None = None  # the directories of `_usable`
        self._usable: tuple[tuple[Callable[[str], int], int], ...] = ()  # an `os.open`, its tier

    def tier_changed(self, tier: int, *, in_service: bool) -> None:
        """Records whether the disk of a tier responds, and so whether its files are used."""
        self._tiers.changed(tier, in_service=in_service)
        self._seen = None

    def trust_all(self) -> None:
        """Marks all tiers as in service: in a new session the server reports those that fail."""
        self._tiers.trust_all()
        self._seen = None

    def read(self, content: str, size: int) -> bytes | None:
        """Returns all bytes of a complete file that is not empty; None if it is not complete here,
        and for anything else than a file."""
        dirs = self._usable if self._published.dirs is self._seen else self._dirs()
        for open_at, _ in dirs:
            try:
                owner = opened(open_at, content)
            except OSError as err:
                if err.errno in _ABSENT:
                    continue
                raise
            with owner:
                fd = owner.fileno()
                info = _fstat(fd)
                if info.st_nlink >= 2 and info.st_size == size:
                    data = _read(fd, size)
                    return data if len(data) == size else read_all(fd, 0, size)
        return None

    def open(self, content: str, size: int) -> tuple[OwnedFd, int] | None:
        """Returns (descriptor, tier) of a complete file; None if it is not complete here. Raises
        OSError when no descriptor is left."""
        for open_at, tier in self._dirs():
            try:
                owner = opened(open_at, content)
            except OSError as err:
                if err.errno in _ABSENT:
                    continue
                raise
            info = _fstat(owner.fileno())
            if info.st_nlink >= 2 and info.st_size == size:
                return owner, tier
            owner.close()  # unpublished between open and now
        return None

    def _dirs(self) -> tuple[tuple[Callable[[str], int], int], ...]:
        dirs = self._published.dirs
        if dirs is not self._seen:
            self._usable = tuple(
                (functools.partial(os.open, flags=FLAGS, dir_fd=one.fd), one.tier)
                for one in dirs
                if self._is_usable(one)
            )
            self._seen = dirs
        return self._usable

    def _is_usable(self, one: PublishedDir) -> bool:
        return self._tiers.in_service(one.tier) and self._tiers.way(one) is not Way.NEVER


def read_all(fd: int, offset: int, size: int) -> bytes:
    """Returns exactly `size` bytes at `offset`. Raises BadBody if the file has fewer."""
    parts = []
    while size:
        data = os.pread(fd, size, offset)
        if not data:
            raise BadBody(f"a cache file ends at {offset}, {size} bytes early")
        parts.append(data)
        offset, size = offset + len(data), size - len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)
