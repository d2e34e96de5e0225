"""Sessions of the node socket against a scripted worker and namespace: every frame answered once,
handles and descriptors never left behind, the server ends when nobody needs it."""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import DeadlineExceeded, Interrupted, NotFound, Stale, Unreachable
from cachefs.core.model import Inode, Kind, NamespaceId, UfsSpec
from connectors.idle import register
from worker.cache.grants import TierView
from worker.server.server import NodeServer
from worker.stats.arrivals import LastPageTimes

NAMESPACE = NamespaceId(b"n" * 16)
LIMIT_S = 60.0


class FakeWorker:
    def __init__(self, directory: Path) -> None:
        self.pub_fds = [os.open(directory, os.O_RDONLY)]
        self.file = directory / "file"
        self.file.write_bytes(b"bytes of a file")
        self.released: list[int] = []
        self.used_names: list[str] = []
        self.gate = asyncio.Event()
        self.opening = asyncio.Event()
        self.cancelled = 0
        self.views = [TierView(0, self.pub_fds[0], True)]
        self.loading = SimpleNamespace(capacity=lambda: 0)
        self.send_tiers: Callable[[], None] = lambda: None
        self.arrivals = LastPageTimes()

    def subscribe_tiers(self, on_change: Callable[[], None]) -> None:
        self.send_tiers = on_change

    def tiers(self) -> list[TierView]:
        return self.views

    def origin_of(self, handle: int) -> None:
        """No handle waits for bytes."""

    async def open(
        self, namespace: NamespaceId, ino: int, *, past_tier: bool = False, nonce: int = 0
    ) -> Any:
        if ino == 404:
            raise Stale("gone", path="a/b")
        if ino == 1000:
            self.opening.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        fd = os.open(self.file, os.O_RDONLY)
        return SimpleNamespace(handle=ino * 10, size=15, complete=True, fd=fd, tier=1)

    def open_soon(self, namespace: NamespaceId, ino: int, ready: object, *, nonce: int = 0) -> None:
        """Every open takes a task."""

    def release(self, handle: int) -> None:
        self.released.append(handle)

    def used(self, names: list[str], hit_bytes: int) -> None:
        self.used_names += names

    def status(self) -> dict[str, Any]:
        return {"limit_bytes": 1}


class FakeService:
    namespace = NAMESPACE

    def __init__(self) -> None:
        self.queue: asyncio.Queue[m.Invalidate] = asyncio.Queue()

    def lookup_nowait(self, parent: int, name: bytes) -> m.Found | None:
        return m.Found(Inode(7, Kind.FILE), 5.0) if name == b"known" else None

    def locate_nowait(self, ino: int) -> None:
        """Nothing is known."""

    async def lookup(self, parent: int, name: bytes) -> m.Found:
        raise NotFound("no such key", path="x")

    async def events(self, after: int) -> AsyncIterator[m.Invalidate]:
        while True:
            yield await self.queue.get()


class FakeSources:
    def __init__(self) -> None:
        self.known = FakeService()

    async def attach(self, body: m.Attach) -> m.Attached:
        return m.Attached(NAMESPACE, Inode(1, Kind.DIRECTORY))

    def service(self, namespace: NamespaceId) -> Any:
        if namespace != NAMESPACE:
            raise NotFound("no such namespace here")
        return self.known

    def status(self) -> list[dict[str, Any]]:
        return [{"source": "s3://b"}]


class Peer:
    """A client of the test: one frame out, the next frame in."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(str(path))
        self.sock.settimeout(LIMIT_S)

    async def send(self, id: int, body: m.Message) -> None:
        await asyncio.to_thread(self.sock.send, m.encode(id, body))

    async def receive(self) -> tuple[int, Any, int | None]:
        def read() -> tuple[bytes, list[Any]]:
            data, ancillary, _, _ = self.sock.recvmsg(m.MAX_FRAME_BYTES, socket.CMSG_SPACE(4))
            return data, ancillary

        data, ancillary = await asyncio.to_thread(read)
        if not data:
            raise EOFError
        fds = array.array("i", b"".join(part for _, _, part in ancillary))
        frame = m.decode(data)
        return frame.id, frame.body, fds[0] if fds else None

    async def call(self, id: int, body: m.Message) -> Any:
        await self.send(id, body)
        answered, reply, fd = await self.receive()
        assert answered == id
        if fd is not None:
            os.close(fd)
        return reply


Script = Callable[[NodeServer, FakeWorker, FakeSources, Path], Awaitable[None]]


def serve(tmp_path: Path, script: Script, **options: Any) -> FakeWorker:
    async def run() -> FakeWorker:
        worker, sources = FakeWorker(tmp_path), FakeSources()
        server = NodeServer(worker, sources, **options)  # type: ignore[arg-type]
        server.listen(tmp_path / "s.sock")
        try:
            await asyncio.wait_for(script(server, worker, sources, tmp_path / "s.sock"), LIMIT_S)
        finally:
            server.close_listener()
            await server.drain(0)
            for fd in worker.pub_fds:
                os.close(fd)
        return worker

    return asyncio.run(run())


async def fuse(path: Path, *, many_tiers: bool = False) -> Peer:
    peer = Peer(path)
    hello = m.Hello("fuse", os.getpid(), mountpoint="/m", many_tiers=many_tiers)
    welcome = await peer.call(1, hello)
    assert isinstance(welcome, m.Welcome)
    assert welcome.published_dir
    assert isinstance(await peer.call(2, m.Attach(UfsSpec("s3://b"))), m.Attached)
    return peer


def test_a_server_has_idle_connections_closed(tmp_path: Path) -> None:
    """Also while nobody asks it for anything."""

    class Kept:
        def __init__(self) -> None:
            self.closed = asyncio.Event()

        def close_idle(self) -> None:
            self.closed.set()

    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        pool = Kept()
        register(pool)
        await pool.closed.wait()

    serve(tmp_path, script)


def test_metadata_at_once_and_later(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        found = await peer.call(3, m.Lookup(NAMESPACE, 1, b"known"))
        assert found == m.Found(Inode(7, Kind.FILE), 5.0)
        failure = await peer.call(4, m.Lookup(NAMESPACE, 1, b"other"))
        assert isinstance(m.error_of(failure), NotFound)
        failure = await peer.call(5, m.Lookup(NamespaceId(b"?" * 16), 1, b"known"))
        assert isinstance(m.error_of(failure), NotFound)
        peer.sock.close()

    serve(tmp_path, script)


@pytest.mark.parametrize("count", [1, 3])
def test_a_frame_that_loses_descriptors_ends_its_connection_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """One that the server has no room for; more than a frame may have. Nothing stays open."""

    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        other, peer = await fuse(path), await fuse(path)
        fds = array.array("i", count * [peer.sock.fileno()])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3 if count == 1 else limits[0], limits[1]))
        try:  # the rights are counted when they are received, in this process
            data = m.encode(9, m.Lookup(NAMESPACE, 1, b"known"))
            peer.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            with pytest.raises(EOFError):
                await peer.receive()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(os.listdir("/proc/self/fd")) == before - 1, "the server's end of it"
        found = await other.call(3, m.Lookup(NAMESPACE, 1, b"known"))
        assert found == m.Found(Inode(7, Kind.FILE), 5.0)
        peer.sock.close()
        other.sock.close()

    serve(tmp_path, script)
    cause = "as many files open as its limit allows" if count == 1 else "too many descriptors"
    assert [cause in record.getMessage() for record in caplog.records] == [True]


def test_an_open_carries_a_descriptor_and_ends_with_its_session(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        await peer.send(3, m.Open(NAMESPACE, 5))
        _, opened, fd = await peer.receive()
        assert opened == m.Opened(50, 15, True, True, tier=1)
        assert fd is not None
        assert os.pread(fd, 100, 0) == b"bytes of a file"
        os.close(fd)
        await peer.call(4, m.Open(NAMESPACE, 6))
        await peer.send(5, m.Release(50))
        failure = await peer.call(6, m.Ensure(50, 0, 1))
        assert failure.code == "protocol"
        assert worker.released == [50]
        peer.sock.close()
        await server._stop.wait()  # nobody needs it any more
        assert worker.released == [50, 60]

    serve(tmp_path, script)


def test_a_request_is_answered_at_the_deadline(tmp_path: Path) -> None:
    """Once, with an error; the session goes on."""

    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        failure = await peer.call(3, m.Open(NAMESPACE, 1000))
        assert isinstance(m.error_of(failure), DeadlineExceeded)
        assert worker.cancelled == 1
        assert isinstance(await peer.call(4, m.Lookup(NAMESPACE, 1, b"known")), m.Found)
        peer.sock.close()

    serve(tmp_path, script, deadline_s=0.1)


def test_a_request_that_is_cancelled_before_its_task_starts_is_answered(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        (session,) = server._sessions
        session._frame(m.encode(3, m.GetAttr(NAMESPACE, 7)), None)
        session._frame(m.encode(0, m.Cancel(3)), None)
        id, answer, _ = await peer.receive()
        assert id == 3
        assert isinstance(m.error_of(answer), Interrupted)
        assert session._patience.about(3) is None
        peer.sock.close()

    serve(tmp_path, script)


def test_a_complete_file_is_released_at_once_for_who_wants_it(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        opened = await peer.call(3, m.Open(NAMESPACE, 5, complete_needs_no_release=True))
        assert opened == m.Opened(0, 15, True, True, tier=1)
        assert worker.released == [50]
        peer.sock.close()

    assert serve(tmp_path, script).released == [50]


def test_a_tier_that_changes_during_an_attach_is_reported_after_it(tmp_path: Path) -> None:
    """A client that connects again drops the events before the reply."""

    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        async def attached(namespace: NamespaceId) -> None:
            worker.views = [TierView(0, worker.pub_fds[0], False, losses=1)]
            worker.send_tiers()

        views: Any = SimpleNamespace(attached=attached, left=lambda *_, **__: None)
        server.views = views
        peer = Peer(path)
        await peer.call(1, m.Hello("fuse", 1, many_tiers=True))
        assert isinstance(await peer.call(2, m.Attach(UfsSpec("s3://b"))), m.Attached)
        assert await hear(peer, 1) == [m.TierState(False, 0, doubtful=True)]
        peer.sock.close()

    serve(tmp_path, script)


def test_clients_hear_of_every_tier_that_comes_goes_or_hangs(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        first = worker.pub_fds[0]
        (tmp_path / "second").mkdir()
        second = os.open(tmp_path / "second", os.O_RDONLY)
        worker.pub_fds.append(second)
        worker.views = [TierView(0, first, False), TierView(1, second, True, 7)]
        peer, old = Peer(path), Peer(path)
        for each, many in ((peer, True), (old, False)):
            assert (await each.call(1, m.Hello("fuse", 1, many_tiers=many))).published_dir
            assert isinstance(await each.call(2, m.Attach(UfsSpec("s3://b"))), m.Attached)
        told = await hear(peer, 2)
        assert told == [m.TierState(False, 0), m.PublishedDirectory(1, True)]
        assert await hear(old, 1) == [m.TierState(False, 0)], "it knows of one tier"
        worker.views = [TierView(0, first, True), TierView(1, -1, False, 7)]
        worker.send_tiers()
        worker.send_tiers()  # nothing new
        worker.views = [TierView(0, first, True), TierView(1, second, True, 8)]
        worker.send_tiers()
        assert await hear(old, 1) == [m.TierState(True, 0)]
        assert await hear(peer, 5) == [
            m.TierState(True, 0),
            m.PublishedDirectory(1, False),
            m.TierState(False, 1),
            m.PublishedDirectory(1, True),
            m.TierState(True, 1),
        ]
        second_tier = worker.views[1]
        worker.views = [TierView(0, first, False, losses=1), second_tier]
        worker.send_tiers()
        worker.views = [TierView(0, first, True, losses=1), second_tier]
        worker.send_tiers()
        doubted = [m.TierState(False, 0, doubtful=True), m.TierState(True, 0)]
        assert await hear(old, 2) == doubted, "bytes that it wrote are lost"
        assert await hear(peer, 2) == doubted
        successor = Peer(path)
        await successor.call(1, m.Hello("fuse", 2))
        assert isinstance(await successor.call(2, m.Attach(UfsSpec("s3://b"))), m.Attached)
        again = [m.TierState(True, 0, doubtful=True)]
        assert await hear(successor, 1) == again, "its mount may be older than the loss"
        successor.sock.close()
        worker.views = [TierView(0, -1, False), *worker.views[1:]]
        late = Peer(path)
        assert not (await late.call(1, m.Hello("fuse", 1, many_tiers=True))).published_dir
        for each in (peer, old, late):
            each.sock.close()

    serve(tmp_path, script)


def test_a_tier_that_found_no_descriptor_left_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is watched on."""
    may_open = True

    def duplicate(fd: int) -> int:
        if not may_open:
            raise OSError(errno.EMFILE, "Too many open files")
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)

    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        nonlocal may_open
        peer = await fuse(path, many_tiers=True)
        may_open = False
        worker.views = [TierView(0, worker.pub_fds[0], True, number=1)]
        worker.send_tiers()
        may_open = True
        assert await hear(peer, 1) == [m.PublishedDirectory(0, True)]
        peer.sock.close()

    monkeypatch.setattr(os, "dup", duplicate)
    serve(tmp_path, script)


def test_a_name_that_a_successor_took_stays(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        successor = NodeServer(worker, FakeSources())  # type: ignore[arg-type]
        successor.listen(path)
        server.close_listener()
        (await fuse(path)).sock.close()
        await successor.drain(0)
        assert not path.exists()

    serve(tmp_path, script)


async def hear(peer: Peer, count: int) -> list[Any]:
    """The next events; a descriptor comes with those that say so."""
    heard = []
    for _ in range(count):
        id, body, fd = await peer.receive()
        assert id == 0
        assert (fd is not None) == (isinstance(body, m.PublishedDirectory) and body.has_descriptor)
        if fd is not None:
            os.close(fd)
        heard.append(body)
    return heard


def test_cancel_answers_the_caller_and_nobody_else(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        await peer.send(3, m.Open(NAMESPACE, 1000))
        await worker.opening.wait()
        failure = None
        await peer.send(9, m.Cancel(3))
        id, failure, _ = await peer.receive()
        assert (id, failure.code) == (3, "interrupted")
        assert worker.cancelled == 1
        worker.gate.set()
        assert (await peer.call(4, m.Open(NAMESPACE, 1000))).handle == 10000
        peer.sock.close()

    serve(tmp_path, script)


def test_an_open_that_ends_after_its_session_is_released(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        await peer.send(3, m.Open(NAMESPACE, 1000))
        await worker.opening.wait()
        peer.sock.close()
        await server._stop.wait()
        assert worker.cancelled == 1

    before = len(os.listdir("/proc/self/fd"))
    serve(tmp_path, script)
    assert len(os.listdir("/proc/self/fd")) <= before  # what earlier tests left may go meanwhile


def test_errors_keep_their_type(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        error = m.error_of(await peer.call(3, m.Open(NAMESPACE, 404)))
        assert isinstance(error, Stale)
        assert error.path == "a/b"
        peer.sock.close()

    serve(tmp_path, script)


def test_events_reach_the_client(tmp_path: Path) -> None:
    async def script(
        server: NodeServer, worker: FakeWorker, sources: FakeSources, path: Path
    ) -> None:
        peer = await fuse(path)
        sources.known.queue.put_nowait(m.Invalidate(NAMESPACE, 3, [(1, b"a")]))
        assert (await peer.receive())[:2] == (0, m.Invalidate(NAMESPACE, 3, [(1, b"a")]))
        await peer.send(7, m.Detach("test"))
        bodies = {type((await peer.receive())[1]) for _ in range(2)}
        assert bodies == {m.Detach, m.Done}
        await server.serve()
        peer.sock.close()

    serve(tmp_path, script)


def test_a_session_whose_events_fail_is_closed(tmp_path: Path) -> None:
    """The client would keep outdated names: it connects again, and drops them."""

    async def script(
        server: NodeServer, worker: FakeWorker, sources: FakeSources, path: Path
    ) -> None:
        async def fail(event: m.Invalidate) -> None:
            raise RuntimeError("a bug")

        peer = await fuse(path)
        server.views = SimpleNamespace(heed=fail, left=lambda *_, **__: None)  # type: ignore[assignment]
        sources.known.queue.put_nowait(m.Invalidate(NAMESPACE, 3, [(1, b"a")]))
        with pytest.raises(EOFError):
            await peer.receive()
        peer.sock.close()

    serve(tmp_path, script)


def test_a_mount_that_comes_when_the_server_ends_is_sent_away(tmp_path: Path) -> None:
    """It was in the backlog, or connected, when the last mount's end was noticed."""

    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        late = Peer(path)
        cli = Peer(path)
        assert isinstance(await cli.call(1, m.Hello("cli", 1)), m.Welcome)
        server.request_stop("no mount left")
        failure = await late.call(1, m.Hello("fuse", 1, mountpoint="/m"))
        assert isinstance(m.error_of(failure), Unreachable)
        assert server.status()["mounts"] == []
        late.sock.close()
        cli.sock.close()

    serve(tmp_path, script)


def test_no_descriptor_for_a_session_does_not_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        accept, full = socket.socket.accept, asyncio.Event()

        def no_descriptor(sock: socket.socket) -> Any:
            full.set()
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(socket.socket, "accept", no_descriptor)
        peer = Peer(path)
        await full.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(caplog.records) == 1
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert isinstance(await peer.call(1, m.Hello("fuse", 1)), m.Welcome)
        peer.sock.close()

    serve(tmp_path, script)


@pytest.mark.parametrize("data", [b"", b"junk", b"\x93\x01\x02"])
def test_junk_ends_the_session_only(tmp_path: Path, data: bytes) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        good = await fuse(path)
        bad = Peer(path)
        await asyncio.to_thread(bad.sock.send, data)
        with pytest.raises(EOFError):
            await bad.receive()
        assert isinstance(await good.call(3, m.Lookup(NAMESPACE, 1, b"known")), m.Found)
        good.sock.close()
        bad.sock.close()

    serve(tmp_path, script)


def test_nothing_before_hello(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = Peer(path)
        failure = await peer.call(1, m.Open(NAMESPACE, 5))
        assert failure.code == "protocol"
        far = await peer.call(2, m.Hello("fuse", 1, protocol=m.PROTOCOL + 2))
        assert far.code == "protocol"
        peer.sock.close()

    serve(tmp_path, script)


def test_status_names_every_process(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        mount = await fuse(path)
        cli = Peer(path)
        await cli.call(1, m.Hello("cli", 1))
        tree = (await cli.call(2, m.Status())).status
        assert {row["role"] for row in tree["processes"]} == {"client", "server"}
        assert tree["mounts"] == [{"mountpoint": "/m", "pid": os.getpid(), "sources": ["s3://b"]}]
        mount.sock.close()
        cli.sock.close()

    serve(tmp_path, script)


def test_a_peer_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    async def script(server: NodeServer, worker: FakeWorker, sources: Any, path: Path) -> None:
        peer = await fuse(path)
        session = next(iter(server._sessions))
        for _ in range(20_000):
            session.send_event(m.Invalidate(NAMESPACE, 1, [(1, b"x" * 200)]))
        assert server._sessions == set()
        peer.sock.close()

    serve(tmp_path, script)
