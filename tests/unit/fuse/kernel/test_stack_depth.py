"""The number of stacked file systems that a mount declares."""

from __future__ import annotations

import pytest

from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import Mounts, parse_mountinfo
from cachefs.core.specs import ClientSpec, ServerSpec, WorkerSpec
from cachefs.fuse.kernel.stack_depth import (
    ON_PLAIN,
    ON_STACKED,
    cache_directories,
    stack_depth,
)

MOUNTS = Mounts(
    parse_mountinfo(
        b"""27 1 0:30 / / rw - overlay overlay rw,lowerdir=/a
28 27 8:1 / /var/cache rw - ext4 /dev/sda rw
29 27 0:31 / /dev/shm rw - tmpfs tmpfs rw
30 27 0:32 / /mnt/data ro - fuse.cachefs s3://b ro
"""
    )
)
SOURCE = UfsSpec("s3://bucket")


@pytest.mark.parametrize(
    ("directories", "depth"),
    [
        (["/var/cache/x"], ON_PLAIN),
        (["/dev/shm/x", "/var/cache"], ON_PLAIN),
        (["/root/.cache"], ON_STACKED),
        (["/dev/shm/x", "/var/x"], ON_STACKED),
        (["/mnt/data/x"], ON_STACKED),
        ([], ON_STACKED),
    ],
)
def test_one_stacked_cache_directory_decides(directories: list[str], depth: int) -> None:
    assert stack_depth(directories, MOUNTS) == depth


def test_the_directories_are_those_of_the_server_that_the_mount_starts() -> None:
    def directories(server: ServerSpec | None = None, node: WorkerSpec | None = None) -> list[str]:
        return cache_directories(ClientSpec("/h", "/s", SOURCE, "/m", server=server, node=node))

    assert directories(ServerSpec("/h", SOURCE, "/var/cache/x", 1)) == ["/var/cache/x"]
    tiers = ("mem:/dev/shm/x:1GiB", "ssd:/var/cache:1TiB")
    assert directories(node=WorkerSpec("/h", "http://m", "n", tiers)) == [
        "/dev/shm/x",
        "/var/cache",
    ]
    assert directories() == []
