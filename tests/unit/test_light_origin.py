"""The benches' light origin answers for objects as an S3 server does, and hands over the rest."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench.light_origin import span
from tests.services.authority import Authority

ETAG = '"0123abcd"'
BODY = random.Random(1).randbytes(300_000)
ROOT = Path(__file__).parents[2]


class Upstream(http.server.BaseHTTPRequestHandler):
    """Says what it was asked."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = f"{self.path} {self.headers['Host']} ".encode() + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(params=["http", "https"])
def origin(
    request: pytest.FixtureRequest, tmp_path: Path, authority: Authority
) -> Iterator[http.client.HTTPConnection]:
    """A connection to a light origin that has one object, `bucket/a key`."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/a key").write_bytes(BODY)
    os.setxattr(tmp_path / "bucket/a key", "user.etag", ETAG.encode())
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=upstream.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{upstream.server_port}"
    command = [sys.executable, "-m", "bench.light_origin", "--folder", str(tmp_path)]
    if request.param == "https":
        command += ["--certificate", str(authority.certificate)]
    with subprocess.Popen(
        [*command, "--upstream", url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = urlsplit(json.loads(process.stdout.readline())["endpoint_url"])
        assert (told.scheme, told.hostname) == (request.param, "127.0.0.1")
        connection = http.client.HTTPConnection("127.0.0.1", told.port, timeout=20)
        if told.scheme == "https":
            connection = http.client.HTTPSConnection(
                "127.0.0.1", told.port, timeout=20, context=authority.trusting()
            )
        yield connection
        connection.close()
        process.stdin.close()
        assert process.wait(20) == 0
    upstream.shutdown()
    thread.join()
    upstream.server_close()


def ask(
    origin: http.client.HTTPConnection,
    target: str = "/bucket/a%20key",
    method: str = "GET",
    **headers: str,
) -> tuple[int, bytes, http.client.HTTPResponse]:
    origin.request(method, target, headers={k.replace("_", "-"): v for k, v in headers.items()})
    reply = origin.getresponse()
    return reply.status, reply.read(), reply


def test_objects_and_ranges_over_one_connection(origin: http.client.HTTPConnection) -> None:
    status, body, reply = ask(origin)
    assert (status, body == BODY, reply.headers["ETag"]) == (200, True, ETAG)
    status, body, reply = ask(origin, Range="bytes=100-199")
    assert (status, body) == (206, BODY[100:200])
    assert reply.headers["Content-Range"] == f"bytes 100-199/{len(BODY)}"
    assert ask(origin, Range="bytes=299990-")[:2] == (206, BODY[299_990:])
    assert ask(origin, "/bucket/a%20key?x-id=GetObject", Range="bytes=-5")[:2] == (206, BODY[-5:])
    status, body, reply = ask(origin, method="HEAD")
    assert (status, body, reply.headers["Content-Length"]) == (200, b"", str(len(BODY)))


def test_what_is_refused(origin: http.client.HTTPConnection) -> None:
    assert ask(origin, If_Match=ETAG)[0] == 200
    assert ask(origin, If_Match='"other"')[0] == 412
    assert ask(origin, Range="bytes=300000-")[0] == 416
    assert ask(origin, "/bucket/none")[0] == 404


def test_body_bytes_are_counted(origin: http.client.HTTPConnection) -> None:
    ask(origin, Range="bytes=0-999")
    ask(origin, method="HEAD")
    counters = json.loads(ask(origin, "/-/counters")[1])
    assert (counters["object_bytes"], counters["GET"]) == (1000, 1)
    ask(origin, "/-/reset", "POST")
    assert json.loads(ask(origin, "/-/counters")[1])["object_bytes"] == 0


def test_rate_and_latency_are_at_least_what_was_asked(origin: http.client.HTTPConnection) -> None:
    settings = json.dumps({"rate_bytes_per_s": 1e6, "latency_s": 0.05})
    origin.request("POST", "/-/settings", body=settings)
    origin.getresponse().read()
    started = time.monotonic()
    assert ask(origin)[1] == BODY
    assert (
        time.monotonic() - started > 0.05 + 0.25
    )  # of 0.30 s; the last piece need not be waited for


def test_other_requests_go_to_the_real_server_as_they_are(
    origin: http.client.HTTPConnection,
) -> None:
    body = os.urandom(200_000).hex()
    origin.request("POST", "/bucket?delete", body=body, headers={"Host": "as-signed"})
    assert origin.getresponse().read() == f"/bucket?delete as-signed {body}".encode()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(b"", None), (b"bytes=0-0", (0, 1)), (b"bytes=5-", (5, 9)), (b"bytes=-3", (6, 9)),
     (b"bytes=2-99", (2, 9)), (b"bytes=-99", (0, 9))],
)  # fmt: skip
def test_ranges(value: bytes, wanted: tuple[int, int] | None) -> None:
    assert span(value, 9) == wanted
