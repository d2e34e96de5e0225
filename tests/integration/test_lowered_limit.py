"""A mount whose cache was filled under a larger limit."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Bucket, Node
from tests.services.processes import wait_until

MIB = 1 << 20
FILES = 50
FILE_BYTES = 4 * MIB
QUICK_S = 10.0  # waiting for room took 60 s, and was ENOSPC then


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """For a mount's cache: tests name it before `node`, whose processes end first then."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("by", ["cache-size", "memory-limit"])
def test_a_mount_with_a_smaller_cache_reads_at_once_and_shrinks(
    shared_memory: Path, node: Node, bucket: Bucket, by: str
) -> None:
    """By a smaller `--cache-size`, or by a `--memory-limit` where the cache is memory."""
    rng = random.Random(9)
    data = {f"f{n:02}": rng.randbytes(FILE_BYTES) for n in range(FILES)}
    bucket.fill({**data, "late": rng.randbytes(12 * MIB), "small": rng.randbytes(200_000)})
    where = ("--cache-dir", shared_memory) if by == "memory-limit" else ()
    mnt = node.mount(bucket.url, *bucket.options, *where, "--cache-size", "256MiB")
    for name, content in data.items():
        assert (mnt / name).read_bytes() == content
    node.wait_until_recorded(mnt)
    node.umount(mnt)

    lower = ("--cache-size", "128MiB" if by == "cache-size" else "256MiB")
    if by == "memory-limit":
        lower = (*lower, "--memory-limit", "384MiB")
    mnt = node.mount(bucket.url, *bucket.options, *where, *lower)
    for name in ("late", "small"):
        since = time.monotonic()
        size = len((mnt / name).read_bytes())
        took_s = time.monotonic() - since
        assert size in (12 * MIB, 200_000)
        assert took_s < QUICK_S, f"{name} took {took_s:.1f} s"

    def shrunk() -> bool:
        tier = node.status(mnt)["cache"]["tiers"][0]
        assert tier["limit_bytes"] < 200 * MIB
        return not tier["over_limit_bytes"]

    wait_until(shrunk, "the cache is below its limit", 60.0)
    for name, content in data.items():
        assert (mnt / name).read_bytes() == content
