"""Several workers in one process, with an origin in memory: their peers are real, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from cachefs.core import access
from cachefs.core import cluster as c
from cachefs.core.messages import PoliciesAt
from cachefs.core.model import PAGE_BYTES, ContentId
from cachefs.core.placement import Member, View
from cachefs.core.policies import Policy, Rule
from connectors.reach import Reach
from tests.services.memory import MemoryConnector
from tests.unit.worker.rig import MIB, Namespace, Rig
from worker.cache.cache import Cache
from worker.fill.source import OriginSource
from worker.peers.ownership_map import OwnershipMap
from worker.peers.server import Handlers, PeerServer
from worker.peers.source import ClusterSource, in_loop
from worker.peers.source_selection import Times

TIMES = Times(silence_s=10.0, probe_after_s=2.0, total_s=20.0)  # a busy machine is no silent peer
SOON = Times(silence_s=1.0, probe_after_s=0.3, total_s=10.0)


class Told(Namespace):
    """A namespace that says of each content what its origin says."""

    policy_version = 0

    async def set_policy(self, path: bytes, policy: Policy, unset: Sequence[str]) -> Policy:
        raise NotImplementedError

    async def policies_at(self, path: bytes) -> PoliciesAt:
        raise NotImplementedError

    async def rules_of(self, contents: Sequence[ContentId]) -> list[Rule]:
        return [self.origins[content.ino].rule for content in contents]


class Node:
    """One worker with its server."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.id = f"node{number}"
        self.ring = OwnershipMap(self.id)
        self.worker: Cache
        self.source: ClusterSource
        self.server: PeerServer
        self.url = ""
        self.offers: list[c.Offer] = []
        self.reach = Reach()
        self.origin: MemoryConnector | None = None  # as this node alone sees it

    @property
    def member(self) -> Member:
        return Member(self.id, self.url, self.cluster.weights.get(self.number, 1.0))

    async def refresh(self) -> None:
        """As if the master were asked."""
        self.cluster.refreshes += 1
        self.set_view(self.cluster.view)

    def set_view(self, view: View) -> None:
        self.source.on_view(view)

    def is_owned(self, key: bytes, size: int, replicas: int) -> bool:
        return self.ring.owns_content(key, replicas=replicas)

    async def take_offer(self, offer: c.Offer) -> None:
        self.offers.append(offer)

    async def drop(self, contents: list[ContentId]) -> c.Dropped:
        counts = await self.worker.free(contents)
        return c.Dropped(counts.files, counts.bytes, counts.busy_files)


class Cluster:
    """`nodes` workers over one origin; `rig` knows the files. `weights` by number, else 1."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        replicas: int = 1,
        limit_bytes: int = 300 * MIB,
        weights: dict[int, float] | None = None,
        times: Times = TIMES,
        **config: Any,
    ) -> None:
        self.rig = Rig(directory / "0", limit_bytes, **config)
        self.rig.rule = Rule(replicas=replicas)
        self.rig.space = Told()
        self.weights = weights or {}
        self.refreshes = 0
        self.view = View(0)
        self.times = times
        self.access = access.Access()
        self.headers: dict[str, str] = {}
        self.tls: tuple[ssl.SSLContext | None, ssl.SSLContext | None] = None, None
        self.nodes = [Node(self, number) for number in range(nodes)]
        self._directory = directory

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[list[Node]]:
        async with contextlib.AsyncExitStack() as stack:
            for node in self.nodes:
                await stack.enter_async_context(self._run(node))
            self.set_view(range(len(self.nodes)))
            yield self.nodes

    @contextlib.asynccontextmanager
    async def _run(self, node: Node) -> AsyncIterator[None]:
        origin = OriginSource(lambda namespace, ufs: node.origin or self.rig.origin)
        refresh = in_loop(asyncio.get_running_loop(), node.refresh)
        serving, asking = self.tls
        node.source = ClusterSource(
            node.ring,
            origin,
            refresh=refresh,
            reach=lambda origin: node.reach,
            headers=self.headers,
            ssl_context=asking,
            times=self.times,
        )
        tier = str(self._directory / str(node.number) / "tier")
        async with self.rig.worker(node.source, node.is_owned, cache_dir=tier) as worker:
            node.worker = worker
            handlers = Handlers(node.drop, worker.status, node.take_offer)
            node.server = PeerServer(
                worker.serving,
                node.ring,
                handlers,
                refresh=node.refresh,
                reach=lambda origin: node.reach,
                authorize=self.access.check,
                ssl_context=serving,
            )
            port = await node.server.start("127.0.0.1")
            node.url = f"http{'s' * bool(serving)}://127.0.0.1:{port}"
            try:
                yield
            finally:
                await node.server.stop()
                node.source.close()

    def set_view(self, members: Iterable[int], before: Iterable[int] = ()) -> None:
        """A new epoch, known to all."""
        self.view = View(
            self.view.epoch + 1,
            tuple(self.nodes[number].member for number in members),
            tuple(self.nodes[number].member for number in before),
        )
        for node in self.nodes:
            node.set_view(self.view)

    def owner(self, ino: int, page: int = 0) -> Node:
        block = page * PAGE_BYTES // (256 << 20)
        member = self.nodes[0].ring.owners(ino, block)[0]
        return next(node for node in self.nodes if node.id == member.id)

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self.nodes if node not in nodes]

    @property
    def body_bytes(self) -> int:
        """That the origin sent."""
        return self.rig.origin.script.body_bytes
