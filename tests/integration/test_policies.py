"""Policies by path on a real mount, by the command line: what is pinned stays, across restarts and
replacements; what is said is shown."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body, digests, expected
from tests.services.cluster import Cluster, ClusterFailed, Machine
from tests.services.processes import is_running, wait_until

MB = 1_000_000
KEPT = {f"kept/{n}": body(n, MB + n) for n in range(10)}
OTHER = {f"other/{n}": body(100 + n, 3 * MB + n) for n in range(20)}


@pytest.fixture
def mounted(node: Node, bucket: Bucket) -> Path:
    """A cache that holds half of what there is, and evicts for whatever is read."""
    bucket.fill({**KEPT, **OTHER})
    limits = ("--cache-size", "60MB", "--admission", "always", "--sync-interval", "1s")
    return node.mount(bucket.url, *bucket.options, *limits)


def read_all(directory: Path) -> None:
    for path in sorted(directory.iterdir()):
        path.read_bytes()


def cached(node: Node, path: Path) -> list[int]:
    return [row["cached_bytes"] for row in json.loads(node.ok("ls", path, "--json"))]


def test_what_is_pinned_stays_whatever_else_is_read(
    node: Node, bucket: Bucket, mounted: Path
) -> None:
    """[S-pin] Pinned files are loaded, and not evicted: by a data set larger than the cache, after
    a SIGKILL of the server, or after they were replaced at the origin; `free` refuses them."""
    node.allowed_log.append("the connection to the server is lost")
    node.ok("pin", mounted / "kept", "--wait")
    sizes = sorted(len(data) for data in KEPT.values())
    read_all(mounted / "other")
    assert sorted(cached(node, mounted / "kept")) == sizes
    assert node.status(mounted)["cache"]["evicted_files"]["space"] > 0
    server = next(p["pid"] for p in node.processes(mounted) if p["role"] == "server")
    node.wait_until_recorded(mounted)
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not is_running(server), "the server ends")
    read_all(mounted / "other")
    assert sorted(cached(node, mounted / "kept")) == sizes
    node.processes(mounted)

    bucket.put("kept/3", body(1003, MB))
    wait_until(lambda: (mounted / "kept/3").stat().st_size == MB, "the new version is seen")
    assert digests(mounted / "kept") == expected(
        {str(n): body(1003, MB) if n == 3 else KEPT[f"kept/{n}"] for n in range(10)}
    )
    read_all(mounted / "other")
    assert sorted(cached(node, mounted / "kept")) == sorted([MB, *sizes[:3], *sizes[4:]])

    assert "pinned by /kept" in node.fails("free", mounted / "kept")
    node.ok("free", mounted)
    wait_until(lambda: sum(cached(node, mounted / "other")) == 0, "closed files are freed")
    assert min(cached(node, mounted / "kept")) >= MB
    assert "stays pinned" in node.ok("unpin", mounted / "kept/3")
    node.ok("unpin", mounted / "kept")
    node.ok("free", mounted / "kept")
    wait_until(lambda: sum(cached(node, mounted / "kept")) == 0, "closed files are freed")


def test_a_pin_that_cannot_fit_says_so_with_figures(node: Node, mounted: Path) -> None:
    node.ok("pin", mounted / "kept", "--wait")
    done = node.run("pin", mounted / "other", "--wait")
    assert done.returncode == 1
    # Before it begins, or where a worker has no more room: there it is known what is pinned.
    figures = r"it needs .* MiB, the caches hold [\d.]+ MiB|limit is [\d.]+ MiB, .* MiB pinned"
    assert re.search(f"does not fit: .*({figures})", done.stdout), done.stdout
    assert "is pinned, and not all of it is cached" in done.stderr
    assert min(cached(node, mounted / "kept")) >= MB
    assert "no such file" in node.fails("pin", mounted / "none")


def test_what_is_over_its_time_is_freed_and_readers_go_on(node: Node, mounted: Path) -> None:
    """[S-ttl] Cached bytes go once they are older than the TTL of their path, at most 10 s late;
    who has the file open reads on, and the next open brings it again. What is pinned stays."""
    node.ok("pin", mounted / "kept/2")
    node.ok("load", mounted / "kept", "--wait")
    assert "ttl 2s (free), by" in node.ok("ttl", mounted / "kept", "2s")
    with (mounted / "kept/1").open("rb", buffering=0) as file:
        head = file.read(1000)
        wait_until(lambda: sum(cached(node, mounted / "kept")) == MB + 2, "it is freed")
        assert head + file.read() == KEPT["kept/1"]
    assert (mounted / "kept/3").read_bytes() == KEPT["kept/3"]
    assert "ttl never (free)" in node.ok("ttl", mounted / "kept", "none")


def test_policies_hold_on_every_node_of_a_cluster(tmp_path: Path, bucket: Bucket) -> None:
    """Said through one machine's mount or at the cluster's own path, heard by all, kept by the
    master over its death: pins, times to live, `free` on all workers."""
    bucket.fill({name: data for name, data in KEPT.items() if name < "kept/6"})
    with Cluster(tmp_path / "cluster", bucket.server.credentials()) as cluster:
        cluster.start(2, size="256MiB")
        cluster.add_ufs(bucket.url, "/data", *bucket.options)
        mounts = [cluster.mount(number, "/data") for number in range(2)]
        first, second = cluster.workers
        first.run("pin", mounts[0] / "kept", "--wait")
        read_all(mounts[1] / "kept")
        shown = second.json("policy", "show", mounts[1] / "kept/1")
        assert (shown["policy"]["pin"], shown["from"]["pin"]) == (True, str(mounts[1] / "kept"))
        with pytest.raises(ClusterFailed, match="pinned by /data/kept"):
            second.run("free", mounts[1] / "kept")
        assert second.json("free", mounts[1])["files"] == 0

        size_bytes = sum(len(data) for name, data in KEPT.items() if name < "kept/6")
        for path in (mounts[0], cluster.path("/data/kept")):
            (found,) = first.json("du", path)
            assert (found["files"], found["cached_bytes"]) == (6, size_bytes)
        cluster.master.kill()
        cluster.master.start()
        url = cluster.path("/data/kept/2")
        wait_until(lambda: first.json("policy", "show", url)["policy"]["pin"], "it is still pinned")
        first.run("ttl", cluster.path("/data"), "1s")
        first.run("unpin", cluster.path("/data/kept"))

        def left() -> list[int]:
            return [sum(_cached(one, at)) for one, at in zip(cluster.workers, mounts, strict=True)]

        wait_until(
            lambda: sum(left()) == 0, f"both nodes free what is over its time: {left()}", 40.0
        )


def _cached(machine: Machine, mount: Path) -> list[int]:
    return [row["cached_bytes"] for row in machine.json("ls", mount / "kept")]


def test_how_old_names_may_be_is_said_by_path(node: Node, bucket: Bucket) -> None:
    """[S-sync-path] An interval said of a directory holds for all names below it, at once."""
    bucket.fill({"slow/a": b"1", "quick/a": b"1", "quick/in/a": b"1"})
    root = node.mount(bucket.url, *bucket.options, "--sync-interval", "1h")
    paths = [root / name for name in ("slow/a", "quick/a", "quick/in/a")]
    assert [path.stat().st_size for path in paths] == [1, 1, 1]
    bucket.fill({"slow/a": b"22", "quick/a": b"22", "quick/in/a": b"22"})
    assert [path.stat().st_size for path in paths] == [1, 1, 1]
    node.ok("policy", "set", root / "quick", "sync_interval=0")
    wait_until(lambda: [path.stat().st_size for path in paths[1:]] == [2, 2], "they are seen")
    assert paths[0].stat().st_size == 1
    bucket.put("quick/in/a", b"333")
    assert paths[2].stat().st_size == 3
    assert "a sync policy is a directory's" in node.fails(
        "policy", "set", paths[0], "sync_interval=0"
    )
    node.ok("policy", "set", root / "quick", "profile=interactive")
    lines = node.ok("policy", "show", root / "quick/in").splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("sync_interval")] == [
        ["0s", str(root / "quick")]
    ]
    assert "profile=interactive" in node.ok("policy", "unset", root / "quick", "sync_interval")


def test_pins_hold_while_their_source_is_not_mounted(
    node: Node, bucket: Bucket, tmp_path: Path
) -> None:
    """Another source's server over the same cache directory evicts nothing of it, however long
    nobody used it."""
    bucket.fill({f"kept/{n}": body(n, MB) for n in range(4)})
    bucket.fill({f"other/{n}": body(100 + n, 3 * MB) for n in range(16)})
    limits = ("--cache-dir", tmp_path / "shared", "--cache-size", "48MB", "--idle-after", "0s")
    root = node.mount(bucket.url, *bucket.options, *limits)
    node.ok("pin", root / "kept", "--wait")
    node.umount(root)
    other = node.mount(bucket.url + "/other", *bucket.options, *limits, name="other")
    for _ in range(2):
        read_all(other)
    node.umount(other)
    root = node.mount(bucket.url, *bucket.options, *limits)
    assert cached(node, root / "kept") == [MB] * 4
    node.ok("unpin", root / "kept")
    node.umount(root)
    other = node.mount(bucket.url + "/other", *bucket.options, *limits, name="other")
    read_all(other)
    assert node.status(other)["cache"]["evicted_files"]["idle"] > 0


def test_a_quota_bounds_what_is_cached_below_a_path(node: Node, mounted: Path) -> None:
    """[S-quota] What is more is read past the cache; a lower quota frees what was used least."""
    assert "no quota" in node.ok("quota", mounted / "kept")
    node.ok("quota", mounted / "kept", "5MB")
    for name, data in KEPT.items():
        assert (mounted / name).read_bytes() == data
    wait_until(lambda: 3 * MB < sum(cached(node, mounted / "kept")) <= 5 * MB, "it is kept")
    done = node.run("load", mounted / "kept", "--wait")
    assert done.returncode == 1
    assert "9.54 MiB, the quota of /kept is 4.77 MiB" in done.stdout

    def quota() -> dict[str, Any]:
        (shown,) = json.loads(node.ok("quota", mounted, "--json"))
        return dict(shown)

    # What was filled is counted within a second or two.
    wait_until(lambda: 3 * MB < quota()["used_bytes"] <= 5 * MB, "it is counted")
    assert (quota()["path"], quota()["quota_bytes"]) == (str(mounted / "kept"), 5 * MB)
    node.ok("quota", mounted / "kept", "2MB")
    wait_until(lambda: 0 < sum(cached(node, mounted / "kept")) <= 2 * MB, "it shrinks")
    read_all(mounted / "other")
    assert sum(cached(node, mounted / "other")) > 20 * MB
    (found,) = json.loads(node.ok("du", mounted, "--json"))
    both = sum(cached(node, mounted / "kept")) + sum(cached(node, mounted / "other"))
    assert found["size_bytes"] == sum(len(data) for data in {**KEPT, **OTHER}.values())
    assert (found["files"], found["cached_bytes"]) == (30, both)
    assert node.ok("du", mounted / "kept/1").split()[-1] == str(mounted / "kept/1")
    node.ok("quota", mounted / "kept", "none")
    node.ok("load", mounted / "kept", "--wait")
    assert sum(cached(node, mounted / "kept")) == sum(len(data) for data in KEPT.values())
