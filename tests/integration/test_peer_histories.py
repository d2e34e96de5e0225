"""Random histories of a few real workers in one process: servers that stop and come back, views
that change, bytes that flip, an origin that fails now and then. Every read is right and in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

import pytest

from cachefs.core.errors import Unreachable
from tests.integration.test_peer_transfer import flip
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, open_reader, run
from tests.unit.worker_peers.nodes import Cluster, Node
from worker.peers.source_selection import Times

NODES = 4
FILES = 24
STEPS = 60
TIMES = Times(silence_s=2.0, probe_after_s=0.5, total_s=8.0)
READ_LIMIT_S = 20.0


class History:
    """Of one seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(
            directory,
            NODES,
            replicas=self.random.choice([1, 1, 2]),
            limit_bytes=self.random.choice([40, 300]) * MIB,
            times=TIMES,
        )
        for ino in range(1, FILES + 1):
            self.cluster.rig.put(ino, self.random.choice([1000, 110 << 10, MIB, 3 * MIB + 5]))
        self.members = [*range(NODES)]
        self.down: set[int] = set()
        self.damaged: set[tuple[int, int]] = set()  # (node, ino): its own readers see it

    async def step(self) -> None:
        acts = [self.read_all, self.read_all, self.stop, self.come_back, self.change, self.spoil]
        await self.random.choice(acts)()
        if self.random.random() < 0.1:
            self.cluster.rig.origin.script.fail("read", None, Unreachable("cut"))

    async def read_all(self) -> None:
        reads = [self.read_one() for _ in range(self.random.randrange(1, 12))]
        await asyncio.gather(*reads)

    async def read_one(self, ino: int = 0) -> None:
        """Also on nodes that others cannot reach."""
        node = self.random.choice(self.cluster.nodes)
        ino = ino or self.random.randrange(1, FILES + 1)
        if (node.number, ino) in self.damaged:
            return
        data = self.cluster.rig.data[ino]
        offset = self.random.randrange(len(data))
        size = self.random.choice([1, 4096, len(data)])
        started = time.monotonic()
        reader = await open_reader(node.worker, ino)
        try:
            assert await reader.at(offset, size) == data[offset : offset + size]
        finally:
            reader.close()
        assert time.monotonic() - started < READ_LIMIT_S

    async def stop(self) -> None:
        node = self.random.choice(self.cluster.nodes)
        if node.number not in self.down:
            self.down.add(node.number)
            await node.server.stop()

    async def come_back(self) -> None:
        for number in [*self.down]:
            node = self.cluster.nodes[number]
            await node.server.start("127.0.0.1", int(node.url.rpartition(":")[2]))
            self.down.discard(number)

    async def change(self) -> None:
        """Some nodes hear of a view later: when they are told by others that theirs is old."""
        before, count = self.members, self.random.randrange(1, NODES + 1)
        self.members = self.random.sample(range(NODES), count)
        old = {node.number: node.ring.view for node in self.cluster.nodes}
        self.cluster.set_view(self.members, before)
        for number in self.random.sample(range(NODES), self.random.randrange(2)):
            self.cluster.nodes[number].set_view(old[number])

    async def spoil(self) -> None:
        """One byte of a copy that nobody uses just now; others ask for it, who have it no more."""
        node = self.random.choice(self.cluster.nodes)
        ino = self.random.randrange(1, FILES + 1)
        content = self.cluster.rig.content(ino)
        if await self.is_cached(node, ino):
            with contextlib.suppress(ValueError):  # it was just dropped
                flip(node, content.name, self.random.randrange(len(self.cluster.rig.data[ino])))
                self.damaged.add((node.number, ino))
            for other in self.cluster.others(node):
                await other.worker.free([content])
                self.damaged.discard((other.number, ino))
            await asyncio.gather(*(self.read_one(ino) for _ in range(4)))

    async def is_cached(self, node: Node, ino: int) -> bool:
        size = len(self.cluster.rig.data[ino])
        return await node.worker.cached_bytes(self.cluster.rig.content(ino)) == size


@pytest.mark.parametrize("seed", range(6))
def test_every_read_is_right_and_in_time(tmp_path: Path, seed: int) -> None:
    async def script() -> None:
        history = History(tmp_path, seed)
        async with history.cluster.running():
            for _ in range(STEPS):
                await history.step()
            await history.come_back()
            for node in history.cluster.nodes:
                status = node.worker.status()
                assert status["used_bytes"] <= status["limit_bytes"]

    run(script())


def test_each_node_has_all_that_it_fetched(tmp_path: Path) -> None:
    """The end of any load: complete and published, whoever owns what."""

    async def script() -> None:
        cluster = Cluster(tmp_path, 3)
        for ino in range(1, 31):
            cluster.rig.put(ino, 300_000)
        async with cluster.running() as nodes:
            fetches = (fetch(node.worker, NAMESPACE, ino) for node in nodes for ino in range(1, 31))
            await asyncio.gather(*fetches)
            assert cluster.body_bytes == 30 * 300_000
            for node in nodes:
                for ino in range(1, 31):
                    content = cluster.rig.content(ino)
                    assert await node.worker.cached_bytes(content) == 300_000

    run(script())
