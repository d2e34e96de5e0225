"""The covers of a view where no descriptor is left for one."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from cachefs.core.model import NamespaceId
from worker.views.covers import CoverPlace, Covers

NAMESPACE = NamespaceId(b"n" * 16)


class Mount:
    """A client that lays each cover when the test says so."""

    mountpoint = "/m"
    defaults = (0, 0, 0o644, 0o755)

    def __init__(self) -> None:
        self.sent: list[str] = []

    def shows(self, namespace: NamespaceId) -> bool:
        return True

    def send_cover(
        self, cover: int, namespace: NamespaceId, ino: int, path: bytes, fd: int
    ) -> None:
        os.close(fd)
        self.sent.append("cover")

    def send_uncover(self, cover: int) -> None:
        self.sent.append("uncover")


def test_a_mount_is_covered_once_there_is_a_descriptor_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def script() -> None:
        covers, mount = Covers(7), Mount()
        covers.open(CoverPlace(NAMESPACE, 2, b"train", os.open("/", os.O_PATH)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", fails)
            covers.lay([mount])
        assert (mount.sent, covers.count) == ([], 0)
        assert covers.reason == "Too many open files"
        covers.lay([mount])
        assert mount.sent == ["cover"]
        covers.reported(mount, covered=True, reason="")
        assert covers.count == 1
        covers.ended(mount, is_followed=True)
        successor = Mount()
        with monkeypatch.context() as patch:
            patch.setattr(os, "dup", fails)
            covers.followed(successor)
        assert covers.count == 1, "of the client before"
        covers.followed(successor)
        assert successor.sent == ["cover"]
        covers.close()

    asyncio.run(script())
