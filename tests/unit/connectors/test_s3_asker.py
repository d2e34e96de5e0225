"""When small objects can be asked for by somebody else, and for how long."""

from __future__ import annotations

import socket

import pytest

from cachefs.core.model import Fingerprint, Kind
from connectors import s3
from connectors.base import Asker
from connectors.s3 import S3Connector
from connectors.s3_options import S3Options

FILE = Fingerprint(Kind.FILE, 10, 10**9, "e1")


def asker(endpoint: str = "http://127.0.0.1:9", *, anonymous: bool = False) -> Asker | None:
    options = S3Options(endpoint_url=endpoint, region="us-east-1", anonymous=anonymous)
    return S3Connector("bucket", "data", options).asker()


def test_a_request_is_for_one_version_of_the_object() -> None:
    found = asker()
    assert found is not None
    ask = found(b"d/a b", FILE)
    assert ask is not None
    assert ask.request.address == (socket.AF_INET, ("127.0.0.1", 9))
    assert ask.request.size == 10
    lines = ask.request.head.decode().split("\r\n")
    assert lines[0] == "GET /bucket/data/d/a%20b HTTP/1.1"
    assert {"host: 127.0.0.1:9", "Range: bytes=0-9", 'If-Match: "e1"'} <= set(lines)
    assert any(line.startswith("Authorization: AWS4-HMAC-SHA256 ") for line in lines)
    right = {"etag": '"e1"', "content-range": "bytes 0-9/10"}
    assert "Authorization" not in repr(ask), "it shows no signature"
    assert ask.request.is_answer(206, right)
    assert not ask.request.is_answer(200, right)
    assert not ask.request.is_answer(412, {})
    for wrong in (
        {"etag": '"e2"'},
        {"etag": ""},
        {"content-range": "bytes 0-9/11"},
        {"content-range": "bytes 1-10/10"},
        {"content-range": ""},
    ):
        assert not ask.request.is_answer(206, right | wrong)


@pytest.mark.parametrize(
    "version",
    [
        Fingerprint(Kind.FILE, 0, 0, "e1"),
        Fingerprint(Kind.FILE, 10, 0, ""),
        Fingerprint(Kind.FILE, 10, 0, 'e1"\r\nX: y\r\n'),
        Fingerprint(Kind.FILE, 10, 0, "é"),
    ],
)
def test_versions_that_cannot_be_asked_for(version: Fingerprint) -> None:
    found = asker()
    assert found is not None
    assert found(b"f", version) is None


def test_it_holds_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(s3.time, "monotonic", lambda: now_s)  # type: ignore[attr-defined]
    found = asker()
    assert found is not None
    now_s += s3.ASKER_S
    assert found(b"f", FILE) is not None
    now_s += 0.1
    assert found(b"f", FILE) is None


@pytest.mark.parametrize(
    "endpoint", ["https://127.0.0.1:9", "http://no.such.host.invalid", f"http://{'x' * 64}.test"]
)
def test_endpoints_that_are_left_to_the_object_client(endpoint: str) -> None:
    assert asker(endpoint) is None


def test_a_proxy_is_left_to_the_object_client(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("HTTP_PROXY", "http://proxy.test:3128")
    assert asker("http://origin.test") is None


def test_without_credentials(aws: pytest.MonkeyPatch) -> None:
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    assert asker() is None
    found = asker(anonymous=True)
    assert found is not None
    ask = found(b"f", FILE)
    assert ask is not None
    assert b"Authorization" not in ask.request.head
