"""To whom a process presents its token: at which address of a name, and judged when."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core.access import HEADER, header_of
from cachefs.core.errors import AccessDenied, CacheFSError, Unreachable
from cachefs.core.specs import Security
from cachefs.launcher.peer_calls import PeerCalls
from cachefs.network import checked_connect, socket_owners
from cachefs.network.socket_owners import ForeignListener
from worker.membership.master_client import MasterClient
from worker.peers.connections import Connections

WAIT_S = 10.0
SHOWN = "a-token-of-this-machine"


def foreign(peer: Any, local: Any) -> None:
    """As for a process that took the address between the first look and the connection."""
    if local is not None:
        raise ForeignListener(1, "a process of another user listens")


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(SHOWN)
    return str(path)


@pytest.fixture
def beside() -> Iterator[tuple[socket.socket, int]]:
    """A listener at [::1], and a port of it at which nobody listens on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        with socket.create_server(("::1", port), family=socket.AF_INET6) as other:
            other.settimeout(WAIT_S)
            free.close()
            yield other, port


def test_localhost_is_one_address(
    beside: tuple[socket.socket, int], token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may listen at [::1] beside a master at 127.0.0.1, or where one was."""
    other, port = beside
    real = socket.getaddrinfo

    def both(host: Any, *more: Any, **options: Any) -> Any:
        named = host in ("localhost", "LOCALHOST")
        hosts = ["::1", "127.0.0.1"] if named else [host]
        return [one for host in hosts for one in real(host, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    for name in ("localhost", "LOCALHOST"):
        with pytest.raises(ConnectionRefusedError):
            Connections(WAIT_S).take(f"http://{name}:{port}")
    for own in (True, False):
        with (
            HttpClient(f"http://localhost:{port}", Security(token_file, own_token=own)) as client,
            pytest.raises(Unreachable),
        ):
            client.call(c.Greeting(), c.Greeted)
    asyncio.run(asked_of_both(f"http://localhost:{port}", checked_connect.accept_any_listener))
    other.settimeout(0)
    with pytest.raises(BlockingIOError):
        other.accept()


async def asked_of_both(url: str, judge: checked_connect.ListenerCheck) -> None:
    """A worker's calls of its master and of its peers, which fail."""
    peers = PeerCalls({HEADER: header_of(SHOWN)}, None, judge)
    master = MasterClient(url, token={HEADER: header_of(SHOWN)}, presents_to=judge)
    try:
        with pytest.raises(CacheFSError):
            await peers.ask(url, c.Have([]))
        with pytest.raises(CacheFSError):
            await master.ask(c.Greeting(), c.Greeted, reach_s=0)
    finally:
        await peers.close()
        await master.close()


@contextlib.asynccontextmanager
async def hearing(heard: bytearray) -> AsyncIterator[str]:
    """The URL of a server that keeps what it is sent."""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


def test_a_connection_is_judged_before_the_first_byte() -> None:
    heard = bytearray()

    async def work() -> None:
        async with hearing(heard) as url:
            await asked_of_both(url, foreign)
            with pytest.raises(ForeignListener):
                await asyncio.to_thread(Connections(WAIT_S, presents_to=foreign).take, url)
            assert not heard
            await asked_of_both(url, checked_connect.accept_any_listener)
            assert heard, "the server hears"

    asyncio.run(work())


def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as good:
        port = good.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)):
            names = [
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"127.0.0.{n}", port)) for n in (2, 1)
            ]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: names)

            def judge(peer: Any, local: Any) -> None:
                if peer[0] == "127.0.0.2":
                    raise ForeignListener(1, "a process of another user listens")

            with checked_connect.connect("name", port, WAIT_S, judge) as made:
                assert made.getpeername()[0] == "127.0.0.1"
            good.close()
            with pytest.raises(ForeignListener):
                checked_connect.connect("name", port, WAIT_S, judge)


def test_a_command_says_that_the_kernel_does_not_tell(
    token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError

    monkeypatch.setattr(socket_owners, "_query", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with (
            HttpClient(url, Security(token_file, own_token=True)) as client,
            pytest.raises(AccessDenied, match=r"reports no owner .* --token-file"),
        ):
            client.call(c.Greeting(), c.Greeted)
