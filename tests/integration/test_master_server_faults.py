"""A master over HTTP when things go wrong: callers that break off or stall, a store that cannot
write, many workers at once, TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import NoSpace, ProtocolError
from cachefs.core.model import NamespaceId
from master.server import http as edge
from master.server.app import MasterServer
from master.server.streams import EventPolls
from tests.services.http_master import Cluster, cluster, run, worker

HEAD = (
    b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
    b"Content-Length: 100\r\n\r\n"
)


async def connected(it: Cluster) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", it.port)


def test_callers_that_break_off_leave_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            for part in (b"", b"POST", HEAD, HEAD + b"x" * 50, HEAD + b"x" * 100):
                _, writer = await connected(it)
                writer.write(part)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            seq = it.master.position
            _, poll = await connected(it)
            body = c.encode(c.GetEvents(it.namespace, seq, 20.0))
            poll.write(HEAD.replace(b"100", b"%d" % len(body)) + body)
            while not it.server.polls:
                await asyncio.sleep(0.005)
            poll.transport.abort()
            await it.ask(c.Greeting(), c.Greeted)
            assert it.server.in_flight == 0

    with caplog.at_level(logging.WARNING):
        run(work())
    assert not caplog.records


def test_a_call_that_comes_too_slowly_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "BODY_S", 0.02)

    async def work() -> None:
        async with cluster(tmp_path) as it:
            reader, writer = await connected(it)
            writer.write(HEAD + b"x")
            assert b"400" in await reader.readline()
            headers = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = headers.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            answer = c.decode_answer(await reader.readexactly(int(length)))
            assert isinstance(answer, m.Failure)
            assert answer.code == ProtocolError.code
            writer.close()
            await writer.wait_closed()

    run(work())


class FullDisk:
    """A store whose writes fail while `full`."""

    def __init__(self, store: Any) -> None:
        self._write: Callable[..., Future[Any]] = store.write
        self.full = True
        self.refused = 0

    def write(self, function: Callable[[Any], Any]) -> Future[Any]:
        if not self.full:
            return self._write(function)
        self.refused += 1
        failed: Future[Any] = Future()
        failed.set_exception(NoSpace("no room for the metadata store"))
        return failed


def test_a_store_that_cannot_write_holds_changes_back_and_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("master.server.members.TICK_S", 0.01)

    async def work() -> None:
        async with cluster(tmp_path) as it:
            view = (await it.ask(worker("a"), c.Registered)).view
            disk = FullDisk(it.master.store)
            monkeypatch.setattr(it.master.store, "write", disk.write)
            with pytest.raises(NoSpace):
                await it.ask(worker("b", 20001), c.Registered)
            assert (await it.ask(c.GetView(), c.ViewReply)).view == view
            beat = c.Heartbeat("a", view.epoch, view.epoch, version=view.version)
            with pytest.raises(NoSpace):  # there is a new view, which it must not hear of yet
                await it.ask(beat, c.Beaten)
            refused = disk.refused
            while disk.refused < refused + 3:  # the master goes on trying by itself
                await asyncio.sleep(0.005)
            disk.full = False
            later = (await it.ask(c.GetView(view.epoch, 20.0), c.ViewReply)).view
            assert [member.id for member in later.members] == ["a", "b"]
            beaten = await it.ask(beat, c.Beaten)
            assert beaten.view == later

    with caplog.at_level(logging.WARNING):
        run(work())
    assert len([r for r in caplog.records if "cannot be recorded" in r.getMessage()]) == 1


def test_many_workers_at_once_are_one_sequence_of_epochs(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            joined = await asyncio.gather(
                *(it.ask(worker(f"w{n:02d}", 20000 + n), c.Registered) for n in range(40))
            )
            by_epoch: dict[int, set[tuple[str, ...]]] = {}
            for one in joined:
                ids = tuple(member.id for member in one.view.members)
                by_epoch.setdefault(one.view.epoch, set()).add(ids)
            assert all(len(placements) == 1 for placements in by_epoch.values())
            assert max(by_epoch) == 40
            await it.restart()
            view = (await it.ask(c.GetView(), c.ViewReply)).view
            assert (view.epoch, len(view.members)) == (40, 40)

    run(work())


class Trickle:
    """A stream whose events come one in each turn of the loop."""

    def __init__(self, count: int) -> None:
        self.position = 0
        self._count = count
        self.begin = asyncio.Event()

    async def events(self, after: int) -> AsyncIterator[m.Invalidate]:
        await self.begin.wait()
        while after < self._count:
            after += 1
            yield m.Invalidate(NamespaceId(b"n" * 16), after)
            await asyncio.sleep(0)
        await asyncio.Event().wait()


def test_one_waiter_hears_at_once_and_many_share_an_answer() -> None:
    async def work() -> None:
        stream = Trickle(5)
        polls = EventPolls(stream)
        waits = [asyncio.ensure_future(polls.poll(0, 20.0)) for _ in range(500)]
        while polls.waiting < 500:
            await asyncio.sleep(0)
        stream.begin.set()
        heard = await asyncio.gather(*waits)
        assert {id(events) for events in heard} == {id(heard[0])}, "one answer for all"
        assert (await polls.poll(4, 20.0)).seq == 5
        await polls.close()

    run(work())


def certificate(directory: Path) -> Path:
    """A key and its own certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test master")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "master.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_with_a_certificate_the_port_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        path = certificate(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        trust = ssl.create_default_context(cafile=str(path))
        async with cluster(tmp_path) as it, aiohttp.ClientSession() as session:
            server = MasterServer(
                it.master,
                listen=("127.0.0.1", 0),
                open_connector=it.open_connector,
                ssl_context=context,
            )
            address = f"127.0.0.1:{await server.start()}"
            data = c.encode(c.Greeting())
            url = f"https://{address}{c.CALL_PATH}"
            kind = {"Content-Type": "application/msgpack"}
            async with session.post(url, data=data, ssl=trust, headers=kind) as reply:
                greeted = c.decode_answer(await reply.read())
                assert isinstance(greeted, c.Greeted)
            with pytest.raises(aiohttp.ClientError):
                await session.post(url.replace("https", "http"), data=data)
            await server.stop()

    run(work())


def test_a_port_that_was_given_back_can_be_had_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            port = it.port
            await it.server.stop()
            again = MasterServer(
                it.master, listen=("127.0.0.1", port), open_connector=it.open_connector
            )
            assert await again.start() == port
            with socket.create_connection(("127.0.0.1", port)):
                await again.stop()

    run(work())
