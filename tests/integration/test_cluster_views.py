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


def test_a_thaw_leaves_the_pins_of_other_nodes_and_of_operators(
    cluster: Cluster, bucket: Bucket
) -> None:
    """[S-pin] [S-views-thaw]"""
    bucket.fill({"train/f": b"x" * 1000})
    cluster.start(2, size="256MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    cluster.wait_until_settled()
    path = cluster.path("/data/train")
    machines = cluster.workers
    mounts = [cluster.mount(number, "/data") for number in range(2)]

    def pins() -> tuple[bool, int]:
        """Whether it is pinned, and the number of nodes that have frozen it."""
        found = machines[0].json("policy", "show", path)
        return found["policy"]["pin"], len(found["frozen_by"])

    for machine, mount in zip(machines, mounts, strict=True):
        machine.run("freeze", mount / "train", "--wait")
    assert pins() == (True, 2)
    machines[0].run("pin", path)
    machines[0].run("thaw", mounts[0] / "train")
    assert pins() == (True, 1)
    machines[0].run("policy", "unset", path, "pin")
    assert pins() == (True, 1)
    machines[0].run("freeze", mounts[0] / "train")
    machines[1].kill()  # it does not return
    machines[0].run("thaw", mounts[0] / "train")
    assert pins() == (True, 1)
    assert "no longer pinned" in machines[0].run("unpin", path)
    assert pins() == (False, 0)
    machines[0].umount(mounts[0])
