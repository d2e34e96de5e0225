"""Changes of HDFS that the times of its directories report, seen by mounts of two nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hdfs.conftest import Source
from tests.services.cluster import Cluster
from tests.services.processes import wait_until

LIMIT_S = 20.0
SEEN_S = 15.0  # on a busy machine


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", {}) as made:
        made.start(2)
        yield made


def test_both_nodes_see_a_change_long_before_the_interval_ends(
    cluster: Cluster, source: Source
) -> None:
    for name in ("a/kept", "a/replaced", "a/removed", "b/other"):
        source.write(name, b"first")
    cluster.add_ufs(source.spec.url, "/w", "--sync-interval", "1h", "--push", "poll:1s")
    mounts = [cluster.mount(number, "/w") for number in range(2)]
    for mount in mounts:
        assert {path.read_bytes() for path in mount.glob("*/*")} == {b"first"}
        assert not (mount / "b" / "new").exists()
    source.write("a/replaced", b"second")
    assert source.client.delete(f"{source.root}/a/removed")
    source.write("b/new", b"new")
    source.write("c/deep/er", b"deep")
    began_s = time.monotonic()
    for mount in mounts:
        wait_until(lambda m=mount: not (m / "a/removed").exists(), "it is gone", LIMIT_S)
        for name, data in (("a/replaced", b"second"), ("b/new", b"new"), ("c/deep/er", b"deep")):
            path = mount / name
            wait_until(lambda p=path, d=data: p.is_file() and p.read_bytes() == d, name, LIMIT_S)
    took_s = time.monotonic() - began_s
    print(f"both nodes saw every change within {took_s:.1f} s")
    assert took_s < SEEN_S
    (row,) = cluster.master.json("ufs", "ls", "--master", cluster.master.url)
    assert row["push"] == "poll:1s"
    assert row["feed_error"] == ""
