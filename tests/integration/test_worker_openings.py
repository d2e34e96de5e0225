"""Cold small files opened over the node socket, where no task is made for them: as right, as
shared, as cancellable as opens that have one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, DeadlineExceeded, Interrupted, Stale
from cachefs.core.model import SMALL_FILE_BYTES
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, read, run, until
from tests.unit.worker_server.test_sessions import FakeSources, Peer, fuse
from worker.cache.cache import Cache
from worker.cache.opening import Opening
from worker.server.server import NodeServer

SMALL = 110 << 10
Script = Callable[[Rig, Cache, Peer], Awaitable[None]]


def serve(tmp_path: Path, limit_bytes: int, script: Script) -> Rig:
    rig = Rig(tmp_path, limit_bytes)

    async def alone(worker: Cache, peer: Peer, server: NodeServer) -> None:
        await script(rig, worker, peer)

    serve_rig(rig, tmp_path, FakeSources(), alone)
    return rig


def serve_rig(
    rig: Rig,
    tmp_path: Path,
    sources: FakeSources,
    script: Callable[[Cache, Peer, NodeServer], Awaitable[None]],
    **options: Any,
) -> None:
    """A node's server (`options` are its own) with one client; nothing is left at the end."""

    async def serving() -> None:
        async with rig.worker() as worker:
            server = NodeServer(worker, sources, **options)
            server.listen(tmp_path / "s.sock")
            peer = await fuse(tmp_path / "s.sock")
            try:
                await script(worker, peer, server)
            finally:
                peer.sock.close()
                server.close_listener()
                await server.drain(0)
            await until(lambda: len(only(worker)._catalog) == 0)
            only(worker).contents.ledger.check_invariants()
            assert worker.status()["fills_in_flight"] == worker.status()["reserved_bytes"] == 0

    run(serving())


async def opened(peer: Peer, ino: int) -> tuple[m.Opened, bytes]:
    await peer.send(ino, m.Open(NAMESPACE, ino, complete_needs_no_release=True))
    return await answer(peer, ino)


async def answer(peer: Peer, id: int) -> tuple[m.Opened, bytes]:
    answered, body, fd = await peer.receive()
    assert (answered, type(body)) == (id, m.Opened)
    if fd is None:
        return body, b""
    try:
        return body, os.pread(fd, body.size, 0)
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [1, SMALL, MIB, MIB + 1, 5 * MIB, SMALL_FILE_BYTES])
def test_a_cold_small_file(tmp_path: Path, size: int) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, size)
        reply, data = await opened(peer, 1)
        assert reply == m.Opened(0, size, True, True)
        assert data == rig.data[1]
        await until(lambda: rig.published() == {rig.name(1)})
        assert await read(worker, 1) == rig.data[1]

    assert serve(tmp_path, 100 * MIB, script).origin.script.body_bytes == size


def test_openings_of_one_file_share_its_fill(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, 3 * MIB)
        rig.origin.script.block("read")
        for id in range(10, 18):
            await peer.send(id, m.Open(NAMESPACE, 1, complete_needs_no_release=True))
        other = asyncio.ensure_future(read(worker, 1))
        await asyncio.to_thread(rig.origin.script.wait_blocked, "read")
        rig.origin.script.unblock()
        for id in range(10, 18):
            assert (await answer(peer, id))[1] == rig.data[1]
        assert await other == rig.data[1]

    assert serve(tmp_path, 100 * MIB, script).origin.script.body_bytes == 3 * MIB


def test_an_opening_fails_at_the_deadline_and_its_fill_goes_on(tmp_path: Path) -> None:
    async def script(worker: Cache, peer: Peer, server: NodeServer) -> None:
        rig.put(1, SMALL)
        rig.origin.script.block("read")
        for id in (7, 8):
            await peer.send(id, m.Open(NAMESPACE, 1))
        for _ in range(2):
            _, failure, _ = await peer.receive()
            assert isinstance(m.error_of(failure), DeadlineExceeded)
        rig.origin.script.unblock()
        await until(lambda: rig.published() == {rig.name(1)})
        assert (await opened(peer, 1))[1] == rig.data[1]

    rig = Rig(tmp_path, 100 * MIB)
    serve_rig(rig, tmp_path, FakeSources(), script, deadline_s=0.1)


def test_a_cancelled_opening_is_answered_and_its_fill_goes_on(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, SMALL)
        rig.origin.script.block("read")
        await peer.send(7, m.Open(NAMESPACE, 1))
        await asyncio.to_thread(rig.origin.script.wait_blocked, "read")
        await peer.send(0, m.Cancel(7))
        answered, failure, _ = await peer.receive()
        assert answered == 7
        assert isinstance(m.error_of(failure), Interrupted)
        rig.origin.script.unblock()
        await until(lambda: rig.published() == {rig.name(1)})
        assert (await opened(peer, 1))[1] == rig.data[1]

    assert serve(tmp_path, 100 * MIB, script).origin.script.body_bytes == SMALL


def test_a_session_that_ends_leaves_nothing_held(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, SMALL)
        rig.origin.script.block("read")
        await peer.send(7, m.Open(NAMESPACE, 1))
        await asyncio.to_thread(rig.origin.script.wait_blocked, "read")
        peer.sock.close()
        entry = only(worker)._catalog.live(rig.content(1).key)
        assert entry is not None
        await until(lambda: entry.users == 0)
        rig.origin.script.unblock()

    serve(tmp_path, 100 * MIB, script)


def test_errors_of_the_origin_reach_the_opener_once(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, SMALL)
        rig.put(2, SMALL)
        rig.origin.script.fail("read", None, AccessDenied("no"))
        failure = await peer.call(1, m.Open(NAMESPACE, 1))
        assert isinstance(m.error_of(failure), AccessDenied)
        assert rig.origin.script.calls["read"] == 1
        rig.origin.put(b"dir/2", b"another version")
        failure = await peer.call(2, m.Open(NAMESPACE, 2))
        assert isinstance(m.error_of(failure), Stale)
        assert rig.space.changed == [2]
        failure = await peer.call(3, m.Open(NAMESPACE, 404))
        assert isinstance(m.error_of(failure), Stale)
        assert (await opened(peer, 1))[1] == rig.data[1]

    serve(tmp_path, 100 * MIB, script)


@pytest.mark.parametrize("size", [SMALL, 0, SMALL_FILE_BYTES + 1])
def test_an_ino_with_another_nonce_is_stale_however_it_is_opened(tmp_path: Path, size: int) -> None:
    """Cached or not; a client that says no nonce is served as before."""

    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, size)
        nonce = rig.space.origins[1].content.nonce
        for _ in ("not cached", "cached"):
            failure = await peer.call(1, m.Open(NAMESPACE, 1, True, nonce=nonce + 1))
            assert isinstance(m.error_of(failure), Stale)
            failure = await peer.call(1, m.Open(NAMESPACE, 1, True, True, nonce=nonce + 1))
            assert isinstance(m.error_of(failure), Stale)
            for said in (nonce, 0):
                await peer.send(2, m.Open(NAMESPACE, 1, True, nonce=said))
                assert (await answer(peer, 2))[0].size == size
            await read(worker, 1)

    serve(tmp_path, 100 * MIB, script)


def test_a_cut_body_is_fetched_again(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, SMALL)
        rig.put(2, 3 * MIB)
        rig.origin.script.cut(b"dir/1", 1000)
        assert (await opened(peer, 1))[1] == rig.data[1]
        rig.origin.script.cut(b"dir/2", 2 * MIB + 1)
        before = rig.origin.script.body_bytes
        assert (await opened(peer, 2))[1] == rig.data[2]
        assert rig.origin.script.body_bytes - before == 3 * MIB + 1, "whole pages came once"

    serve(tmp_path, 100 * MIB, script)


def test_what_the_cache_refuses_is_opened_all_the_same(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        for ino in range(1, 31):
            rig.put(ino, MIB)
        for ino in range(1, 31):
            reply, data = await opened(peer, ino)
            assert reply.complete
            assert data == rig.data[ino]
        assert worker.status()["refused"] > 0
        assert rig.disk_bytes() <= 24 * MIB

    serve(tmp_path, 24 * MIB, script)


def test_cached_empty_and_large_files_take_the_other_way(tmp_path: Path) -> None:
    async def script(rig: Rig, worker: Cache, peer: Peer) -> None:
        rig.put(1, SMALL)
        rig.put(2, b"")
        rig.put(3, SMALL_FILE_BYTES + 1)
        assert await read(worker, 1) == rig.data[1]
        await until(lambda: rig.published() == {rig.name(1)})
        await until(lambda: worker.status()["tiers"][0]["live_files"] == 0)

        def never(_: Opening) -> None:
            raise AssertionError

        assert [worker.open_soon(NAMESPACE, ino, never) for ino in (1, 2, 3)] == [None] * 3
        assert (await opened(peer, 1))[1] == rig.data[1]
        assert (await opened(peer, 2))[0].size == 0

    serve(tmp_path, 100 * MIB, script)
