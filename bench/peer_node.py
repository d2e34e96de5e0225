"""A worker of a bench, as a process: `python -m bench.peer_node SPEC` (JSON, see `Spec`).

An owner fills its tier from a folder, prints `{"url": …}`, and serves until its input ends. A taker
fetches the same files from it into another tier, and prints the time and CPU.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from cachefs.core.errors import Unavailable
from cachefs.core.model import ContentId, NamespaceId, Origin
from cachefs.core.placement import Member, View
from cachefs.core.services import Permission
from cachefs.core.tiers import TierSpec
from connectors.base import Connector
from connectors.file.connector import FileConnector
from tests.services.loading import fetch
from worker.cache.cache import Cache
from worker.fill.source import OriginSource
from worker.peers.ownership_map import OwnershipMap
from worker.peers.server import Handlers, PeerServer
from worker.peers.source import ClusterSource
from worker.tier.config import WorkerConfig

NAMESPACE = NamespaceId(b"b" * 16)


class Spec(msgspec.Struct):
    """`owner`: the URL of the owner of the files; "" makes this process the owner."""

    tier: str
    folder: str
    names: list[str]
    size_bytes: int
    owner: str = ""


class Names:
    """The part of a `MetadataService` that a worker uses."""

    namespace = NAMESPACE

    def __init__(self, spec: Spec) -> None:
        self._origins = []
        for number, name in enumerate(spec.names, 1):
            info = os.stat(Path(spec.folder) / name)
            content = ContentId(NAMESPACE, number, 0, info.st_mtime_ns)
            self._origins.append(
                Origin(content, "u", name.encode(), "", info.st_size, info.st_mtime_ns)
            )

    def locate_nowait(self, ino: int) -> Origin:
        return self._origins[ino - 1]

    async def locate(self, ino: int) -> Origin:
        return self._origins[ino - 1]

    async def report_changed(self, ino: int) -> None:
        pass

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        return Permission(frozenset())


class Node:
    """The objects of one worker."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.ring = OwnershipMap("taker" if spec.owner else "owner")
        origin = OriginSource(self._connector)
        self.source = ClusterSource(self.ring, origin)
        self.worker: Cache

    def _connector(self, namespace: NamespaceId, ufs: str) -> Connector:
        if self.spec.owner:
            raise Unavailable("this node has no origin")
        return FileConnector(self.spec.folder)

    async def start(self) -> None:
        names: Any = Names(self.spec)
        config = WorkerConfig(self.spec.tier, self.spec.size_bytes)
        tier = TierSpec("ssd", self.spec.tier, self.spec.size_bytes)
        self.worker = await Cache.start(
            config, [tier], lambda namespace: names, self._connector, source=self.source
        )

    def set_owner(self, url: str) -> None:
        self.source.on_view(View(1, (Member("owner", url, 1.0),)))

    async def fetch(self) -> None:
        inos = range(1, len(self.spec.names) + 1)
        await asyncio.gather(*(fetch(self.worker, NAMESPACE, ino) for ino in inos))


async def own(node: Node) -> None:
    """Fills the tier, and serves until the input ends."""

    async def never() -> None:
        raise Unavailable("there is no master")

    async def drop(contents: list[ContentId]) -> Any:
        raise Unavailable("nothing is dropped here")

    handlers = Handlers(drop, node.worker.status)
    server = PeerServer(node.worker.serving, node.ring, handlers, refresh=never)
    url = f"http://127.0.0.1:{await server.start('127.0.0.1')}"
    node.set_owner(url)
    await node.fetch()
    print(json.dumps({"url": url}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


async def take(node: Node) -> None:
    node.set_owner(node.spec.owner)
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    await node.fetch()
    wall_s = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}), flush=True)


async def run(spec: Spec) -> None:
    node = Node(spec)
    await node.start()
    try:
        await (take(node) if spec.owner else own(node))
    finally:
        await node.worker.close()
        node.source.close()


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Spec)))
