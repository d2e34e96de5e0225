"""Copies of what other nodes own: they use room that nobody else wants, and no more."""

from __future__ import annotations

import random
from pathlib import Path

from tests.unit.worker.rig import MIB, read, run
from tests.unit.worker_peers.nodes import Cluster, Node

FILE_BYTES = 256 << 10
LIMIT_BYTES = 40 * MIB


def room(node: Node) -> int:
    return node.worker._parts.ledger.free_for_files


def test_what_a_node_owns_takes_the_room_of_its_copies(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2, limit_bytes=LIMIT_BYTES)
        async with cluster.running() as nodes:
            node, other = nodes
            inos = [cluster.rig.put(n, FILE_BYTES) for n in range(1, 500)]
            own = [ino for ino in inos if cluster.owner(ino) is node]
            others = [ino for ino in inos if cluster.owner(ino) is other]
            assert len(others) * FILE_BYTES > LIMIT_BYTES
            for ino in others:
                await read(node.worker, ino)
            assert room(node) < FILE_BYTES, "room was left unused"
            refused = node.worker.status()["refused"]
            for ino in own[:100]:
                assert await read(node.worker, ino) == cluster.rig.data[ino]
            status = node.worker.status()
            assert status["refused"] == refused
            assert status["evicted_files"]["copy"] > 0
            cached = [await node.worker.cached_bytes(cluster.rig.content(ino)) for ino in own[:100]]
            assert cached == [FILE_BYTES] * 100
            before = cluster.body_bytes
            for ino in own[:100]:
                await read(other.worker, ino)
            assert cluster.body_bytes == before

    run(script())


def test_a_permutation_hits_the_room_of_all_nodes(tmp_path: Path) -> None:
    """One reader, in another order each epoch: the nodes together hit as much as one with all their
    room would, copies of the reader's node notwithstanding."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 3, limit_bytes=12 * MIB)
        order = random.Random(11)
        async with cluster.running() as nodes:
            together = sum(room(node) for node in nodes)
            count = int(together / 0.3 / FILE_BYTES)
            inos = [cluster.rig.put(n, FILE_BYTES) for n in range(1, count + 1)]
            for epoch in range(3):
                before = cluster.body_bytes
                order.shuffle(inos)
                for ino in inos:
                    assert await read(nodes[0].worker, ino) == cluster.rig.data[ino]
                hit = 1 - (cluster.body_bytes - before) / (count * FILE_BYTES)
                if epoch == 2:
                    assert hit >= 0.27, f"epoch {epoch}: {hit:.3f}"

    run(script())
