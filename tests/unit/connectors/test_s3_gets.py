"""Requests of the S3 connector: signed as botocore signs the same requests, and when small objects
may be asked for many at once."""

from __future__ import annotations

import datetime
import random
from unittest import mock
from urllib.parse import unquote, urlsplit

import msgspec
import pycurl
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cachefs.core.model import Fingerprint, Kind
from connectors.fetch.request import ignore_connections
from connectors.objects.keyed import API_KEPT_S
from connectors.s3.connector import S3Connector
from connectors.s3.http import S3Http
from connectors.s3.options import S3Options
from tests.unit.connectors.scripted_s3 import Answer, Request, ScriptedS3, error, ranged
from tests.unit.connectors.test_s3_faults import DATA, VERSION, connector, read

SEED = random.SystemRandom().getrandbits(32)
ODD = " +%/~'\"?#&=;\r\n\t\x7fäß…\U0001f600*!()[]{}|\\^`<>:@$,"
ODD_KEYS = ["f", "a b/c+d", "%2e%41", "e\u0301", "~tilde_-.", "..a/.b/c..", *ODD]
FILE = Fingerprint(Kind.FILE, 10, 10**9, "e1")


def by_botocore(url: str, request: Request) -> str:
    """Returns the signature that botocore gives a request that came."""
    sent = datetime.datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
    names = request.headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    headers = {name: request.headers[name] for name in names if name not in ("host", "x-amz-date")}
    url += request.target
    made = AWSRequest(request.method, url, headers, request.body)
    token = request.headers.get("x-amz-security-token")
    with mock.patch("botocore.auth.get_current_datetime", return_value=sent):
        S3SigV4Auth(Credentials("key", "secret", token), "s3", "us-east-1").add_auth(made)
    found: str = made.headers["Authorization"]
    return found


@pytest.mark.parametrize("token", ["", "a/token+=="])
def test_they_are_signed_as_botocore_signs(
    server: ScriptedS3, aws: pytest.MonkeyPatch, token: str
) -> None:
    if token:
        aws.setenv("AWS_SESSION_TOKEN", token)
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    keys = ODD_KEYS + ["".join(rng.choices(ODD + "abc/", k=20)).strip("/") for _ in range(40)]
    data = DATA[:1000]
    version = msgspec.structs.replace(VERSION, size=len(data))
    server.script = lambda request: ranged(request, data)
    source = connector(server)
    for key in keys:
        if "//" in key or key == "/":
            continue
        server.requests.clear()
        body = source.read(key.encode(), 0, len(data), version)
        assert b"".join(bytes(chunk) for chunk in body) == data, key
        [request] = server.requests
        assert unquote(request.target) == f"/bucket/{key}"
        assert request.headers["range"] == f"bytes=0-{len(data) - 1}"
        assert request.headers["if-match"] == '"e1"'
        ours = request.headers["authorization"]
        assert _fields(ours) == _fields(by_botocore(server.url, request)), key
    source.close()


def test_listings_and_heads_are_signed_as_botocore_signs(server: ScriptedS3) -> None:
    """Of any prefix, name and token."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    http = S3Http("bucket", S3Options(server.url, region="us-east-1"), ignore_connections)
    server.script = lambda _request: Answer()
    for text in ODD_KEYS + ["".join(rng.choices(ODD + "abc/", k=20)) for _ in range(20)]:
        requests = http.requests()
        for sent in (requests.list(text, text + "==", 1), requests.stat(text)):
            http.send(sent, "path").close()
    assert {request.method for request in server.requests} == {"GET", "HEAD"}
    for request in server.requests:
        ours = _fields(request.headers["authorization"])
        assert ours == _fields(by_botocore(server.url, request)), request.target
    http.close()


def _fields(authorization: str) -> set[str]:
    return {field.strip() for field in authorization.partition(" ")[2].split(",")}


def test_without_keys_nothing_is_signed(server: ScriptedS3) -> None:
    server.script = lambda request: ranged(request, DATA)
    assert read(connector(server, anonymous="true")) == (DATA, None)
    assert "authorization" not in server.requests[-1].headers


def test_the_requester_pays_for_reads(server: ScriptedS3) -> None:
    server.script = lambda request: ranged(request, DATA)
    options = S3Options(server.url, region="us-east-1", requester_pays=True)
    source = S3Connector("bucket", "", options)
    assert read(source) == (DATA, None)
    found = server.requests[-1].headers
    assert found["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in found["authorization"]


def test_small_files_are_asked_for_once_a_thread_has_read_one(server: ScriptedS3) -> None:
    server.script = lambda request: ranged(request, DATA)
    source = connector(server, "data")
    assert source.ask(b"d/a b", 0, FILE.size, FILE) is None
    assert read(source) == (DATA, None)
    ask = source.ask(b"d/a b", 0, FILE.size, FILE)
    assert ask is not None
    assert urlsplit(ask.get.url).path == "/bucket/data/d/a%20b"
    assert ask.get.size == 10
    assert {"Range: bytes=0-9", 'If-Match: "e1"'} <= set(ask.get.headers)
    assert "secret" not in repr(ask), "it shows no keys"
    assert ask.get.options[pycurl.PASSWORD] == b"secret"
    assert ask.get.answer == (("etag", "e1"), ("content-range", "bytes 0-9/10"))
    source.close()
    assert source.ask(b"d/a b", 0, FILE.size, FILE) is None


def test_parts_are_requested_once_a_thread_has_read_one(server: ScriptedS3) -> None:
    server.script = lambda request: ranged(request, DATA)
    source = connector(server)
    assert source.ask(b"f", 5, 10, VERSION) is None
    assert b"".join(bytes(chunk) for chunk in source.read(b"f", 5, 10, VERSION)) == DATA[5:15]
    ask = source.ask(b"f", 5, 10, VERSION)
    assert ask is not None
    assert ask.get.size == 10
    assert "Range: bytes=5-14" in ask.get.headers
    total = VERSION.size
    assert ask.get.answer == (("etag", VERSION.etag), ("content-range", f"bytes 5-14/{total}"))


@pytest.mark.parametrize(
    "version",
    [
        Fingerprint(Kind.FILE, 0, 0, "e1"),
        Fingerprint(Kind.FILE, 10, 0, ""),
        Fingerprint(Kind.FILE, 10, 0, 'e1"\r\nX: y\r\n'),
        Fingerprint(Kind.FILE, 10, 0, "é"),
    ],
)
def test_versions_that_cannot_be_asked_for(server: ScriptedS3, version: Fingerprint) -> None:
    server.script = lambda request: ranged(request, DATA)
    source = connector(server)
    assert read(source) == (DATA, None)
    assert source.ask(b"f", 0, version.size, version) is None


def test_it_holds_for_a_while_and_until_a_failure(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    server.script = lambda request: ranged(request, DATA)
    source = connector(server)
    monkeypatch.setattr(source._turns, "_clock", lambda: now_s)
    read(source)
    assert source.ask(b"f", 0, FILE.size, FILE) is not None
    now_s += API_KEPT_S + 0.1
    assert source.ask(b"f", 0, FILE.size, FILE) is None
    read(source)
    ask = source.ask(b"f", 0, FILE.size, FILE)
    assert ask is not None
    ask.ended(0, "origin-error")
    assert source.ask(b"f", 0, FILE.size, FILE) is None


def test_a_redirect_is_not_followed(server: ScriptedS3) -> None:
    """The keys go to the endpoint, and nowhere else."""

    def script(request: Request) -> Answer:
        found = error(307, "TemporaryRedirect", "<Region>eu-west-1</Region>")
        found.headers["Location"] = server.url + "/elsewhere"
        return found

    server.script = script
    _, failure = read(connector(server))
    assert failure is not None
    assert "eu-west-1" in failure.cause
    assert "--region" in failure.remedy
    assert len(server.requests) == 1
