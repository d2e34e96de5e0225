"""Copies of what other nodes own: they use room that nobody else wants, and no more."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from cachefs.core.policies import Rule
from tests.unit.worker.rig import MIB, only, open_reader, read, recorded, run, until
from tests.unit.worker_peers.nodes import Cluster, Node

FILE_BYTES = 256 << 10
LIMIT_BYTES = 40 * MIB


def room(node: Node) -> int:
    return only(node.worker).contents.ledger.free_for_files


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
            await recorded(node.worker)
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


def test_copies_that_cannot_go_do_not_keep_idle_data_from_going(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2, limit_bytes=LIMIT_BYTES, idle_after_s=100.0)
        async with cluster.running() as (node, other):
            inos = [cluster.rig.put(n, FILE_BYTES) for n in range(1, 400)]
            own = [ino for ino in inos if cluster.owner(ino) is node]
            copy = next(ino for ino in inos if cluster.owner(ino) is other)
            reader = await open_reader(node.worker, copy)
            left = iter(own)
            while room(node) >= FILE_BYTES:
                await read(node.worker, next(left))
            await until(lambda: len(only(node.worker)._catalog) <= 1)  # all but that are recorded
            assert only(node.worker).contents.order.copy_count == 1
            cluster.rig.wall_s += 1000.0
            again = [next(left) for _ in range(20)]
            for ino in again:
                await read(node.worker, ino)
            assert await cached(cluster, node, again) == len(again)
            assert await cached(cluster, node, [copy]) == 1
            reader.close()

    run(script())


@pytest.mark.no_cover
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
                    for node in nodes:
                        await recorded(node.worker)  # else it could not be evicted
                hit = 1 - (cluster.body_bytes - before) / (count * FILE_BYTES)
                if epoch == 2:
                    assert hit >= 0.26, f"epoch {epoch}: {hit:.3f}"

    run(script())


def rules(cluster: Cluster, rule: Rule) -> None:
    """For all files from now on."""
    cluster.rig.rule = rule
    for ino, origin in cluster.rig.space.origins.items():
        cluster.rig.space.origins[ino] = msgspec.structs.replace(origin, rule=rule)


async def cached(cluster: Cluster, node: Node, inos: list[int]) -> int:
    counts = [await node.worker.cached_bytes(cluster.rig.content(ino)) for ino in inos]
    return sum(count > 0 for count in counts)


@pytest.mark.parametrize("size", [FILE_BYTES, 12 * MIB])
def test_where_copies_are_never_kept_others_are_read_past_the_cache(
    tmp_path: Path, size: int
) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2, limit_bytes=100 * MIB)
        rules(cluster, Rule(local_copy="never"))
        async with cluster.running() as nodes:
            inos = [cluster.rig.put(n, size) for n in range(1, 7)]
            own = [ino for ino in inos if cluster.owner(ino) is nodes[0]]
            others = [ino for ino in inos if cluster.owner(ino) is nodes[1]]
            assert own
            assert others
            for ino in [*own, *others, *others]:
                assert await read(nodes[0].worker, ino) == cluster.rig.data[ino]
            assert await cached(cluster, nodes[0], own) == len(own)
            assert await cached(cluster, nodes[0], others) == 0
            assert await cached(cluster, nodes[1], others) == len(others)
            assert cluster.body_bytes == len(inos) * size
            rules(cluster, Rule())
            more = [cluster.rig.put(n, FILE_BYTES) for n in range(7, 13)]
            for ino in more:
                await read(nodes[0].worker, ino)
            assert await cached(cluster, nodes[0], more) == len(more)

    run(script())


@pytest.mark.parametrize("local_copy", ["auto", "always"])
def test_copies_replace_what_is_in_use_only_where_policies_say_so(
    tmp_path: Path, local_copy: str
) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2, limit_bytes=16 * MIB, admission="always")
        rules(cluster, Rule(local_copy=local_copy))
        async with cluster.running() as (node, other):
            inos = [cluster.rig.put(n, FILE_BYTES) for n in range(1, 180)]
            others = [ino for ino in inos if cluster.owner(ino) is other]
            assert len(others) * FILE_BYTES > 16 * MIB
            for ino in others:
                assert await read(node.worker, ino) == cluster.rig.data[ino]
                await recorded(node.worker)  # what is not recorded could not be evicted
            evicted = node.worker.status()["evicted_files"]
            assert bool(evicted.get("space")) == (local_copy == "always")
            kept = await cached(cluster, node, others[-5:])
            assert kept == (5 if local_copy == "always" else 0)

    run(script())


def test_of_two_owners_each_keeps_what_it_reads(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3, replicas=2)
        rules(cluster, Rule(replicas=2, local_copy="never"))
        async with cluster.running() as nodes:
            inos = [cluster.rig.put(n, FILE_BYTES) for n in range(1, 13)]
            for ino in inos:
                for node in nodes:
                    assert await read(node.worker, ino) == cluster.rig.data[ino]
            have = [await cached(cluster, node, inos) for node in nodes]
            assert sum(have) == 2 * len(inos)
            assert cluster.body_bytes == len(inos) * FILE_BYTES
            assert not any(only(node.worker).contents.order.copy_count for node in nodes)

    run(script())
