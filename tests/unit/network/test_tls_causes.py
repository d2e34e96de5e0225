"""Why TLS with a server of the cluster failed: the fault of its certificate, and a remedy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core.errors import Unreachable
from cachefs.core.specs import Security
from cachefs.network.error_causes import cause_of, remedy_of_handshake
from tests.services.authority import Authority

FAULTS = [
    ("expired", "certificate has expired", "install a new certificate"),
    ("elsewhere", "IP address mismatch", "subject alternative name"),
    ("stranger", "unable to get local issuer certificate", "check --tls-ca"),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def issued(authority: Authority, fault: str, folder: Path) -> Path:
    if fault == "stranger":
        return Authority(folder, "stranger").issue("server")
    hosts = ("localhost",) if fault == "elsewhere" else ("127.0.0.1",)
    return authority.issue(fault, hosts=hosts, expired=fault == "expired")


@contextlib.contextmanager
def serving(certificate: Path) -> Iterator[str]:
    """The URL of a server that shakes hands once."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            accepted, _ = listener.accept()
            with accepted, contextlib.suppress(OSError):
                context.wrap_socket(accepted, server_side=True).close()

        thread = threading.Thread(target=run)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(("fault", "cause", "remedy"), FAULTS)
def test_a_command_names_what_is_wrong_with_a_certificate(
    authority: Authority, tmp_path: Path, fault: str, cause: str, remedy: str
) -> None:
    with serving(issued(authority, fault, tmp_path)) as url:
        client = HttpClient(url, Security(tls_ca=str(authority.bundle)))
        with client, pytest.raises(Unreachable) as caught:
            client.call(c.Greeting(), c.Greeted)
    assert cause in caught.value.cause
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(("fault", "cause", "remedy"), FAULTS)
def test_a_worker_names_it_too(
    authority: Authority, tmp_path: Path, fault: str, cause: str, remedy: str
) -> None:
    context = ssl.create_default_context(cafile=str(authority.bundle))

    async def post(url: str) -> aiohttp.ClientSSLError:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientSSLError) as caught:
                await session.post(url, ssl=context)
            return caught.value

    with serving(issued(authority, fault, tmp_path)) as url:
        err = asyncio.run(post(url))
    assert cause in cause_of(err)
    assert remedy in remedy_of_handshake(err)
