"""The proxy of the tests: what it counts, how it shapes, each of its faults, and that it ends."""

from __future__ import annotations

import http.client
import http.server
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.services import proxy as faulty
from tests.services.authority import Authority
from tests.services.faults import Armed, Fault, Request, Rule, choose
from tests.services.http_wire import Head
from tests.services.proxy import FaultProxy
from tests.services.shaper import Shaper

LIMIT_S = 30.0
BODY = bytes(range(256)) * 4096  # 1 MiB
ETAG = '"right"'
BROKEN = (
    http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError,
    ssl.SSLEOFError, ssl.SSLZeroReturnError,
)  # fmt: skip


class Origin(http.server.BaseHTTPRequestHandler):
    """Enough of S3: GET with Range and If-Match, HEAD, PUT, one chunked answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._head(200, len(BODY))

    def do_GET(self) -> None:
        if self.headers.get("If-Match", ETAG) != ETAG:
            return self._head(412, 0)
        if "chunked" in self.path:
            return self._chunked()
        first, last = 0, len(BODY) - 1
        asked = self.headers.get("Range")
        if asked:
            first, last = (int(n) for n in asked.removeprefix("bytes=").split("-"))
        span = f"bytes {first}-{last}/{len(BODY)}" if asked else None
        self._head(206 if asked else 200, last - first + 1, span)
        self.wfile.write(BODY[first : last + 1])

    def do_PUT(self) -> None:
        got = self.rfile.read(int(self.headers["Content-Length"]))
        self._head(200, len(got))
        self.wfile.write(got)

    def _head(self, number: int, length: int, span: str | None = None) -> None:
        self.send_response(number)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", ETAG)
        self.send_header("X-Host", self.headers.get("Host", ""))
        self.send_header("Last-Modified", formatdate(0, usegmt=True))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()

    def _chunked(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n")


@pytest.fixture(scope="module")
def origin_url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["http", "https"])
def proxy(
    request: pytest.FixtureRequest, origin_url: str, authority: Authority
) -> Iterator[FaultProxy]:
    certificate = authority.certificate if request.param == "https" else None
    with FaultProxy(origin_url, certificate=certificate) as running:
        yield running
    for thread in threading.enumerate():
        if thread.name.startswith("proxy"):  # its end is seen a moment after that of its connection
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread.name


@pytest.fixture
def client(proxy: FaultProxy, authority: Authority) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    if proxy.endpoint_url.startswith("https"):
        connection = http.client.HTTPSConnection(
            "127.0.0.1", proxy.port, timeout=10, context=authority.trusting()
        )
    yield connection
    connection.close()


def get(
    client: http.client.HTTPConnection, path: str = "/b/key", method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    client.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = client.getresponse()
    return response, response.read()


def test_a_connection_is_kept_and_everything_is_counted(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    assert get(client)[1] == BODY
    response, part = get(client, "/b/other%20key?versionId=1", Range="bytes=10-109")
    assert (response.status, part) == (206, BODY[10:110])
    assert get(client, method="HEAD")[0].headers["Content-Length"] == str(len(BODY))
    seen = proxy.counters()
    assert seen.requests == {"GET": 2, "HEAD": 1}
    assert seen.requests_by_key == {"key": 2, "other key": 1}
    assert seen.bytes_by_key == {"key": len(BODY), "other key": 100}
    assert seen.body_bytes == seen.object_bytes == len(BODY) + 100
    assert (seen.connections, seen.aborted_by_client, seen.faults) == (1, 0, 0)
    proxy.reset()
    assert proxy.counters() == faulty.Counters()


def test_the_host_that_the_client_signed_reaches_the_server(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    assert get(client)[0].headers["X-Host"] == f"127.0.0.1:{proxy.port}"


@pytest.mark.parametrize("expect", [{}, {"Expect": "100-continue"}])
def test_a_body_goes_up(client: http.client.HTTPConnection, expect: dict[str, str]) -> None:
    client.request("PUT", "/b/new", body=BODY, headers=expect)
    assert client.getresponse().read() == BODY
    assert get(client)[1] == BODY


def test_a_chunked_answer_goes_through(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    assert get(client, "/b/chunked")[1] == b"hello world"
    assert get(client)[1] == BODY
    assert proxy.counters().bytes_by_key["chunked"] == 11


def test_requests_sent_ahead_are_answered_in_order(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    client.connect()
    one = b"GET /b/k HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n"
    two = b"GET /b/k HTTP/1.1\r\nHost: x\r\nRange: bytes=10-19\r\nConnection: close\r\n\r\n"
    client.sock.sendall(one + two)
    everything = b"".join(iter(lambda: client.sock.recv(1 << 16), b""))
    assert everything.count(b"HTTP/1.1 206") == 2
    assert everything.index(BODY[:10]) < everything.index(BODY[10:20])


@pytest.mark.parametrize(
    ("fault", "number", "code"),
    [
        (faulty.status(503, code="SlowDown"), 503, b"<Code>SlowDown</Code>"),
        (faulty.status(500), 500, b"<Code>InternalError</Code>"),
        (faulty.expired_credentials(), 403, b"<Code>ExpiredToken</Code>"),
    ],
)
def test_an_error_in_place_of_the_answer(
    proxy: FaultProxy,
    client: http.client.HTTPConnection,
    fault: Fault,
    number: int,
    code: bytes,
) -> None:
    armed = proxy.script(fault, method="GET", times=2)
    assert get(client, method="HEAD")[0].status == 200
    for _ in range(2):
        response, body = get(client)
        assert response.status == number
        assert code in body
    assert get(client)[1] == BODY
    assert (armed.seen, armed.hits) == (2, 2)
    assert proxy.counters().object_bytes == len(BODY)


def test_an_error_for_an_upload_leaves_the_connection_in_step(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.script(faulty.status(503, code="SlowDown"), method="PUT")
    client.request("PUT", "/b/new", body=BODY)
    response = client.getresponse()
    assert response.status == 503
    response.read()
    assert get(client)[1] == BODY


def test_a_body_is_cut(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.script(faulty.cut_body(1000))
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(client)
    assert caught.value.partial == BODY[:1000]
    assert proxy.counters().body_bytes == 1000
    client.close()
    assert get(client)[1] == BODY


def test_a_short_body_is_well_framed(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.script(faulty.short_body(24))
    response, body = get(client, Range="bytes=0-999")
    assert (response.status, response.headers["Content-Length"]) == (206, "976")
    assert body == BODY[:976]
    assert get(client)[1] == BODY  # the rest of the short one is not in the way


def test_a_wrong_etag(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.script(faulty.wrong_etag('"other"'))
    response, body = get(client)
    assert (response.headers.get_all("ETag"), body) == (['"other"'], BODY)


def test_conditions_are_ignored(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    assert get(client, If_Match='"old"')[0].status == 412
    proxy.script(faulty.ignore_if_match())
    assert get(client, If_Match='"old"')[1] == BODY


def test_an_altered_length(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.script(faulty.altered_length(7), times=4)
    ranged, part = get(client, Range="bytes=0-9")
    assert (ranged.headers["Content-Range"], part) == (f"bytes 0-9/{len(BODY) + 7}", BODY[:10])
    assert get(client, method="HEAD")[0].headers["Content-Length"] == str(len(BODY) + 7)
    assert get(client)[1] == BODY + bytes(7)
    proxy.clear()
    proxy.script(faulty.altered_length(-7))
    assert get(client)[1] == BODY[:-7]
    assert get(client)[1] == BODY


def test_a_hanging_request_goes_on(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    release = threading.Event()
    proxy.script(faulty.hang(release))
    client.request("GET", "/b/key")
    proxy.wait_until(lambda seen: seen.faults == 1)
    assert proxy.counters().body_bytes == 0
    release.set()
    assert client.getresponse().read() == BODY


def test_stop_ends_what_hangs(origin_url: str) -> None:
    with FaultProxy(origin_url) as proxy:
        proxy.script(faulty.hang(threading.Event()))
        client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
        client.request("GET", "/b/key")
        proxy.wait_until(lambda seen: seen.faults == 1)
    with pytest.raises(BROKEN):
        client.getresponse()
    client.close()
    proxy.stop()


def test_refused(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.script(faulty.refuse())
    with pytest.raises(BROKEN):
        get(client)
    client.close()
    proxy.refuse_connections(1)
    with pytest.raises(BROKEN):
        get(client)
    client.close()
    assert get(client)[1] == BODY


def test_offline_and_online_on_the_same_port(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    get(client)
    proxy.offline()
    with pytest.raises(BROKEN):
        get(client)
    client.close()
    with pytest.raises(ConnectionRefusedError):
        get(client)
    client.close()
    proxy.online()
    assert get(client)[1] == BODY


def test_a_client_that_goes_away_is_counted(
    proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.rate_bytes_per_s = 2e6
    client.request("GET", "/b/key")
    response = client.getresponse()
    response.read(10)
    response.close()
    client.close()
    seen = proxy.wait_until(lambda seen: seen.aborted_by_client == 1)
    assert seen.body_bytes < len(BODY)


def test_another_certificate_is_shown_to_whom_connects(
    origin_url: str, authority: Authority
) -> None:
    """Sessions of before are not resumed: the client sees the certificate."""
    context = authority.trusting()
    with FaultProxy(origin_url, certificate=authority.certificate) as proxy:
        client = http.client.HTTPSConnection("127.0.0.1", proxy.port, timeout=10, context=context)
        assert get(client)[1] == BODY
        proxy.present(authority.issue("expired", expired=True))
        assert get(client)[1] == BODY
        client.close()
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            get(client)
        client.close()
        proxy.present(authority.certificate, ssl.TLSVersion.TLSv1_1)
        # Which of the two depends on the least version that the build of Python offers.
        with pytest.raises(ssl.SSLError, match=r"protocol version|legacy sigalg"):
            get(client)
        client.close()
        seen = proxy.counters()
        assert (seen.connections, seen.handshakes, seen.resumed) == (3, 1, 0)


def test_latency_and_rate_hold(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.latency_s = 0.05
    proxy.rate_bytes_per_s = 10e6
    started = time.monotonic()
    assert get(client)[1] == BODY
    took_s = time.monotonic() - started
    assert took_s >= 0.05 + len(BODY) / 10e6 - 0.011  # the shaper's credit


def test_an_unreachable_server_is_a_closed_connection() -> None:
    with FaultProxy("http://127.0.0.1:1") as proxy:
        client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
        with pytest.raises(BROKEN):
            get(client)
        client.close()


def request_of(method: str, target: str, *headers: tuple[bytes, bytes]) -> Request:
    return Request(Head(f"{method} {target} HTTP/1.1".encode(), list(headers)))


def test_rules_choose_by_method_key_query_range_and_turn() -> None:
    part = request_of("GET", "/b/dir/a%2Bb.bin?x=1", (b"range", b"bytes=100-199"))
    assert (part.bucket, part.key, part.range_bytes) == ("b", "dir/a+b.bin", (100, 200))
    yes: dict[str, Any] = {
        "method": "GET",
        "key": r"\+b\.bin$",
        "query": "x=",
        "range_bytes": (199, 300),
    }
    assert Rule(fault=None, **yes).matches(part)
    for name, other in [
        ("method", "PUT"),
        ("key", "^a"),
        ("query", "y="),
        ("range_bytes", (0, 100)),
    ]:
        assert not Rule(fault=None, **{**yes, name: other}).matches(part), name
    assert Rule(fault=None, range_bytes=(0, 1)).matches(request_of("GET", "/b/k"))

    second = Armed(Rule(fault=faulty.refuse(), nth=2, times=2))
    hits = [choose([second], part) is not None for _ in range(5)]
    assert hits == [False, True, True, False, False]


def test_the_shaper_keeps_the_rate_and_forgives_one_late_sleeper() -> None:
    shaper = Shaper(1000.0, burst_s=0.1)
    assert shaper.reserve(500, now=10.0) == pytest.approx(0.4)
    assert shaper.reserve(500, now=10.4) == pytest.approx(0.5)
    assert shaper.reserve(1000, now=1000.0) == pytest.approx(0.9)  # idle time is not saved up
    assert Shaper(None).reserve(10**9, now=0.0) == 0.0


def test_as_a_process_of_its_own(origin_url: str) -> None:
    command = [sys.executable, "-m", "tests.services.proxy", "--upstream", origin_url]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        script = {"fault": {"type": "status", "status": 503, "code": "SlowDown"}, "key": "key"}
        for path, body, number in [
            ("/-/script", script, 200),
            ("/-/settings", {"rate_bytes_per_s": 1e9, "latency_s": 0.001}, 200),
            ("/-/settings", {"unknown": 1}, 400),
            ("/-/nothing", {}, 400),
        ]:
            client.request("POST", path, body=json.dumps(body))
            response = client.getresponse()
            assert (response.status, bool(response.read())) == (number, True)
        assert get(client)[0].status == 503
        assert get(client)[1] == BODY
        seen = json.loads(get(client, "/-/counters")[1])
        assert seen["requests"] == {"GET": 2}
        assert seen["object_bytes"] == len(BODY)
        client.close()
        process.stdin.close()
        assert process.wait(10) == 0
