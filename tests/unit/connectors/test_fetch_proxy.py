"""Requests through a proxy: a tunnel is kept and used again, its refusals are the proxy's and not
the store's, the proxy sees no signature, and no variable of the environment changes the way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pycurl
import pytest
from msgspec import structs

from cachefs.core.errors import Unreachable
from connectors.fetch import exchange
from connectors.fetch.connection_pool import ConnectionPool
from connectors.fetch.request import HttpRequest, NewConnections
from tests.services.many_thread import ManyThread
from tests.unit.connectors.certificates import make_certificate
from tests.unit.connectors.raw_http import LIMIT_S, Came, RawServer, answer, content, get

SIGNED = {
    pycurl.AWS_SIGV4: "aws:amz:us-east-1:s3",
    pycurl.USERNAME: b"ACCESSKEY",
    pycurl.PASSWORD: b"SECRETKEY",
}


class Tunnels:
    """A proxy that connects to one server, whatever a CONNECT names. `heads`: the requests that the
    proxy read. `reply`: its answer; a connection is made after a success."""

    def __init__(self, url: str) -> None:
        self.heads: list[bytes] = []
        self.reply = b'HTTP/1.1 200 Connection established\r\nETag: "proxy"\r\n\r\n'
        self._port = int(url.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._run(self._serve, self._listener.accept()[0])

    def _run(self, target: Callable[..., None], *args: socket.socket) -> None:
        self._sockets += args
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = client.recv(4096)
            if not piece:
                return
            head += piece
        self.heads.append(head)
        client.sendall(self.reply)
        if b" 200 " not in self.reply:
            client.close()
            return
        server = socket.create_connection(("127.0.0.1", self._port))
        self._run(_pump, client, server)
        _pump(server, client)

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[RawServer]:
    server = RawServer(make_certificate(tmp_path / "origin.pem"))
    yield server
    server.close()


@pytest.fixture
def proxy(origin: RawServer) -> Iterator[Tunnels]:
    made = Tunnels(origin.url)
    yield made
    made.close()


@pytest.fixture
def source() -> Iterator[ConnectionPool]:
    made = ConnectionPool()
    yield made
    made.close()


def by(proxy: str, request: HttpRequest) -> HttpRequest:
    options = {**request.options, **SIGNED, pycurl.PROXY: proxy}
    return structs.replace(request, options=options)


def test_a_kept_tunnel_is_used_again(
    origin: RawServer, proxy: Tunnels, source: ConnectionPool
) -> None:
    """Only the first request on it has an answer of the proxy before that of the server."""
    for number in range(4):
        target = f"/{number}/100000"
        body = source.get(by(proxy.url, get(origin, target)), "path")
        assert body.head.headers["etag"] == f'"{target}"'
        assert b"".join(bytes(chunk) for chunk in body) == content(target, 100_000)
    assert len(proxy.heads) == 1
    assert origin.connections == 1
    assert b"authorization" not in proxy.heads[0].lower()
    assert b"ACCESSKEY" not in proxy.heads[0]


def test_small_files_use_a_kept_tunnel_again(origin: RawServer, proxy: Tunnels) -> None:
    reads, lock = ManyThread(), threading.Semaphore(0)
    told: list[tuple[bytes | None, str]] = []

    def taken(body: memoryview | None, came: int, code: str, made: NewConnections) -> None:
        told.append((None if body is None else bytes(body), code))
        lock.release()

    for number in range(4):
        assert reads.start(by(proxy.url, get(origin, f"/{number}/5000")), taken)
        assert lock.acquire(timeout=LIMIT_S)
    reads.close(LIMIT_S)
    assert told == [(content(f"/{number}/5000", 5000), "") for number in range(4)]
    assert len(proxy.heads) == 1


@pytest.mark.parametrize("status", [403, 404, 407, 412, 503])
def test_the_refusal_of_a_tunnel_says_nothing_of_the_object(
    origin: RawServer, proxy: Tunnels, source: ConnectionPool, status: int
) -> None:
    proxy.reply = f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode()
    with pytest.raises(Unreachable, match="the proxy") as caught:
        source.get(by(proxy.url, get(origin, "/f/100")), "path")
    assert "HTTPS_PROXY" in caught.value.remedy
    assert origin.requests == []


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_the_environment_does_not_change_the_way(
    source: ConnectionPool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The source has decided on its proxy by then, and listings go by that one."""
    monkeypatch.setenv(name, "127.0.0.0/8")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    plain, direct = RawServer(), RawServer()
    seen: list[str] = []

    def script(came: Came) -> bool:
        seen.append(came.target)
        came.sock.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
        return True

    plain.script = script
    try:
        source.get(by(plain.url, get(direct, "/f/10")), "path").close()
        assert seen == [f"{direct.url}/f/10"]
        body = source.get(by("", get(direct, "/f/10")), "path")
        assert b"".join(bytes(chunk) for chunk in body) == content("/f/10", 10)
        assert direct.requests == ["/f/10"]
    finally:
        plain.close()
        direct.close()


def test_a_header_that_looks_like_a_status_line_is_none(source: ConnectionPool) -> None:
    raw = RawServer()

    def script(came: Came) -> bool:
        head = b"HTTP/1.1 500 No\r\nHTTP/1.1 206 Partial: Content\r\nContent-Length: 2\r\n\r\nno"
        came.sock.sendall(head)
        return False

    raw.script = script
    try:
        body = source.get(get(raw, "/f/2"), "path")
        assert (body.head.status, body.refusal) == (500, b"no")
        body.close()
    finally:
        raw.close()


def test_a_file_of_certificates_that_changes_is_read_again(
    origin: RawServer, source: ConnectionPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the handle that has read it before. The test does not wait `CERTIFICATES_S`."""
    at_once = {exchange._CA_CACHE_TIMEOUT: 0}
    options = tuple((option, at_once.get(option, value)) for option, value in exchange._ALWAYS)
    monkeypatch.setattr(exchange, "_ALWAYS", options)
    origin.script = lambda came: answer(came) is None  # closes
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(make_certificate(tmp_path / "other.pem").read_bytes())
    request = get(origin, "/f/100")
    request = structs.replace(request, options={**request.options, pycurl.CAINFO: str(trusted)})
    with pytest.raises(Unreachable, match="not trusted"):
        source.get(request, "path")
    assert origin.certificate is not None
    trusted.write_bytes(origin.certificate.read_bytes())
    assert sum(len(chunk) for chunk in source.get(request, "path")) == 100
