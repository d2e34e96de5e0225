"""Real faults, each named by `health`, `doctor`, `status`, `top` and the API, with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Bucket, Node
from tests.integration.dataset import body
from tests.services.cluster import CACHEFS, Cluster, ClusterFailed, Machine
from tests.services.faults import expired_credentials
from tests.services.processes import wait_until
from tests.services.proxy import FaultProxy

MIB = 1 << 20
COMMAND_S = 10.0  # of a command while the master is away
NAMED_S = 15.0  # asked: 5 s on a quiet machine; commands take a second each on a busy one


def problems(node: Node, where: str | Path) -> dict[str, dict[str, Any]]:
    """What `cachefs health` says, by code."""
    done = node.run("health", where, "--json")
    found = {one["code"]: one for one in json.loads(done.stdout)}
    assert (done.returncode == 0) == (not found)
    return found


def wait_for(node: Node, where: str | Path, *codes: str) -> dict[str, dict[str, Any]]:
    """Until `cachefs health` names these codes and no other; what it says then."""
    found: dict[str, dict[str, Any]] = {}

    def named() -> bool:
        found.clear()
        found.update(problems(node, where))
        return set(found) == set(codes)

    wait_until(named, f"health says {codes}", NAMED_S)
    return found


def assert_shown(node: Node, mountpoint: Path, code: str, remedy: str) -> None:
    """The other commands say the same. `remedy`: a word of it; an origin that is away gives other
    errors from time to time."""
    for command in (["health"], ["status"], ["top", "-n", "1", "--interval", "0.2s"]):
        said = node.run(command[0], mountpoint, *command[1:]).stdout
        (line,) = [line.strip() for line in said.splitlines() if code in line]
        assert remedy in line, said
    assert f"{code} " in node.run("doctor").stdout
    where = node.root / "admin.sock"
    found = json.loads(
        subprocess.run(
            ["curl", "-s", "--unix-socket", str(where), "http://node/api/v1/health"],
            capture_output=True, text=True, check=True, timeout=30,
        ).stdout
    )  # fmt: skip
    assert [one["code"] for one in found["items"]] == [code]
    assert remedy in found["items"][0]["remedy"]


def test_an_origin_that_stopped_and_credentials_that_expired_are_named(
    node: Node, bucket: Bucket, proxy: FaultProxy
) -> None:
    bucket.fill({"d/a": b"a" * 100_000, "d/b": b"b" * 100_000})
    mountpoint = node.mount(
        bucket.url, *bucket.options, "--admin-socket", node.root / "admin.sock",
        "--sync-interval", "1s", "--origin-deadline", "3s",
    )  # fmt: skip
    node.allowed_log.append(r"s3://")
    assert (mountpoint / "d/a").read_bytes() == b"a" * 100_000
    wait_for(node, mountpoint)

    proxy.offline()
    found = wait_for(node, mountpoint, "ORIGIN_DOWN")["ORIGIN_DOWN"]
    assert found["subject"].startswith(bucket.url)
    assert_shown(node, mountpoint, "ORIGIN_DOWN", "check")
    assert (mountpoint / "d/a").read_bytes() == b"a" * 100_000, "what is cached is read"
    proxy.online()
    wait_for(node, mountpoint)

    proxy.script(expired_credentials(), times=None)
    found = wait_for(node, mountpoint, "CREDENTIALS_EXPIRED")["CREDENTIALS_EXPIRED"]
    assert "renew" in found["remedy"]
    assert_shown(node, mountpoint, "CREDENTIALS_EXPIRED", "renew")
    assert (mountpoint / "d/a").read_bytes() == b"a" * 100_000, "its name is older than a second"
    with pytest.raises(PermissionError):
        (mountpoint / "d/b").read_bytes()
    proxy.clear()
    wait_for(node, mountpoint)
    assert (mountpoint / "d/b").read_bytes() == b"b" * 100_000
    node.umount(mountpoint)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_full_cache_disk_is_named(node: Node, tmp_path: Path, small_disk: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        (source / f"f{number}").write_bytes(body(number, 4 * MIB))
    for number in range(100):
        (source / f"new{number}").write_bytes(b"new")
    mountpoint = node.mount(
        f"file://{source}", "--cache-dir", small_disk / "cache", "--cache-size", "40MiB",
        "--admin-socket", node.root / "admin.sock",
    )  # fmt: skip
    node.allowed_log.append(r"space|disk|cache")
    (mountpoint / "f0").read_bytes()
    room = (small_disk / "other").open("wb")
    with room:
        try:
            while True:
                room.write(bytes(MIB))
        except OSError:
            pass
    for number in range(8):
        assert (mountpoint / f"f{number}").read_bytes() == body(number, 4 * MIB)
    found = wait_for(node, mountpoint, "TIER_FULL")["TIER_FULL"]
    assert "No space left" in found["cause"]
    (small_disk / "other").unlink()

    fresh = iter(range(100))

    def is_well() -> bool:
        """A file that was never read is written to the disk again."""
        assert (mountpoint / f"new{next(fresh)}").read_bytes() == b"new"
        return not problems(node, mountpoint)

    wait_until(is_well, "the cache takes files again", 40.0)
    node.umount(mountpoint)


def codes(machine: Machine, where: str | Path) -> list[str]:
    done = subprocess.run(
        [CACHEFS, "health", str(where), "--json"],
        env=machine.environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return [one["code"] for one in json.loads(done.stdout)]


def test_a_lost_worker_and_a_master_that_died_are_named(cluster: Cluster, bucket: Bucket) -> None:
    bucket.fill({"d/a": b"a" * 1000})
    cluster.lose_soon()
    cluster.start(2, size="64MiB")
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    cluster.wait_until_settled()
    mountpoint = cluster.mount(0, "/data")
    assert (mountpoint / "d/a").read_bytes() == b"a" * 1000
    master = cluster.path("")
    assert codes(cluster.master, master) == []
    cluster.workers[1].kill()
    wait_until(lambda: codes(cluster.master, master) == ["WORKER_LOST"], "it is lost", 30.0)
    assert codes(cluster.workers[0], mountpoint) == ["WORKER_LOST"]
    assert os.listdir(mountpoint) == ["d"]
    cluster.master.kill()
    assert codes(cluster.master, master) == ["MASTER_AWAY"]
    wait_until(
        lambda: codes(cluster.workers[0], mountpoint) == ["MASTER_AWAY"], "the node says so", 30.0
    )
    assert (mountpoint / "d/a").read_bytes() == b"a" * 1000
    node = cluster.workers[0]
    assert node.run("ls", mountpoint, limit_s=COMMAND_S) == "d/\n", "from what the node knows"
    assert f"{mountpoint}/d/a\n" in node.run("stat", mountpoint / "d/a", limit_s=COMMAND_S)
    top = node.run("top", mountpoint, "-n", "1", "--interval", "200ms", limit_s=COMMAND_S)
    assert "MASTER_AWAY" in top
    with pytest.raises(ClusterFailed, match=r"the master at \S+ cannot be reached"):
        node.run("stat", mountpoint / "d/never-asked-for", limit_s=COMMAND_S)
