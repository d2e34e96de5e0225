"""Sending pages: one receiver that takes nothing holds up nobody else."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from cachefs.core import cluster as c
from cachefs.core.access import EVERYTHING
from cachefs.core.model import PAGE_BYTES
from worker.cache.peer_reads import Pages
from worker.cache.serving import CacheServing
from worker.peers import sending
from worker.peers.ownership_map import OwnershipMap
from worker.peers.sending import PagesResponse
from worker.peers.server import Handlers, PeerServer
from worker.runtime.threads import LoopCallbackQueue, Threads

PAGES = 8
DEADLINE_S = 30.0
THREADS = 2


class Sender:
    """A server that sends one file to everybody, by few threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = Threads("send", THREADS, LoopCallbackQueue(asyncio.get_running_loop()))
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        self.given_up = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> Sender:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await asyncio.to_thread(self._threads.close, DEADLINE_S)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        fd = os.open(self._path, os.O_RDONLY)
        pages = Pages(fd, 0, 0, PAGES * PAGE_BYTES, [0] * PAGES)
        response = PagesResponse(pages, self._threads, {})
        try:
            await response.send(request)
        except ConnectionError:
            self.given_up.set()
            raise
        return response

    def connect(self) -> socket.socket:
        """A receiver that has asked and takes nothing yet."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        sock.connect(("127.0.0.1", self.port))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return sock


def received(sock: socket.socket) -> bytes:
    with sock, sock.makefile("rb") as file:
        sock.settimeout(DEADLINE_S)
        return file.read().partition(b"\r\n\r\n")[2]


def test_receivers_that_are_stopped_hold_up_nobody_and_get_all_once_they_go_on(
    tmp_path: Path,
) -> None:
    data = os.urandom(PAGES * PAGE_BYTES)
    (tmp_path / "file").write_bytes(data)

    async def work() -> None:
        async with Sender(tmp_path / "file") as sender:
            stopped = [sender.connect() for _ in range(2 * THREADS)]
            for _ in range(THREADS):
                assert await asyncio.to_thread(received, sender.connect()) == data
            for sock in stopped:
                assert await asyncio.to_thread(received, sock) == data

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


@pytest.mark.parametrize("limit", ["SILENCE_S", "SEND_S"])
def test_a_receiver_that_never_goes_on_is_given_up(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGES * PAGE_BYTES))
    monkeypatch.setattr(sending, limit, 0.1)

    async def work() -> None:
        async with Sender(tmp_path / "file") as sender:
            with sender.connect():
                await sender.given_up.wait()

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


def test_a_receiver_that_goes_away_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGES * PAGE_BYTES))

    async def work() -> None:
        async with Sender(tmp_path / "file") as sender:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(5):
                sender.given_up.clear()
                with sender.connect():
                    pass
                await sender.given_up.wait()
            while len(os.listdir("/proc/self/fd")) > before:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))


@pytest.mark.parametrize("lacking", range(1, 5))
def test_no_descriptor_stays_open_where_none_are_left(
    lacking: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the file, then of its connection, and of both for the thread."""
    (tmp_path / "file").write_bytes(bytes(PAGES * PAGE_BYTES))
    dup, count = os.dup, 0

    def limited(fd: int) -> int:
        nonlocal count
        count += 1
        if count == lacking:
            raise OSError(errno.EMFILE, "too many open files")
        return dup(fd)

    async def work() -> None:
        async with Sender(tmp_path / "file") as sender:
            before = len(os.listdir("/proc/self/fd"))
            monkeypatch.setattr(os, "dup", limited)
            sock = sender.connect()
            assert len(await asyncio.to_thread(received, sock)) < PAGES * PAGE_BYTES
            assert count == lacking
            while len(os.listdir("/proc/self/fd")) > before:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), 60.0))


class OneFile:
    """A cache that has every page of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.asked = 0

    async def here(self, key: bytes, first: int, end: int, *, for_reader: bool = False) -> Pages:
        self.asked += 1
        fd = os.open(self._path, os.O_RDONLY)
        return Pages(fd, 0, 0, PAGES * PAGE_BYTES, [0] * PAGES)


def test_peers_that_go_away_are_no_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asked another, too, and got its answer from there, closes the connection."""
    (tmp_path / "file").write_bytes(bytes(PAGES * PAGE_BYTES))

    async def nothing(*_: object) -> Any:
        raise AssertionError

    async def work() -> None:
        cache = OneFile(tmp_path / "file")
        handlers = Handlers(drop=nothing, status=dict)
        server = PeerServer(
            cast(CacheServing, cache),
            OwnershipMap("me"),
            handlers,
            refresh=nothing,
            authorize=lambda header: EVERYTHING,
        )
        port = await server.start("127.0.0.1")
        question = (
            f"GET {c.DATA_PATH}/{'0' * 72}?first=0&end=8&have=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        try:
            for taken in (0, 0, 0, 1, 100_000):
                before = cache.asked
                with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
                    sock.sendall(question.encode())
                    if taken:
                        await asyncio.to_thread(sock.recv, taken, socket.MSG_WAITALL)
                while cache.asked == before or server.status()["in_flight"]:
                    await asyncio.sleep(0.001)
            assert server.status()["pages"] == 0
        finally:
            await server.stop()

    asyncio.run(asyncio.wait_for(work(), DEADLINE_S))
    assert not caplog.records
