"""Bodies that a thread reads through libcurl, over plain HTTP and TLS: only right bytes,
connections that are kept, and an end of every wait."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pycurl
import pytest
from msgspec import structs

from cachefs.core.errors import BadBody, CacheFSError, OriginError, Unreachable
from connectors.fetch import connection_pool, exchange
from connectors.fetch.connection import CHUNK_BYTES
from connectors.fetch.connection_pool import ConnectionPool
from connectors.fetch.request import HttpRequest
from tests.unit.connectors.certificates import make_certificate
from tests.unit.connectors.raw_http import LIMIT_S, Came, RawServer, answer, content, get, reply

LARGE = (5 << 20) + 77
IN_FLIGHT_BYTES = 16 << 20  # what sockets hold that a client reads no more
SEED = random.SystemRandom().getrandbits(32)
LEFT_OPEN = """
import sys
import pycurl
from connectors.fetch.connection_pool import ConnectionPool
from connectors.fetch.request import HttpRequest

source = ConnectionPool()
for _ in range(2):
    list(source.get(HttpRequest(sys.argv[1], (), 10, {pycurl.PROXY: ""}), "path"))
print("read")
"""


def read(source: ConnectionPool, request: HttpRequest) -> tuple[bytes, CacheFSError | None]:
    """What came of a right reply, and the error that ended it."""
    got = bytearray()
    try:
        body = source.get(request, "path")
        assert body.head.status == 206, body.head
        for chunk in body:
            got += chunk
    except CacheFSError as error:
        return bytes(got), error
    return bytes(got), None


# ---- what goes well ----


@pytest.mark.parametrize("size", [1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, LARGE])
def test_a_body_comes_in_pages(raw: RawServer, source: ConnectionPool, size: int) -> None:
    body = source.get(get(raw, f"/f/{size}"), "path")
    chunks = [bytes(chunk) for chunk in body]
    assert b"".join(chunks) == content(f"/f/{size}", size)
    assert [len(chunk) for chunk in chunks[:-1]] == [CHUNK_BYTES] * (len(chunks) - 1)


def test_a_kept_connection_is_used_again(raw: RawServer, source: ConnectionPool) -> None:
    for number in range(5):
        target = f"/{number}/100000"
        assert read(source, get(raw, target)) == (content(target, 100_000), None)
    assert raw.connections == 1


def test_one_that_was_kept_for_long_is_not(
    raw: RawServer, source: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "KEPT_S", 0.0)
    for number in range(3):
        assert read(source, get(raw, f"/{number}/100"))[1] is None
    assert raw.connections == 3


@pytest.mark.parametrize("how", ["after it answered", "as it is asked"])
def test_a_kept_connection_that_the_server_closed_is_replaced(
    raw: RawServer, source: ConnectionPool, how: str
) -> None:
    def script(came: Came) -> bool:
        if came.number == 1:
            return False
        answer(came)
        return how != "after it answered"

    raw.script = script
    for number in range(3):
        assert read(source, get(raw, f"/{number}/100")) == (content(f"/{number}/100", 100), None)


def test_one_that_breaks_within_its_answer_is_not(raw: RawServer, source: ConnectionPool) -> None:
    def script(came: Came) -> bool:
        came.sock.sendall(reply(came.target)[: -50 if came.number else None])
        return came.number == 0

    raw.script = script
    assert read(source, get(raw, "/a/100"))[1] is None
    got, error = read(source, get(raw, "/b/100"))
    assert content("/b/100", 100).startswith(got)
    assert isinstance(error, BadBody)
    assert len(raw.requests) == 2


def test_a_content_encoding_is_left_as_it_is(raw: RawServer, source: ConnectionPool) -> None:
    """The object was stored so, and its size and checksum are those of the stored bytes."""

    def script(came: Came) -> bool:
        came.sock.sendall(reply(came.target, "Content-Encoding: gzip"))
        return True

    raw.script = script
    assert read(source, get(raw, "/f/1000")) == (content("/f/1000", 1000), None)


def test_what_a_reader_does_not_take_the_server_keeps(
    raw: RawServer, source: ConnectionPool
) -> None:
    sent = []

    def script(came: Came) -> bool:
        data = reply(came.target)
        for start in range(0, len(data), 1 << 20):
            came.sock.sendall(data[start : start + (1 << 20)])
            sent.append(start)
        return True

    raw.script = script
    size = 64 << 20
    body = source.get(get(raw, f"/f/{size}"), "path")
    chunks = iter(body)
    first = bytes(next(chunks))
    threading.Event().wait(0.3)  # it sends as much as it can
    assert len(sent) << 20 < IN_FLIGHT_BYTES
    assert first + b"".join(bytes(chunk) for chunk in chunks) == content(f"/f/{size}", size)


def test_no_body_comes_to_another_request(raw: RawServer, source: ConnectionPool) -> None:
    """Threads begin and give up bodies, on lanes that they share."""
    print(f"seed {SEED}")
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = random.Random(SEED + number)
        for turn in range(12):
            size = rng.choice([1, 70_000, CHUNK_BYTES, 3 * CHUNK_BYTES])
            target = f"/{number}-{turn}/{size}"
            expected, body = content(target, size), source.get(get(raw, target), "path")
            most = rng.choice([0, 1, 100])
            at = 0
            for _, chunk in zip(range(most), body, strict=False):
                if bytes(chunk) != expected[at : at + len(chunk)]:
                    wrong.append(target)
                at += len(chunk)
            body.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


# ---- what does not ----


@pytest.mark.parametrize("at", [0, 10, 60, 120, 200, 10_000])
def test_a_reply_that_is_cut(raw: RawServer, source: ConnectionPool, at: int) -> None:
    def script(came: Came) -> bool:
        came.sock.sendall(reply(came.target)[:at])
        return False

    raw.script = script
    got, error = read(source, get(raw, "/f/20000"))
    assert content("/f/20000", 20_000).startswith(got)
    assert isinstance(error, BadBody | Unreachable)
    assert error.path == "path"


@pytest.mark.parametrize("after", [0, 5, 5000])
def test_a_reply_that_stands_still(
    raw: RawServer, source: ConnectionPool, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(connection_pool, "SILENCE_LIMIT_S", 0.2)
    monkeypatch.setattr(connection_pool, "CHUNK_LIMIT_S", 0.2)
    done = threading.Event()

    def script(came: Came) -> bool:
        came.sock.sendall(reply(came.target)[:after])
        done.wait(LIMIT_S)
        return False

    raw.script = script
    got, error = read(source, get(raw, "/f/20000"))
    done.set()
    assert content("/f/20000", 20_000).startswith(got)
    assert isinstance(error, Unreachable)
    assert "in time" in error.cause


def test_a_close_ends_a_read_in_another_thread(raw: RawServer, source: ConnectionPool) -> None:
    go_on = threading.Event()

    def script(came: Came) -> bool:
        came.sock.sendall(reply(came.target)[: (1 << 20) + 5000])
        go_on.wait(LIMIT_S)
        return False

    raw.script = script
    body = source.get(get(raw, f"/f/{LARGE}"), "path")
    chunks = iter(body)
    assert bytes(next(chunks)) == content(f"/f/{LARGE}", LARGE)[: 1 << 20]
    rest: list[bytes] = []
    reader = threading.Thread(target=lambda: rest.extend(bytes(chunk) for chunk in chunks))
    reader.start()
    until = time.monotonic() + LIMIT_S
    while not body._lock.locked() and time.monotonic() < until:
        pass
    body.close()
    reader.join(LIMIT_S)
    go_on.set()
    assert not reader.is_alive()
    assert rest == []


@pytest.mark.parametrize("status", ["403 Forbidden", "500 Internal Server Error"])
def test_of_a_refusal_only_the_beginning_is_read(
    raw: RawServer, source: ConnectionPool, status: str
) -> None:
    """A body of 300 MB makes no process grow."""
    size, sent = 300_000_000, [0]

    def script(came: Came) -> bool:
        came.sock.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode())
        while sent[0] < size:
            came.sock.sendall(b"x" * 100_000)
            sent[0] += 100_000
        return True

    raw.script = script
    body = source.get(get(raw, "/f/1000"), "path")
    assert body.head.status == int(status[:3])
    assert body.refusal == b"x" * exchange.ERROR_BYTES
    body.close()
    raw.wait(lambda: raw.has_ended(1), "the connection is closed")
    assert sent[0] < IN_FLIGHT_BYTES


@pytest.mark.parametrize("extra", ["", "Content-Length: 0x64", "Content-Range: bytes 7-9/10"])
def test_a_head_of_many_headers(raw: RawServer, source: ConnectionPool, extra: str) -> None:
    """It is bounded; one that says a thing twice says nothing."""

    def script(came: Came) -> bool:
        more = extra or "X-Y: " + "y" * (1 << 20)
        came.sock.sendall(reply(came.target, more))
        return False

    raw.script = script
    try:
        body = source.get(get(raw, "/f/1000"), "path")
    except CacheFSError:
        return
    assert not body.head.is_success
    body.close()


@pytest.mark.parametrize("seed", range(40))
def test_a_head_of_any_bytes(source: ConnectionPool, seed: int) -> None:
    """Either all of the body comes, and it is right, or an error."""
    rng = random.Random(seed)
    raw = RawServer()

    def script(came: Came) -> bool:
        head, _, body = reply(came.target).partition(b"\r\n\r\n")
        data = bytearray(head + b"\r\n\r\n")
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        came.sock.sendall(bytes(data) + body)
        return False

    raw.script = script
    request = get(raw, "/f/5000")
    try:
        body = source.get(request, "path")
        got = b"".join(bytes(chunk) for chunk in body)
    except CacheFSError:
        pass
    else:
        if request.is_answer(body.head):
            assert got == content("/f/5000", 5000)
    finally:
        raw.close()


# ---- TLS ----


def failed(source: ConnectionPool, request: HttpRequest) -> CacheFSError:
    with pytest.raises(CacheFSError) as caught:
        source.get(request, "path")
    assert "\n" not in caught.value.one_line()
    return caught.value


@contextlib.contextmanager
def serving(certificate: Path) -> Iterator[RawServer]:
    server = RawServer(certificate)
    try:
        yield server
    finally:
        server.close()


def test_a_certificate_that_has_expired(source: ConnectionPool, tmp_path: Path) -> None:
    with serving(make_certificate(tmp_path / "c", ends_in_days=-1)) as server:
        error = failed(source, get(server, "/f/10"))
    assert isinstance(error, Unreachable)
    assert "has expired" in error.cause
    assert "renew" in error.remedy


def test_a_certificate_of_another_host(source: ConnectionPool, tmp_path: Path) -> None:
    with serving(make_certificate(tmp_path / "c", address="10.9.8.7")) as server:
        error = failed(source, get(server, "/f/10"))
    assert isinstance(error, Unreachable)
    assert "another host" in error.cause
    assert "--endpoint-url" in error.remedy


def test_a_certificate_that_nobody_trusts(source: ConnectionPool, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other")
    with serving(make_certificate(tmp_path / "c")) as server:
        request = get(server, "/f/10")
        error = failed(source, structs.replace(request, options={pycurl.CAINFO: str(other)}))
    assert isinstance(error, Unreachable)
    assert "not trusted" in error.cause
    assert "--ca-bundle" in error.remedy


def test_a_file_of_certificates_that_is_none(source: ConnectionPool, tmp_path: Path) -> None:
    with serving(make_certificate(tmp_path / "c")) as server:
        request = get(server, "/f/10")
        error = failed(
            source, structs.replace(request, options={pycurl.CAINFO: str(tmp_path / "none")})
        )
    assert isinstance(error, Unreachable)
    assert "--ca-bundle" in error.remedy


TLS_REFUSED = struct.pack("!BHHBB", 21, 0x0302, 2, 2, 70)  # fatal: protocol_version


@pytest.mark.parametrize(
    ("said", "cause", "remedy"),
    [
        (TLS_REFUSED, "TLS is too old", "TLS 1.2"),  # as one that knows TLS 1.1 alone
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak TLS", "http://"),
    ],
)
def test_a_port_that_speaks_something_else(
    source: ConnectionPool, said: bytes, cause: str, remedy: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(said)

        thread = threading.Thread(target=refuse)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/f"
        error = failed(source, HttpRequest(url, (), 10, {pycurl.PROXY: ""}))
        thread.join(LIMIT_S)
    assert isinstance(error, Unreachable)
    assert cause in error.cause
    assert remedy in error.remedy


def test_a_server_that_changes_its_certificate(source: ConnectionPool, tmp_path: Path) -> None:
    """The one that the client trusts comes to an end, and another follows: new connections see it,
    and it is trusted where the file names both."""
    first, second = make_certificate(tmp_path / "1"), make_certificate(tmp_path / "2")
    both = tmp_path / "both"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    with serving(first) as server:
        request = get(server, "/f/10")
        assert read(source, structs.replace(request, options={pycurl.CAINFO: str(both)}))[1] is None
        server._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server._tls.load_cert_chain(second)
        for sock in server._connections:
            sock.shutdown(socket.SHUT_RDWR)
        raw_request = structs.replace(request, options={pycurl.CAINFO: str(both)})
        assert read(source, raw_request)[1] is None
        assert "not trusted" in failed(ConnectionPool(), request).cause


def test_sessions_of_tls_are_of_one_source(tmp_path: Path) -> None:
    """New connections of a source resume them, those of another source do not."""
    resumed: list[bool] = []

    def script(came: Came) -> bool:
        assert isinstance(came.sock, ssl.SSLSocket)
        resumed.append(bool(came.sock.session_reused))
        answer(came)
        return False

    one, another = ConnectionPool(), ConnectionPool()
    with serving(make_certificate(tmp_path / "c")) as server:
        server.script = script
        for source in (one, one, another, another):
            assert read(source, get(server, "/f/10"))[1] is None
    assert resumed == [False, True, False, True]
    one.close()
    another.close()


def test_a_proxy_that_wants_credentials(source: ConnectionPool) -> None:
    """For plain HTTP it answers the request itself; tunnels are in `test_fetch_proxy`."""
    proxy = RawServer()

    def script(came: Came) -> bool:
        lines = "HTTP/1.1 407 Who are you\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
        came.sock.sendall(lines.encode())
        return False

    proxy.script = script
    request = HttpRequest("http://origin.test/f", (), 10, {pycurl.PROXY: proxy.url})
    try:
        with pytest.raises(Unreachable, match="the proxy wants credentials") as caught:
            source.get(request, "path")
        assert "HTTPS_PROXY" in caught.value.remedy
    finally:
        proxy.close()


def test_a_request_has_its_own_headers_alone(raw: RawServer, source: ConnectionPool) -> None:
    """Those of the former one on the lane are gone, also where it has none itself."""
    heads: list[bytes] = []

    def script(came: Came) -> bool:
        heads.append(came.head)
        return answer(came)

    raw.script = script
    plain = get(raw, "/f/100")
    for request in (
        structs.replace(plain, headers=("X-Former: 1",)),
        structs.replace(plain, headers=()),
    ):
        assert read(source, request) == (content("/f/100", 100), None)
    assert [b"X-Former" in head for head in heads] == [True, False]


def test_a_process_ends_that_has_closed_nothing() -> None:
    """Its last request used a kept connection: for this no name was looked up."""
    server = RawServer()
    try:
        command = [sys.executable, "-c", LEFT_OPEN, f"{server.url}/f/10"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, cwd=Path(__file__).parents[3]
        )
    finally:
        server.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")
    assert (len(server.requests), server.connections) == (2, 1)


def test_no_other_protocols(source: ConnectionPool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"secret")
    error = failed(source, HttpRequest(f"file://{tmp_path}/f", (), 6, {}))
    assert isinstance(error, OriginError)
