"""Small files that are opened in order over the node socket: what comes next is there before it is
opened, every byte comes once, and nothing comes that has no room or that nobody is likely to want.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.core.model import NamespaceId, Origin
from tests.integration.test_worker_openings import opened, serve_rig
from tests.unit.worker.rig import MIB, NAMESPACE, Namespace, Rig, only, until
from tests.unit.worker_server.test_sessions import FakeSources, Peer
from worker.cache.cache import Cache
from worker.prefetch.open_runs import LEAST_OPENS, MOST_FILES
from worker.server.server import NodeServer

SIZE = 20 << 10
FILES = 200
LIMIT_BYTES = 40 * MIB

Script = Callable[[Rig, Cache, Peer, NodeServer], Awaitable[None]]


class Sources(FakeSources):
    def __init__(self, space: Namespace) -> None:
        super().__init__()
        self._space = space

    def service(self, namespace: NamespaceId) -> Any:
        return SimpleNamespace(
            events=self.known.events,
            locate=lambda ino: self._space.locate(ino),
            locate_nowait=lambda ino: self._space.locate_nowait(ino),
        )


def serve(
    tmp_path: Path, script: Script, size_bytes: int = SIZE, files_ahead: int = MOST_FILES
) -> Rig:
    rig = Rig(tmp_path, LIMIT_BYTES, admission="fill")
    for ino in range(1, FILES + 1):
        rig.put(ino, size_bytes)

    async def play(worker: Cache, peer: Peer, server: NodeServer) -> None:
        await script(rig, worker, peer, server)

    serve_rig(rig, tmp_path, Sources(rig.space), play, files_ahead=files_ahead)
    return rig


async def go_through(rig: Rig, peer: Peer, inos: list[int]) -> int:
    """Opens these as a client does that looks for published files first; how many it asked for."""
    asked, used = 0, []
    for ino in inos:
        if rig.name(ino) in rig.published():
            used.append(rig.name(ino))
            if len(used) == 8:
                await peer.send(0, m.Used(used, 0))
                used = []
            continue
        asked += 1
        assert (await opened(peer, ino))[1] == rig.data[ino]
    return asked


def test_a_directory_read_in_order(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer, server: NodeServer) -> None:
        await go_through(rig, peer, [*range(1, LEAST_OPENS + 1)])
        await until(lambda: len(rig.published()) > LEAST_OPENS + 8)
        await go_through(rig, peer, [*range(LEAST_OPENS + 1, FILES + 1)])
        await until(lambda: len(rig.published()) == FILES)
        assert server.status()["ahead_files"] > FILES / 2

    rig = serve(tmp_path, script)
    assert rig.origin.script.body_bytes == FILES * SIZE


@pytest.mark.parametrize(("order", "files_ahead"), [("random", 256), ("in order", 0)])
def test_what_is_not_foreseen_is_not_brought(tmp_path: Path, order: str, files_ahead: int) -> None:
    inos = [*range(1, 41)] if order == "in order" else random.Random(3).sample(range(1, 201), 40)

    async def script(rig: Rig, worker: Cache, peer: Peer, server: NodeServer) -> None:
        assert await go_through(rig, peer, inos) == 40
        assert server.status()["ahead_files"] == 0

    rig = serve(tmp_path, script, files_ahead=files_ahead)
    assert rig.origin.script.body_bytes == 40 * SIZE


def test_an_open_of_what_is_on_its_way_waits_for_it(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer, server: NodeServer) -> None:
        await go_through(rig, peer, [*range(1, LEAST_OPENS)])
        rig.origin.script.block("read")
        for ino in (LEAST_OPENS, LEAST_OPENS + 1):
            await peer.send(ino, m.Open(NAMESPACE, ino))
            await asyncio.to_thread(rig.origin.script.wait_blocked, "read")
        await until(lambda: worker.status()["fills_in_flight"] > 2)
        rig.origin.script.unblock()
        answers = [await peer.receive() for _ in range(2)]
        assert {type(body) for _, body, _ in answers} == {m.Opened}
        for _, _, fd in answers:
            assert fd is not None
            only(worker).disk.close(fd)
        await until(lambda: len(rig.published()) >= 2 * LEAST_OPENS)

    rig = serve(tmp_path, script)
    assert rig.origin.script.body_bytes % SIZE == 0
    assert rig.origin.script.calls["read"] == rig.origin.script.body_bytes // SIZE


def test_a_full_cache_keeps_what_it_has(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer, server: NodeServer) -> None:
        await go_through(rig, peer, [*range(1, FILES + 1)])
        first = rig.published()
        asked = await go_through(rig, peer, [*range(1, FILES + 1)])
        assert rig.published() >= first
        assert asked > 0
        assert not worker.status()["evicted_files"]

    serve(tmp_path, script, LIMIT_BYTES // FILES * 2)


def test_files_that_go_meanwhile(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer, server: NodeServer) -> None:
        for ino in range(LEAST_OPENS + 1, LEAST_OPENS + 5):
            rig.origin.delete(rig.space.origins[ino].path)
        del rig.space.origins[LEAST_OPENS + 5]
        await go_through(rig, peer, [*range(1, LEAST_OPENS + 1)])
        await until(lambda: worker.status()["fills_in_flight"] == 0)
        left = [*range(LEAST_OPENS + 6, FILES + 1)]
        await go_through(rig, peer, left)
        await until(lambda: {rig.name(ino) for ino in left} <= rig.published())

    serve(tmp_path, script)


def test_a_namespace_that_has_to_ask(tmp_path: Path) -> None:
    """A node of a cluster does not know every file: its master does."""

    async def script(rig: Rig, worker: Cache, peer: Peer, server: NodeServer) -> None:
        known = rig.space.origins
        asked: list[int] = []

        async def locate(ino: int) -> Origin:
            await asyncio.sleep(0)
            asked.append(ino)
            return known[ino]

        rig.space.locate_nowait = lambda ino: None  # type: ignore[assignment,return-value]
        rig.space.locate = locate  # type: ignore[method-assign]
        for ino in range(1, LEAST_OPENS + 1):
            server.ahead.opened(known[ino])
        await until(lambda: len(rig.published()) == 2 * LEAST_OPENS)
        assert sorted(asked) == [*range(LEAST_OPENS + 1, 3 * LEAST_OPENS + 1)]

    serve(tmp_path, script)
