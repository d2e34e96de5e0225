"""Who gets in where: tokens against every call and page of a master and of a worker, callers that
send what cannot be or take their time, certificates of somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import math
import re
import resource
import socket
import stat
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, BadConfig, NotFound, ProtocolError
from cachefs.core.model import ContentId, NamespaceId, UfsSpec
from cachefs.network import unauthenticated
from master.server import app as master_app
from master.server import http as master_http
from tests.integration.conftest import Bucket
from tests.integration.dataset import digests, expected, images
from tests.services.cluster import Cluster, ClusterFailed
from tests.services.files import files_below
from tests.services.http_master import cluster as master_over_http
from tests.services.http_master import run
from tests.services.processes import wait_until
from worker.cache.serving import CacheServing
from worker.peers import server as worker_server
from worker.peers.ownership_map import OwnershipMap
from worker.peers.server import Handlers, PeerServer

READ_S = 30.0
ALL = "may-do-everything-there-is"
READING = "may-only-read-everything"
TEAM = "may-do-all-below-the-path"
TEAM_READING = "may-only-read-below-path"
TOKENS = f"""
{ALL}
{READING} read-only
{TEAM} path=/data/train
{TEAM_READING} path=/data read-only
"""
CONTENT = ContentId(NamespaceId(bytes(16)), 7, 0, 1)


# ---- a master ------------------------------------------------------------------------------------


def test_what_cannot_be_is_a_protocol_error_and_no_failure_of_ours(tmp_path: Path) -> None:
    async def work() -> None:
        async with master_over_http(tmp_path) as it:
            for ino in (-1, -(2**62)):
                for call in (
                    m.GetAttr(it.namespace, ino),
                    m.Lookup(it.namespace, ino, b"x"),
                    m.ListDir(it.namespace, ino),
                    c.Locate(it.namespace, [ino]),
                    c.Batch([m.GetAttr(it.namespace, ino)]),
                    c.Walk(it.namespace, ino),
                    c.ReportChanged(it.namespace, ino),
                    c.ListNext(it.namespace, ino),
                ):
                    with pytest.raises(ProtocolError):
                        await it.ask(call, m.Message)
            with pytest.raises(BadConfig):
                await it.ask(c.AddUfs(b"/x", UfsSpec("s3://bucket/x"), math.nan), m.Message)

    run(work())


@pytest.mark.parametrize(
    "registered",
    [
        c.Register("w", "file:///etc", 1.0),
        c.Register("w", "http://", 1.0),
        c.Register("w" * 1000, "http://127.0.0.1:1", 1.0),
        c.Register("w", "http://127.0.0.1:1", 1.0, host="h" * 1000),
        c.Register("w", "http://127.0.0.1:1", math.nan),
        c.Register("w", "http://127.0.0.1:1", -1.0),
    ],
)
def test_a_worker_that_cannot_be_reached_is_none(registered: c.Register, tmp_path: Path) -> None:
    async def work() -> None:
        async with master_over_http(tmp_path) as it:
            with pytest.raises(BadConfig):
                await it.ask(registered, m.Message)
            assert not (await it.ask(c.GetView(), c.ViewReply)).view.members

    run(work())


def test_no_beat_carries_the_epoch_out_of_bounds(tmp_path: Path) -> None:
    """A view of it would have no place in a message any more."""

    async def work() -> None:
        async with master_over_http(tmp_path) as it:
            await it.ask(c.Register("w", "http://127.0.0.1:1", 1.0), c.Registered)
            for epoch in (2**63, 2**64 - 1):
                await it.ask(c.Heartbeat("w", epoch), c.Beaten)
            assert (await it.ask(c.GetView(), c.ViewReply)).view.epoch == 1

    run(work())


def test_sources_are_the_business_of_those_who_see_everything(tmp_path: Path) -> None:
    """Who adds a source reads with the credentials of the cluster, wherever it is put."""

    async def work() -> None:
        async with master_over_http(tmp_path, TOKENS) as it:
            await it.add(b"/data", {b"train/f": b"1"}, ALL)
            for token in (TEAM, TEAM_READING, READING):
                for call in (
                    c.AddUfs(b"/data/train/mine", UfsSpec("s3://bucket/data")),
                    c.RemoveUfs(b"/data/train"),
                    c.RemoveUfs(b"/data"),
                ):
                    with pytest.raises(AccessDenied):
                        await it.ask(call, m.Message, token)
            assert (await it.page("/metrics", TEAM))[0] == 403, "they name all sources"
            assert (await it.page("/metrics", READING))[0] == 200

    run(work())


# ---- a worker ------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, bucket: Bucket) -> Iterator[Cluster]:
    token_file = tmp_path / "tokens"
    token_file.touch(0o600)
    token_file.write_text(TOKENS)
    environment = {**bucket.server.credentials(), "CACHEFS_TOKEN_FILE": str(token_file)}
    with Cluster(tmp_path / "cluster", environment) as made:
        made.start(1, size="64MiB")
        yield made


class Caller:
    """Plain HTTP with one server, with or without a token."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        self._address = parts.hostname or "", parts.port or 0
        self._headers = {"Content-Type": "application/msgpack"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def page(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=20)
        try:
            connection.request(method, path, body, self._headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def call(self, call: m.Message) -> m.Message:
        answer = c.decode_answer(self.page(c.CALL_PATH, "POST", c.encode(call))[1])
        if isinstance(answer, m.Failure):
            raise m.error_of(answer)
        return answer


def test_tokens_at_a_workers_door(cluster: Cluster, bucket: Bucket) -> None:
    files = images(2)
    bucket.fill(files)
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    mount = cluster.mount(0, "/data")
    assert digests(mount) == expected(files)
    url = cluster.workers[0].url
    for file in cluster.root.glob("node0/tier/files/*/*"):
        path = f"{c.DATA_PATH}/{file.name}?first=0&end=1&have=1"
        assert Caller(url, ALL).page(path)[0] == 200
        for token in ("", "some-other-token-of-theirs", READING, TEAM, TEAM_READING):
            status, body = Caller(url, token).page(path)
            assert status == 403
            assert len(body) < 1000, "no byte for who is no worker"
    offer = c.Offer("w", "http://127.0.0.1:1", 1, [])
    workers_only = (c.Doubt(CONTENT.key, [0]), c.Drop([CONTENT.key]), offer)
    of_fsck = (c.Have([CONTENT.key]), c.Verify(CONTENT.key, 0, 1))
    for token in ("", "some-other-token-of-theirs", READING, TEAM, TEAM_READING):
        for call in workers_only if token == READING else (*workers_only, *of_fsck):
            with pytest.raises(AccessDenied):
                Caller(url, token).call(call)
    (data, *_) = [ContentId.parse(one.name) for one in cluster.root.glob("node0/tier/files/*/*")]
    assert Caller(url, READING).call(c.Have([data.key])) == c.Had([b"\x01"])
    assert Caller(url, READING).call(c.Verify(data.key, 0, 8)) == c.Verified(1, [])
    with pytest.raises(NotFound):
        Caller(url, READING).call(c.Verify(CONTENT.key, 0, 1))
    with pytest.raises(ProtocolError):
        Caller(url, READING).call(c.Verify(data.key, 0, c.MAX_DATA_PAGES + 1))
    assert Caller(url, READING).call(c.WorkerStatus())
    for token in ("", TEAM, TEAM_READING):
        with pytest.raises(AccessDenied):
            Caller(url, token).call(c.WorkerStatus())
        assert Caller(url, token).page("/metrics")[0] == 403
    for asked in (cluster.master.url, url):
        assert Caller(asked).page("/metrics") == (403, b"a token is needed; give a --token-file\n")
    assert Caller(url).page("/healthz") == (200, b"ok\n")
    cluster.workers[0].umount(mount)


def test_what_commands_show_with_limited_tokens(cluster: Cluster, bucket: Bucket) -> None:
    """With a token for reading, `top`, `jobs`, `fsck`, `location` and `sync --dry-run` work; with
    one of a path, `location` and `jobs` do there. Neither may do more."""
    bucket.fill({f"train/{name}": data for name, data in images(2).items()})
    cluster.add_ufs(bucket.url, "/data", *bucket.options)
    worker, train = cluster.workers[0], cluster.path("/data/train")
    worker.run("load", "--wait", train)
    worker.environment["CACHEFS_MASTER"] = cluster.master.url
    with_token(cluster, READING)
    top = worker.json("top", "-n", "1", "--interval", "200ms")
    assert [one["state"] for one in top["nodes"]] == ["serving"]
    (job,) = worker.json("jobs")
    show = ("jobs", "show", str(job["job"]))
    assert worker.json(*show)["paths"] == ["/data/train"]
    checked = worker.json("fsck", train)
    assert checked["verified_pages"] == 2, checked
    assert [one["cached"][0]["pages"] for one in worker.json("location", train)] == [1, 1]
    assert "nothing was changed" in worker.run("sync", "--dry-run", "-R", train)
    stop = ("jobs", "stop", str(job["job"]))
    for command in (("sync", train), ("free", train), ("load", train), stop):
        with pytest.raises(ClusterFailed, match="for reading only"):
            worker.run(*command)
    with_token(cluster, TEAM_READING)
    (row, _) = worker.json("location", train)
    assert (row["owner"], row["address"]) == (row["cached"][0]["worker"], "")
    assert len(worker.json("jobs")) == 1
    for command in (("location", cluster.path("/")), ("fsck", train)):
        with pytest.raises(ClusterFailed, match="limited to /data"):
            worker.run(*command)


def test_tokens_are_read_again_when_their_file_changes(cluster: Cluster, tmp_path: Path) -> None:
    """By a master and a worker that run: a new token is taken, one that is withdrawn is not, and
    the worker stays a member."""
    file, new = tmp_path / "tokens", "the-token-from-now-on"
    master, worker = cluster.master.url, cluster.workers[0].url
    file.write_text(f"{ALL}\n{new}\n")
    everywhere = [Caller(url, new) for url in (master, worker)]
    wait_until(lambda: all(one.page("/metrics")[0] == 200 for one in everywhere), "the new token")
    file.write_text(f"{new}\n")
    before = [Caller(url, ALL) for url in (master, worker)]
    wait_until(
        lambda: all(one.page("/metrics")[0] in (401, 403) for one in before),
        "the end of the old one",
    )
    table = Caller(master, new).call(c.ListWorkers())
    assert isinstance(table, c.WorkerTable)
    assert [row.state for row in table.rows] == ["serving"]
    since = Caller(master, new)

    def was_heard() -> bool:
        table = since.call(c.ListWorkers())
        return isinstance(table, c.WorkerTable) and table.rows[0].seen_s < c.HEARTBEAT_S

    wait_until(was_heard, "a heartbeat with the new token")


def with_token(cluster: Cluster, token: str) -> None:
    """Commands of the first worker's machine present this token from here on."""
    file = cluster.root / f"only-{token}"
    file.touch(0o600)
    file.write_text(token)
    cluster.workers[0].environment["CACHEFS_TOKEN_FILE"] = str(file)


def test_doors_that_stay_shut(cluster: Cluster) -> None:
    """Sockets and pointers lie in directories of mode 0700, and nobody listens beyond loopback who
    asks for no token."""
    found = [
        path for path in files_below(cluster.root) if path.is_socket() or path.name == "server.json"
    ]
    assert found
    for path in found:
        assert any(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in path.parents)
    worker = cluster.workers[0]
    del worker.environment["CACHEFS_TOKEN_FILE"]
    for what in (["master", "--listen", "0.0.0.0:0"], [*worker.command, "--listen", ":0"]):
        what.append("--no-token")
        with pytest.raises(ClusterFailed, match="without a token"):
            worker.run(*what, "--background")


# ---- callers that take their time, or send what is no HTTP ---------------------------------------


def test_what_strangers_send_is_not_logged(tmp_path: Path) -> None:
    """It might be somebody's token; and it might be much."""
    secret = b"a-token-that-nobody-may-read"
    with Cluster(tmp_path / "cluster", {}) as made:
        made.start(1, size="64MiB")
        for machine in (made.master, made.workers[0]):
            url = urlsplit(machine.url)
            for line in (b"GET /healthz HTTP/1.1\n", b"\x16\x03\x01", b"X" * 20_000 + b"\r\n"):
                with socket.create_connection((url.hostname, url.port), READ_S) as sock:
                    sock.sendall(line + b"Authorization: Bearer " + secret + b"\r\n\r\n")
                    with contextlib.suppress(ConnectionResetError):
                        while sock.recv(65536):
                            pass
            assert Caller(machine.url).page("/healthz")[0] == 200
            said = "".join(machine.logs().values())
            assert secret.decode() not in said
            assert "Traceback" not in said


@contextlib.asynccontextmanager
async def a_master(directory: Path) -> AsyncIterator[int]:
    async with master_over_http(directory) as it:
        yield it.port


@contextlib.asynccontextmanager
async def a_worker(directory: Path) -> AsyncIterator[int]:
    """Without a cache: it is asked for nothing of it."""

    async def nothing(*_: object) -> Any:
        raise AssertionError

    handlers = Handlers(drop=nothing, status=dict)
    it = PeerServer(cast(CacheServing, None), OwnershipMap("me"), handlers, refresh=nothing)
    port = await it.start("127.0.0.1")
    try:
        yield port
    finally:
        await it.stop()


AT_ONCE_S = 9.0  # strangers end after 10 s by themselves
Server = Callable[[Path], contextlib.AbstractAsyncContextManager[int]]
SERVERS = pytest.mark.parametrize("server", [a_master, a_worker])


async def first_line(port: int, request: bytes, address: str = "127.0.0.1") -> bytes:
    """Of the answer; b"" where the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        writer.write(request)
        return await reader.readline()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
CALL = (
    b"POST /v1/call HTTP/1.1\r\nHost: localhost:1\r\nContent-Type: application/msgpack\r\n"
    b"Content-Length: 100\r\n\r\nabc"
)


@SERVERS
def test_idle_connections_of_strangers_lock_nobody_out(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the descriptors may be connections. One address has at most half of these without a
    token: the oldest ends when there are more, and whoever asks at once is answered."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))

    async def work() -> None:
        async with server(tmp_path) as port:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
            for address in ("127.0.0.1", "127.0.0.2"):
                began = time.monotonic()
                for _ in range(20):
                    assert b" 200 " in await first_line(port, HEALTH, address)
                assert time.monotonic() - began < AT_ONCE_S
            oldest, newest = idle[0][0], idle[-1][0]
            assert not await oldest.read()
            assert not newest.at_eof()
            for _, writer in idle:
                writer.close()

    run(work())


@SERVERS
def test_strangers_are_closed_soon(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unauthenticated, "UNAUTHENTICATED_TIMEOUT_S", 0.05)

    async def work() -> None:
        async with server(tmp_path) as port:
            for part in (b"", b"GET", CALL[:40]):
                assert await first_line(port, part) == b""

    run(work())


def test_known_callers_are_not_counted_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three quarters of the connections, all of one address, stay open after a call with a token,
    beside a crowd without one."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    body = c.encode(c.Greeting())
    head = (
        f"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ALL}\r\n"
        f"Content-Type: application/msgpack\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer.splitlines()[0]
        length = re.search(rb"Content-Length: (\d+)", answer)
        assert length is not None
        await reader.readexactly(int(length[1]))

    async def work() -> None:
        async with master_over_http(tmp_path, TOKENS) as it:
            known = []
            for _ in range(24):
                known.append(await asyncio.open_connection("127.0.0.1", it.port))
                await asked(*known[-1])
            crowd = [await asyncio.open_connection("127.0.0.1", it.port) for _ in range(30)]
            for one in known:
                await asked(*one)
            for _, stranger in crowd:
                stranger.close()
            for _, writer in known:
                writer.close()

    run(work())


@SERVERS
def test_only_names_of_this_machine_and_msgpack(server: Server, tmp_path: Path) -> None:
    """What a web page can send by itself, after its name was resolved to this machine or without,
    is refused on every path."""
    body = c.encode(c.Greeting())

    async def status(port: int, line: str, host: str, kind: str) -> int:
        head = f"{line} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
        size = len(body) if line.startswith("POST") else 0
        request = f"{head}Content-Length: {size}\r\n\r\n".encode() + body[:size]
        return int((await first_line(port, request)).split()[1])

    async def work() -> None:
        async with server(tmp_path) as port:
            data = f"GET {c.DATA_PATH}/{CONTENT.name}?first=0&end=1&have=1"
            for line in ("POST /v1/call", data, "GET /metrics", "GET /healthz", "GET /else"):
                for host in ("evil.example", f"evil.example:{port}", "10.0.0.1", ""):
                    assert await status(port, line, host, "application/msgpack") == 421, line
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                assert await status(port, "POST /v1/call", f"localhost:{port}", kind) == 415
            for host in ("localhost", f"127.0.0.1:{port}", f"[::1]:{port}"):
                assert await status(port, "POST /v1/call", host, "application/msgpack") != 415
                assert await status(port, "GET /healthz", host, "text/plain") == 200

    run(work())


@SERVERS
def test_no_body_is_decompressed(server: Server, tmp_path: Path) -> None:
    """A stranger's body of 260 KB would be 256 MB, and half a second of the event loop."""
    call = c.Greeting() if server is a_master else c.WorkerStatus()

    async def status(port: int, coding: str, body: bytes) -> int:
        head = "POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
        head += f"Content-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n\r\n"
        return int((await first_line(port, head.encode() + body)).split()[1])

    async def work() -> None:
        async with server(tmp_path) as port:
            assert await status(port, "identity", c.encode(call)) == 200
            assert await status(port, "gzip", gzip.compress(c.encode(call))) == 400
            assert await status(port, "deflate", zlib.compress(c.encode(call))) == 400

    run(work())


@SERVERS
def test_a_call_that_does_not_come_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (master_http, worker_server):
        monkeypatch.setattr(module, "BODY_S", 0.05)

    async def work() -> None:
        async with server(tmp_path) as port:
            assert b" 400 " in await first_line(port, CALL)

    run(work())


@SERVERS
def test_connections_that_say_nothing_are_closed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (master_app, worker_server):
        monkeypatch.setattr(module, "IDLE_S", 0.05)

    async def work() -> None:
        async with server(tmp_path) as port:
            for part in (b"", b"GET", CALL[:40]):
                assert await first_line(port, part) == b""

    run(work())


def test_a_worker_answers_no_other_methods(tmp_path: Path) -> None:
    """A body behind an answer to HEAD would be taken for the next answer."""

    async def work() -> None:
        async with a_worker(tmp_path) as port:
            for method in (b"HEAD", b"PUT", b"DELETE"):
                request = method + f" {c.DATA_PATH}/{CONTENT.name}?first=0&end=1&have=1".encode()
                said = await first_line(port, request + b" HTTP/1.1\r\nHost: [::1]\r\n\r\n")
                assert b" 404 " in said

    run(work())


def test_blocks_that_cannot_be_are_a_protocol_error(tmp_path: Path) -> None:
    offers = [(CONTENT.key, -1), (CONTENT.key, 2**32), (CONTENT.key, 2**62), (b"no key", 0)]

    async def work() -> None:
        async with a_worker(tmp_path) as port:
            caller = Caller(f"http://127.0.0.1:{port}")
            for block in offers:
                with pytest.raises(ProtocolError):
                    await asyncio.to_thread(caller.call, c.Offer("w", "http://x:1", 1, [block]))

    run(work())
