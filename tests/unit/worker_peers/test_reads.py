"""Reads over several workers: every byte once from the origin, whoever asks and whoever dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cachefs.core.errors import Stale
from tests.services.loading import fetch
from tests.services.memory import MemoryConnector
from tests.unit.worker.rig import MIB, NAMESPACE, read, run
from tests.unit.worker_peers.nodes import Cluster

SMALL = 110 << 10


def test_every_byte_comes_once_from_the_origin(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path)
        sizes = [1, SMALL, MIB, MIB + 1, 3 * MIB, 8 * MIB, 8 * MIB + 1, 30 * MIB + 5]
        inos = [cluster.rig.put(n, size) for n, size in enumerate(sizes, 1)]
        async with cluster.running() as nodes:
            for ino in inos:
                reads = (read(node.worker, ino) for node in nodes)
                for data in await asyncio.gather(*reads):
                    assert data == cluster.rig.data[ino]
            assert cluster.body_bytes == sum(sizes)
            peer_bytes = sum(node.worker.status()["peer_bytes"] for node in nodes)
            assert peer_bytes == 2 * sum(sizes)
            for node in nodes:
                status = node.source.status()
                assert (status["failures"], status["wrong_pages"], status["fallbacks"]) == (0, 0, 0)

    run(script())


def test_many_small_files_come_once(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path)
        inos = [cluster.rig.put(n, SMALL) for n in range(1, 101)]
        async with cluster.running() as nodes:

            async def all_of(number: int) -> None:
                order = inos[number * 7 :] + inos[: number * 7]
                for ino in order:
                    assert await read(nodes[number].worker, ino) == cluster.rig.data[ino]

            await asyncio.gather(*(all_of(number) for number in range(3)))
            assert cluster.body_bytes == 100 * SMALL

    run(script())


def test_a_node_without_weight_owns_nothing_and_reads_all(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, weights={2: 0.0})
        inos = [cluster.rig.put(n, MIB) for n in range(1, 21)]
        async with cluster.running() as nodes:
            for ino in inos:
                assert await read(nodes[2].worker, ino) == cluster.rig.data[ino]
            assert nodes[2].worker.status()["origin_bytes"] == 0
            assert {cluster.owner(ino).number for ino in inos} == {0, 1}

    run(script())


def test_without_members_the_origin_is_asked(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 1, weights={0: 0.0})
        cluster.rig.put(1, 3 * MIB)
        async with cluster.running() as nodes:
            assert await read(nodes[0].worker, 1) == cluster.rig.data[1]
            assert nodes[0].worker.status()["origin_bytes"] == 3 * MIB

    run(script())


def test_a_dead_owner_costs_one_read_of_its_part(tmp_path: Path) -> None:
    """All others ask the next in rank, which reads the origin once for all."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 4)
        inos = [cluster.rig.put(n, 2 * MIB) for n in range(1, 13)]
        async with cluster.running() as nodes:
            await nodes[0].server.stop()
            alive = nodes[1:]
            for ino in inos:
                reads = (read(node.worker, ino) for node in alive)
                for data in await asyncio.gather(*reads):
                    assert data == cluster.rig.data[ino]
            assert any(cluster.owner(ino) is nodes[0] for ino in inos)
            assert cluster.body_bytes == len(inos) * 2 * MIB

    run(script())


def test_blocks_are_read_at_their_old_place_before_the_origin(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3)
        inos = [cluster.rig.put(n, 2 * MIB + 1) for n in range(1, 13)]
        async with cluster.running() as nodes:
            cluster.set_view([0, 1])
            for ino in inos:
                await fetch(nodes[0].worker, NAMESPACE, ino)
                await read(nodes[1].worker, ino)
            before = cluster.body_bytes
            cluster.set_view([0, 1, 2], before=[0, 1])
            assert any(cluster.owner(ino) is nodes[2] for ino in inos)
            for ino in inos:
                assert await read(nodes[2].worker, ino) == cluster.rig.data[ino]
            assert cluster.body_bytes == before

    run(script())


def test_a_reader_with_an_old_view_asks_the_master(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 3)
        inos = [cluster.rig.put(n, MIB) for n in range(1, 13)]
        async with cluster.running() as nodes:
            cluster.set_view([0, 1])
            old = cluster.view
            cluster.set_view([1, 2])
            nodes[1].set_view(old)
            for ino in inos:
                assert await read(nodes[1].worker, ino) == cluster.rig.data[ino]
            assert nodes[1].ring.epoch == cluster.view.epoch, "it was told that its view is old"
            nodes[2].set_view(old)
            for ino in inos:
                assert await read(nodes[0].worker, ino) == cluster.rig.data[ino]
            assert cluster.body_bytes == 12 * MIB

    run(script())


def test_a_migration_asks_peers_alone(tmp_path: Path) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2)
        cluster.rig.put(1, 20 * MIB)
        async with cluster.running() as nodes:
            cluster.set_view([0])
            bring = nodes[1].worker.serving.bring
            assert await bring(NAMESPACE, 1, 0, 20, peers_only=True) == 0
            assert cluster.body_bytes == 0, "the origin was asked"
            await fetch(nodes[0].worker, NAMESPACE, 1)
            cluster.set_view([1])
            assert await bring(NAMESPACE, 1, 0, 20, peers_only=True) == 0, "it knows of no holder"
            key = cluster.rig.content(1).key
            nodes[1].source.add_holder(key, 0, nodes[0].member)
            assert await bring(NAMESPACE, 1, 0, 20, peers_only=True) == 20
            assert await read(nodes[1].worker, 1) == cluster.rig.data[1]
            assert cluster.body_bytes == 20 * MIB

    run(script())


@pytest.mark.parametrize("size", [SMALL, 12 * MIB])
def test_what_the_owner_does_not_take_is_served_past_its_cache(tmp_path: Path, size: int) -> None:
    async def script() -> None:
        cluster = Cluster(tmp_path, 2, limit_bytes=40 * MIB)
        async with cluster.running() as nodes:
            cluster.set_view([0])
            for ino in range(1, 5):
                cluster.rig.put(ino, 8 * MIB)
                await read(nodes[0].worker, ino)
            cluster.rig.put(9, size)
            before = cluster.body_bytes
            assert await read(nodes[1].worker, 9) == cluster.rig.data[9]
            assert cluster.body_bytes == before + size
            assert nodes[1].worker.status()["origin_bytes"] == 0

    run(script())


def test_the_next_in_rank_stands_in_for_an_owner_whose_source_is_not_mounted(
    tmp_path: Path,
) -> None:
    """It finds no file there. Only what the reader's node does not find is gone."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 4)
        inos = [cluster.rig.put(n, SMALL) for n in range(1, 21)]
        async with cluster.running() as nodes:
            nodes[0].origin = MemoryConnector()
            owned = [ino for ino in inos if cluster.owner(ino) is nodes[0]]
            for ino in owned[1:]:
                for node in nodes[1:]:
                    assert await read(node.worker, ino) == cluster.rig.data[ino]
            assert cluster.body_bytes == len(owned[1:]) * SMALL > 0, "one worker read it for all"
            cluster.rig.origin.delete(b"dir/%d" % owned[0])
            with pytest.raises(Stale):
                await read(nodes[1].worker, owned[0])

    run(script())
