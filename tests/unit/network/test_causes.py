"""Causes of requests without an answer: no text of aiohttp or asyncio reaches people."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator

import aiohttp
import pytest

from cachefs.network.error_causes import cannot_listen, cause_of


async def _fail(url: str) -> str:
    async with aiohttp.ClientSession() as session:
        try:
            await session.post(url)  # a GET is asked again
        except (aiohttp.ClientError, OSError) as err:
            return cause_of(err)
    raise AssertionError("there was an answer")


def _hang_up(sock: socket.socket) -> None:
    sock.recv(1 << 16)


def _speak_no_tls(sock: socket.socket) -> None:
    sock.recv(1 << 16)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a process that serves one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            accepted, _ = listener.accept()
            with accepted:
                serve(accepted)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert asyncio.run(_fail(f"http://127.0.0.1:{port}")) == "Connection refused"


@pytest.mark.parametrize(
    ("scheme", "serve", "cause"),
    [
        ("http", _hang_up, "the connection was closed before the reply"),
        ("https", _speak_no_tls, "WRONG_VERSION_NUMBER"),
    ],
)
def test_one_listens_and_gives_no_answer(
    scheme: str, serve: Callable[[socket.socket], None], cause: str
) -> None:
    with serving(serve) as address:
        found = asyncio.run(_fail(f"{scheme}://{address}"))
    assert cause in found
    assert address not in found


@pytest.mark.parametrize(
    ("err", "cause"),
    [
        (OSError("Multiple exceptions: [Errno 111] ('::1', 1)"), "none of its addresses accepts"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (aiohttp.ClientPayloadError(), "ClientPayloadError"),
    ],
)
def test_other_faults(err: OSError | aiohttp.ClientError, cause: str) -> None:
    assert cause_of(err).startswith(cause)


def test_an_address_that_cannot_be_used() -> None:
    text = "error while attempting to bind on address ('127.0.0.1', 1): in use"
    taken = cannot_listen("127.0.0.1:1", OSError(errno.EADDRINUSE, text))
    assert taken.one_line() == (
        "cannot listen on 127.0.0.1:1: Address already in use;"
        " end the process that listens there, or choose another --listen"
    )
    unknown = cannot_listen("nowhere:1", socket.gaierror(socket.EAI_NONAME, "Name not known"))
    assert unknown.one_line() == (
        "cannot listen on nowhere:1: Name not known; choose another --listen"
    )
