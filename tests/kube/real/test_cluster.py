"""The real node itself: what every test on it relies on."""

from __future__ import annotations

from tests.kube.real.cluster import Cluster


def test_the_node_is_ready_within_a_minute(cluster: Cluster, start_s: float) -> None:
    (node,) = cluster.get("nodes")["items"]
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert start_s <= 60.0
