"""The mounts of a node whose clients can lay covers, as views use them."""

from __future__ import annotations

from typing import Protocol

from cachefs.core.model import NamespaceId


class CoverHost(Protocol):
    """A client of a mount. It reports about each cover (`Views.reported`)."""

    mountpoint: str

    @property
    def defaults(self) -> tuple[int, int, int, int]:
        """Uid, gid, mode of files and of directories where the origin has none."""

    def shows(self, namespace: NamespaceId) -> bool:
        """Returns whether the mount shows names of the namespace."""

    def send_cover(
        self, cover: int, namespace: NamespaceId, ino: int, path: bytes, fd: int
    ) -> None:
        """Sends Cover, with the descriptor, which this call owns."""

    def send_uncover(self, cover: int) -> None:
        """Sends Uncover."""
