"""Tests side by side in several processes (`pytest -n`): files stay whole, clusters take turns."""

from __future__ import annotations

from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling

HDFS = "hdfs"  # one process starts the servers
# Several real clusters at once would be slow to notice their silent members on few cores.
TOGETHER = {
    "tests/integration/test_cluster": "clusters",
    "tests/hdfs/": HDFS,
    "tests/torch/": "torch",  # one process has torch
}


def group(node_id: str) -> str:
    """Tests of one group run in one process, one after another."""
    path, _, test = node_id.partition("::")
    if f"[{HDFS}" in test:
        return HDFS
    return next((name for start, name in TOGETHER.items() if path.startswith(start)), path)


class ByGroup(LoadScopeScheduling):
    """Hands out group after group, in the order in which pytest found them."""

    def _split_scope(self, nodeid: Any) -> str:
        return group(nodeid)
