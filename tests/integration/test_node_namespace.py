"""A node's namespace over a real master: the same answers, changes that are heard, a master that is
restarted or gone, sources that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.core import messages as m
from cachefs.core.access import HEADER, Access, header_of, parse_tokens
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CacheFSError,
    Stale,
    Unreachable,
)
from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, UfsSpec
from cachefs.core.services import MetadataService
from connectors.base import Connector
from master.namespace import Master
from master.server.app import MasterServer
from tests.services.memory import MemoryConnector
from worker.membership.master_client import MasterClient, MasterUnreachable
from worker.names import stream
from worker.names.namespace import DEGRADED_VALID_S, RemoteNamespace

LIMIT_S = 60.0
TOKEN = "a-token-of-the-cluster"  # noqa: S105


class Cluster:
    """A master whose address stays, its origins by URL, and a node."""

    def __init__(self, directory: Path, tokens: str = "") -> None:
        self.directory = directory
        self.origins: dict[str, MemoryConnector] = {}
        self.authorize = Access(parse_tokens(tokens, "tokens")).check if tokens else None
        self.port = 0
        self.master: Master
        self.server: MasterServer
        self.node: RemoteNamespace
        self.client: MasterClient

    def open_connector(self, source: UfsSpec) -> Connector:
        if source.url not in self.origins:
            raise BadConfig(f"no origin {source.url}")
        return self.origins[source.url]

    async def start(self) -> None:
        self.master = Master.open_empty(self.directory)
        for path, source in self.master.mounts.recorded():
            self.master.mounts.attach(path, self.open_connector(source))
        self.server = MasterServer(
            self.master,
            listen=("127.0.0.1", self.port),
            open_connector=self.open_connector,
            authorize=self.authorize,
        )
        self.port = await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()
        await self.master.close()

    async def add(self, path: bytes, origin: MemoryConnector, interval_s: float = 60.0) -> Inode:
        url = f"s3://bucket{path.decode()}"
        self.origins[url] = origin
        return (await self.master.add_ufs(path, UfsSpec(url), origin, interval_s)).root

    async def heard(self) -> None:
        """Waits until the node heard of all that the master announced."""
        await until(lambda: self.node._stream.seq == self.master.position)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await asyncio.sleep(0.005)


def play(
    directory: Path, script: Callable[[Cluster], Awaitable[None]], tokens: str = "", token: str = ""
) -> None:
    async def whole() -> None:
        async with asyncio.timeout(LIMIT_S), cluster(directory, tokens, token) as made:
            await script(made)

    asyncio.run(whole())


@contextlib.asynccontextmanager
async def cluster(directory: Path, tokens: str, token: str) -> AsyncIterator[Cluster]:
    made = Cluster(directory / "meta", tokens)
    await made.start()
    made.client = MasterClient(
        f"127.0.0.1:{made.port}", token={HEADER: header_of(token)} if token else None
    )
    try:
        made.node = await RemoteNamespace.open(made.client, reach_s=1.0)
        try:
            yield made
        finally:
            await made.node.close()
    finally:
        await made.client.close()
        await made.stop()


async def names_of(service: MetadataService, ino: int) -> dict[bytes, bytes]:
    """A whole directory, in small pages."""
    found: dict[bytes, bytes] = {}
    after = b""
    while True:
        page = await service.list_dir(ino, after, 3)
        found |= {entry.name: bytes(entry.inode) for entry in page.entries}
        after = page.next
        if not after:
            return found


async def result(work: Awaitable[Any]) -> Any:
    """What it answers, without the time for which that holds, or its error's type."""
    try:
        answer = await work
    except CacheFSError as err:
        return type(err)
    return answer.inode if isinstance(answer, m.Found) else answer


async def same(one: Cluster, inos: set[int], names: set[bytes]) -> None:
    """The node answers as its master does, at every place."""
    for ino in inos:
        assert await result(one.node.getattr(ino)) == await result(one.master.getattr(ino))
        assert await result(one.node.locate(ino)) == await result(one.master.locate(ino))
        known = one.node.locate_nowait(ino)
        assert known is None or known == await result(one.master.locate(ino))
        for name in names:
            looked = one.node.lookup(ino, name)
            assert await result(looked) == await result(one.master.lookup(ino, name))
        listed = await result(names_of(one.node, ino))
        assert listed == await result(names_of(one.master, ino))


KEYS = {b"f": b"1", b"d/a": b"22", b"d/b": b"333", b"d/e/a": b"4", b"g/a": b"5"}
NAMES = {b"f", b"d", b"a", b"b", b"e", b"g", b"x", b"y", b"data", b"nothing"}


async def inos_of(one: Cluster, ino: int = ROOT_INO) -> set[int]:
    found = {ino}
    for record in (await names_of(one.master, ino)).values():
        inode = msgspec.msgpack.decode(record, type=Inode)
        found |= await inos_of(one, inode.ino) if inode.kind == 2 else {inode.ino}
    return found


def test_a_node_answers_as_its_master(tmp_path: Path) -> None:
    async def script(one: Cluster) -> None:
        await one.add(b"/data/x", MemoryConnector(KEYS))
        await one.add(b"/data/x/d/y", MemoryConnector(KEYS))
        await one.heard()
        inos = await inos_of(one)
        for _ in range(2):  # from the master, and from what the node kept
            await same(one, inos, NAMES)
        for path in (b"", b"/data/x/d/y/d/a", b"data/x/nothing", b"/data/x/f/too-deep"):
            assert await result(one.node.resolve(path)) == await result(one.master.resolve(path))
        for walk in ("walk", "known_files"):
            ours = [file async for files in getattr(one.node, walk)(ROOT_INO) for file in files]
            theirs = [file async for files in getattr(one.master, walk)(ROOT_INO) for file in files]
            assert ours == theirs
            assert len(ours) == 10
        await one.add(b"/data/new", MemoryConnector(KEYS))
        await one.heard()
        for namespace in (one.node, one.master):
            with_unlisted = [
                path
                async for files in namespace.known_files(ROOT_INO, shows_unlisted=True)
                for path, inode in files
                if inode.kind is Kind.DIRECTORY
            ]
            assert with_unlisted == [b"data/new/"]

    play(tmp_path, script)


def test_sources_that_come_and_go_are_heard_of(tmp_path: Path) -> None:
    async def script(one: Cluster) -> None:
        root = await one.add(b"/data", MemoryConnector(KEYS))
        inos = await inos_of(one)
        await same(one, inos, NAMES)
        assert (await one.node.lookup(root.ino, b"y")).inode is None
        await one.add(b"/data/y", MemoryConnector({b"in/it": b"1"}))
        await one.add(b"/data/d", MemoryConnector({b"a": b"hides"}))
        await one.heard()
        await same(one, inos | await inos_of(one), NAMES)
        found = await one.node.resolve(b"/data/d/a")
        assert found.inode is not None
        assert (await one.node.locate(found.inode.ino)).ufs == "s3://bucket/data/d"
        for path in (b"/data/d", b"/data/y", b"/data"):
            inos |= await inos_of(one)
            await same(one, inos, NAMES)
            await one.master.mounts.remove(path)
            await one.heard()
            await same(one, inos, NAMES)
        with pytest.raises(Stale):
            await one.node.locate(found.inode.ino)

    play(tmp_path, script)


def test_a_changed_object_is_heard_of(tmp_path: Path) -> None:
    async def script(one: Cluster) -> None:
        origin = MemoryConnector(KEYS)
        await one.add(b"/data", origin)
        found = (await one.node.resolve(b"/data/d/a")).inode
        parent = (await one.node.resolve(b"/data/d")).inode
        assert found is not None
        assert parent is not None
        assert (await one.node.lookup(parent.ino, b"a")).inode == found
        origin.put(b"d/a", b"other bytes")
        events = one.node.events(-1)
        event = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await one.node.report_changed(found.ino)
        assert (parent.ino, b"a") in (await event).entries
        await one.heard()
        changed = (await one.node.lookup(parent.ino, b"a")).inode
        assert changed is not None
        assert (changed.size, changed.ino != found.ino) == (11, True)
        with pytest.raises(Stale):
            await one.node.locate(found.ino)
        with pytest.raises(Stale):
            await one.node.getattr(found.ino)

    play(tmp_path, script)


def test_a_name_is_looked_up_again_before_its_event_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master has another file there already: an open fails once."""

    async def script(one: Cluster) -> None:
        origin = MemoryConnector({b"d/a": b"bytes"})
        await one.add(b"/data", origin)
        await one.heard()
        parent = (await one.node.resolve(b"data/d")).inode
        assert parent is not None
        found = (await one.node.lookup(parent.ino, b"a")).inode
        assert found is not None
        monkeypatch.setattr(one.node, "_take", lambda events: None)
        origin.put(b"d/a", b"other bytes")
        await one.master.report_changed(found.ino)
        with pytest.raises(Stale):
            await one.node.locate(found.ino)
        changed = (await one.node.lookup(parent.ino, b"a")).inode
        assert changed is not None
        assert changed.size == 11

    play(tmp_path, script)


def test_a_restart_of_the_master_is_hardly_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PAUSE_S", 0.02)

    async def script(one: Cluster) -> None:
        origin = MemoryConnector(KEYS)
        await one.add(b"/data", origin)
        inos = await inos_of(one)
        await same(one, inos, NAMES)
        d = (await one.node.resolve(b"/data/d")).inode
        assert d is not None
        await one.stop()
        await until(lambda: one.client.down)
        known = one.node.lookup_nowait(d.ino, b"a")
        assert known is not None
        assert known.valid_for_s <= DEGRADED_VALID_S
        assert one.node.locate_nowait(known.inode.ino if known.inode else 0) is not None
        assert set(await names_of(one.node, d.ino)) == {b"a", b"b", b"e"}
        with pytest.raises(MasterUnreachable):
            await one.node.lookup(d.ino, b"never-asked")
        content = ContentId.of(one.node.namespace, known.inode or Inode(1, 1))
        with pytest.raises(Unreachable):
            await one.node.permit_eviction([content])
        waiting = asyncio.ensure_future(one.node.lookup(d.ino, b"asked-meanwhile"))
        await one.start()
        assert (await waiting).inode is None
        await until(lambda: one.node._stream.intact)
        await same(one, inos, NAMES)
        assert content.name in (await one.node.permit_eviction([content])).allowed

    play(tmp_path, script)


def test_a_token_is_presented_and_its_limits_are_the_masters(tmp_path: Path) -> None:
    tokens = f"{TOKEN}\nlimited-to-one-place path=/data/d read-only\n"

    async def everything(one: Cluster) -> None:
        await one.add(b"/data", MemoryConnector(KEYS))
        assert (await one.node.resolve(b"/data/f")).inode is not None

    async def limited(one: Cluster) -> None:
        await one.add(b"/data", MemoryConnector(KEYS))
        found = (await one.node.resolve(b"/data/d/a")).inode
        assert found is not None
        assert (await one.node.locate(found.ino)).path == b"d/a"
        with pytest.raises(AccessDenied):
            await one.node.resolve(b"/data/f")

    play(tmp_path / "1", everything, tokens, TOKEN)
    play(tmp_path / "2", limited, tokens, "limited-to-one-place")
    with pytest.raises(AccessDenied):
        play(tmp_path / "3", everything, tokens, "wrong-token-of-nobody")


@pytest.mark.parametrize("seed", range(4))
def test_after_any_history_a_node_answers_as_its_master(tmp_path: Path, seed: int) -> None:
    """Objects that change and vanish, sources that come and go, while names are asked for all the
    time: once the node has heard of all, every answer is its master's, from its cache or not."""
    rng = random.Random(seed)

    async def script(one: Cluster) -> None:
        origin = MemoryConnector({b"%s/%s" % (d, f): b"0" for d in (b"d", b"g") for f in FILES})
        root = await one.add(b"/data", origin, 3600.0)
        inos, now = await inos_of(one), [*await inos_of(one)]
        added: list[bytes] = []
        questions: set[asyncio.Future[Any]] = set()
        for _ in range(60):
            for _ in range(rng.randrange(8)):
                ino = rng.choice(now if rng.random() < 0.9 else [*inos])
                question = asyncio.ensure_future(result(_any_question(one.node, rng, ino)))
                questions.add(question)
                question.add_done_callback(questions.discard)
            await asyncio.sleep(rng.random() * 0.004)
            await _any_change(one, rng, origin, added)
            now = [*await inos_of(one, root.ino)]
            inos.update(now)
        await asyncio.gather(*questions)
        await one.heard()
        await same(one, inos, {b"d", b"g", b"m", *FILES})
        counters = one.node.status()["names"]
        assert counters["hits"] > 0, f"seed {seed}: the cache had its part"

    play(tmp_path, script)


FILES = [b"a", b"b", b"c"]


async def _any_question(node: RemoteNamespace, rng: random.Random, ino: int) -> Any:
    match rng.randrange(4):
        case 0:
            return await node.getattr(ino)
        case 1:
            return await node.list_dir(ino, b"", 1000)
        case 2:
            return await node.locate(ino)
    return await node.lookup(ino, rng.choice([b"d", b"g", b"m", *FILES]))


async def _any_change(
    one: Cluster, rng: random.Random, origin: MemoryConnector, added: list[bytes]
) -> None:
    path = rng.choice([b"d", b"g"]) + b"/" + rng.choice(FILES)
    match rng.randrange(4):
        case 0 | 1:
            await _report(one, path, lambda: origin.put(path, rng.randbytes(9)))
        case 2:
            await _report(one, path, lambda: origin.delete(path))
        case 3 if not added:
            added.append(rng.choice([b"/data/m", b"/data/d/m", b"/data/g"]))
            await one.add(added[0], MemoryConnector({b"a": b"1", b"d/b": b"2"}), 3600.0)
        case 4 if added:
            await one.master.mounts.remove(added.pop())


async def _report(one: Cluster, path: bytes, change: Callable[[], object]) -> None:
    """An object changes, and somebody notices."""
    found = (await one.master.resolve(b"/data/" + path)).inode
    with contextlib.suppress(KeyError):  # it is gone already
        change()
    if found is not None:
        await one.node.report_changed(found.ino)
