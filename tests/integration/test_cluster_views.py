"""Covers on the nodes of a cluster: a directory that one node froze and another covers by its
policy, and a change at the origin, which every node shows."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cachefs.core.mountinfo import read_mounts
from tests.integration.conftest import Bucket
from tests.services.cluster import Cluster
from tests.services.processes import wait_until

FILES = 40
LIMIT_S = 60.0


def is_covered(mount: Path) -> bool:
    mounts = read_mounts()
    found = mounts.at(str(mount))
    return found is not None and bool(mounts.covers_of(found))


def shown(mount: Path) -> dict[str, bytes]:
    """The files of a mount, but for those that are removed meanwhile."""
    found = {}
    for name in (mount / "train").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[f"train/{name.name}"] = name.read_bytes()
    return found


def test_covered_nodes_show_a_change_at_the_origin(cluster: Cluster, bucket: Bucket) -> None:
    files = {f"train/f{number}": b"%d " % number * 1000 for number in range(FILES)}
    bucket.fill(files)
    cluster.start(2, size="256MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    cluster.wait_until_settled()
    first, second = (cluster.mount(number, "/data") for number in range(2))
    frozen, other = cluster.workers
    frozen.run("freeze", first / "train", "--wait")
    assert is_covered(first)
    assert shown(first) == shown(second) == files
    other.run("policy", "set", second / "train", "view=native", "sync_interval=5s")
    shown(second)
    wait_until(lambda: bool(shown(second)) and is_covered(second), "the second cover", LIMIT_S)
    assert shown(first) == shown(second) == files
    files["train/f7"] = b"changed"
    del files["train/f8"]
    bucket.put("train/f7", b"changed")
    bucket.delete("train/f8")
    other.run("sync", "-R", second)
    assert shown(second) == files
    wait_until(lambda: shown(first) == files, "the change on the other node", LIMIT_S)
    wait_until(lambda: is_covered(first), "a cover that shows it", LIMIT_S)
    assert shown(first) == files
    frozen.run("thaw", first / "train")
    other.run("policy", "unset", second / "train", "view")
    wait_until(lambda: not (is_covered(first) or is_covered(second)), "no cover", LIMIT_S)
    for machine, mount in ((frozen, first), (other, second)):
        machine.umount(mount)
