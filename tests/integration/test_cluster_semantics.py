"""What programs see of a cluster's tree on several nodes: the same names, numbers and bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.dataset import body
from tests.services.cluster import Cluster
from tests.services.processes import wait_until

MIB = 1 << 20
SYNC_S = 1
SEEN_S = 15.0  # on a busy machine


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", {}) as made:
        yield made


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    for name, data in {"a": b"a few bytes", "sub/b": body(1, 2 * MIB + 5)}.items():
        path = tmp_path / "origin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "origin"


def seen(root: Path) -> dict[str, tuple[int, int, int]]:
    """Inode number, size and time of everything below a mount, by its path there."""
    found = {}
    for path in sorted(root.rglob("*")):
        info = path.stat()
        found[str(path.relative_to(root))] = info.st_ino, info.st_size, info.st_mtime_ns
    return found


def wait_for_bytes(path: Path, data: bytes) -> None:
    wait_until(lambda: path.read_bytes() == data, f"{path} has its new bytes", SEEN_S)


def test_one_tree_for_all_nodes(cluster: Cluster, origin: Path) -> None:
    """[S-cluster-names]: the same on every node and over a restart of everything; what changes at
    the origin is seen by all. The interval of a mount has no effect."""
    cluster.start(2, size="64MiB")
    cluster.add_ufs(f"file://{origin}", "/data", "--sync-interval", f"{SYNC_S}s")
    first, second = (cluster.mount(n, "/data", "--sync-interval", "1h") for n in (0, 1))
    before = seen(first)
    assert set(before) == {"a", "sub", "sub/b"}
    assert seen(second) == before
    assert (first / "sub/b").read_bytes() == (second / "sub/b").read_bytes()

    (origin / "new").write_bytes(b"new")
    (origin / "a.new").write_bytes(b"other bytes")
    os.replace(origin / "a.new", origin / "a")
    for mount in (first, second):
        wait_until((mount / "new").exists, "a new name is seen", SEEN_S)
        wait_for_bytes(mount / "a", b"other bytes")
    after = seen(first)
    assert after["sub/b"] == before["sub/b"]
    assert after["a"][0] != before["a"][0], "other bytes are another inode"

    for number, mount in enumerate((first, second)):
        cluster.workers[number].umount(mount)
    for machine in (*cluster.workers, cluster.master):
        machine.kill()
    for machine in (cluster.master, *cluster.workers):
        machine.start()
    again = cluster.mount(1, "/data")
    assert seen(again) == after
    cluster.workers[1].umount(again)


def test_a_mounted_directory_that_is_removed_and_made_again(cluster: Cluster, origin: Path) -> None:
    """[S-sync-now] Also where the directory is the root of a mount, inside a source."""
    cluster.start(1, size="64MiB")
    cluster.add_ufs(f"file://{origin}", "/data", "--sync-interval", "1h")
    mount = cluster.mount(0, "/data/sub")
    assert (mount / "b").read_bytes() == body(1, 2 * MIB + 5)
    sync = ("sync", "-R", cluster.path("/data"))
    shutil.rmtree(origin / "sub")
    cluster.master.run(*sync)
    (origin / "sub").mkdir()
    (origin / "sub" / "c").write_bytes(b"of the next directory")
    cluster.master.run(*sync)

    # Nothing is listed before: that would find out, and invalidate all names.
    wait_until(lambda: not (mount / "b").exists(), "a removed name is gone", SEEN_S)
    assert os.listdir(mount) == ["c"]
    assert (mount / "c").read_bytes() == b"of the next directory"
