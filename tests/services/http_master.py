"""A master over HTTP on a free port, with origins in memory: what tests of its calls stand on."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import Access, parse_tokens
from cachefs.core.errors import BadConfig
from cachefs.core.model import Inode, NamespaceId, UfsSpec
from connectors.base import Connector
from master.namespace import Master
from master.server.admin.at import Peers
from master.server.app import MasterServer
from tests.services.memory import MemoryConnector

T = TypeVar("T", bound=m.Message)
DEADLINE_S = 60.0


class Cluster:
    """One master on a free port, its origins by URL, and calls of it."""

    def __init__(
        self,
        directory: Path,
        tokens: str = "",
        clock: Callable[[], float] | None = None,
        peers: Peers | None = None,
        lost_after_s: float = c.LOST_AFTER_S,
    ):
        self.directory = directory
        self.origins: dict[str, MemoryConnector] = {}
        self.master: Master
        self.server: MasterServer
        self.token = ""
        self.port = 0
        self._authorize = Access(parse_tokens(tokens, "tokens")).check if tokens else None
        self._clock = clock or time.monotonic
        self._peers = peers
        self._lost_after_s = lost_after_s
        self.session: aiohttp.ClientSession

    def open_connector(self, source: UfsSpec) -> Connector:
        try:
            return self.origins[source.url]
        except KeyError:
            raise BadConfig(f"no origin {source.url}") from None

    async def start(self) -> None:
        self.master = Master.open_empty(self.directory)
        for path, source in self.master.mounts.recorded():
            self.master.mounts.attach(path, self.open_connector(source))
        self.server = MasterServer(
            self.master,
            listen=("127.0.0.1", 0),
            open_connector=self.open_connector,
            authorize=self._authorize,
            clock=self._clock,
            peers=self._peers,
            lost_after_s=self._lost_after_s,
        )
        self.port = await self.server.start()
        self.session = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")

    async def stop(self) -> None:
        await self.session.close()
        await self.server.stop()
        await self.master.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    @property
    def namespace(self) -> NamespaceId:
        return self.master.namespace

    async def post(self, data: bytes, token: str = "") -> tuple[int, m.Message]:
        secret = token or self.token
        headers = {"Content-Type": "application/msgpack"}
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        async with self.session.post(c.CALL_PATH, data=io.BytesIO(data), headers=headers) as reply:
            assert reply.content_type == "application/msgpack"
            return reply.status, c.decode_answer(await reply.read())

    async def ask(self, call: m.Message, kind: type[T], token: str = "") -> T:
        status, answer = await self.post(c.encode(call), token)
        if isinstance(answer, m.Failure):
            assert status >= 400
            raise m.error_of(answer)
        assert status == 200
        assert isinstance(answer, kind)
        return answer

    async def page(self, path: str, token: str = "") -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.session.get(path, headers=headers) as reply:
            return reply.status, await reply.text()

    async def add(self, path: bytes, keys: dict[bytes, bytes], token: str = "") -> Inode:
        url = f"s3://bucket{path.decode()}"
        self.origins.setdefault(url, MemoryConnector(keys))
        added = await self.ask(c.AddUfs(path, UfsSpec(url)), c.UfsAdded, token)
        return added.root

    async def ino(self, path: bytes, token: str = "") -> int:
        found = await self.ask(m.Resolve(self.namespace, path), m.Found, token)
        assert found.inode is not None, path
        return found.inode.ino


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def cluster(directory: Path, tokens: str = "", **options: Any) -> AsyncIterator[Cluster]:
    made = Cluster(directory / "meta", tokens, **options)
    await made.start()
    try:
        yield made
    finally:
        for origin in made.origins.values():
            origin.unblock()
        await made.stop()


def worker(id: str, port: int = 20000, weight: float = 1.0) -> c.Register:
    return c.Register(id, f"http://127.0.0.1:{port}", weight, host=f"host-{id}")
