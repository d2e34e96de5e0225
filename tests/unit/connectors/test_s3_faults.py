"""What a bad reply becomes: a typed error, and never wrong bytes."""

from __future__ import annotations

import threading

import pytest

from cachefs.core import errors
from cachefs.core.errors import CacheFSError
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from connectors.s3.connector import S3Connector
from connectors.s3.options import S3Options
from tests.unit.connectors.scripted_s3 import (
    Answer,
    Request,
    ScriptedS3,
    error,
    listing,
    ranged,
)

DATA = bytes(range(256)) * 12_000  # 3 MB
VERSION = Fingerprint(Kind.FILE, len(DATA), 1_795_253_534 * 10**9, "e1")


def connector(server: ScriptedS3, prefix: str = "", **options: str) -> S3Connector:
    options = {"region": "us-east-1", **options}
    anonymous = options.pop("anonymous", "") == "true"
    return S3Connector(
        "bucket", prefix, S3Options(endpoint_url=server.url, anonymous=anonymous, **options)
    )


def read(source: Connector, path: bytes = b"f") -> tuple[bytes, CacheFSError | None]:
    """What came, and the error that ended it."""
    got = bytearray()
    try:
        for chunk in source.read(path, 0, len(DATA), VERSION):
            got += chunk
    except CacheFSError as failure:
        return bytes(got), failure
    return bytes(got), None


def test_a_right_reply_is_read(server: ScriptedS3) -> None:
    server.script = lambda request: ranged(request, DATA)
    assert read(connector(server)) == (DATA, None)
    assert server.requests[-1].headers["if-match"] == '"e1"'
    assert server.requests[-1].headers["range"] == f"bytes=0-{len(DATA) - 1}"


@pytest.mark.parametrize("path", [b"f", b"tab\tand\x7f"])
@pytest.mark.parametrize(
    ("other", "etag"), [(DATA, "e2"), (DATA + b"x", "e1"), (DATA + b"x", "e2")]
)
def test_a_server_that_ignores_if_match_is_caught(
    server: ScriptedS3, path: bytes, other: bytes, etag: str
) -> None:
    server.script = lambda request: ranged(request, other, etag)
    got, failure = read(connector(server), path)
    assert got == b""
    assert isinstance(failure, errors.Stale)


@pytest.mark.parametrize("path", [b"f", b"tab\tand\x7f"])
@pytest.mark.parametrize("cut_after", [0, 1, 1 << 20, len(DATA) - 1])
def test_a_body_cut_short(server: ScriptedS3, path: bytes, cut_after: int) -> None:
    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.cut_after = cut_after
        return answer

    server.script = script
    got, failure = read(connector(server), path)
    assert DATA.startswith(got)
    assert failure is not None
    assert failure.retryable


@pytest.mark.parametrize("path", [b"f", b"tab\tand\x7f"])
@pytest.mark.parametrize("change_bytes", [-1000, -1])
def test_a_body_that_is_complete_and_too_short(
    server: ScriptedS3, path: bytes, change_bytes: int
) -> None:
    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.body = DATA[:change_bytes]
        return answer

    server.script = script
    got, failure = read(connector(server), path)
    assert DATA.startswith(got)
    assert isinstance(failure, errors.BadBody)


def test_a_reply_with_another_range(server: ScriptedS3) -> None:
    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.headers["Content-Range"] = f"bytes 1-{len(DATA) - 1}/{len(DATA)}"
        return answer

    server.script = script
    got, failure = read(connector(server))
    assert got == b""
    assert isinstance(failure, errors.BadBody)


@pytest.mark.parametrize("path", [b"f", b"tab\tand\x7f"])
def test_a_server_that_ignores_ranges(server: ScriptedS3, path: bytes) -> None:
    server.script = lambda request: Answer(
        200, DATA, {"ETag": '"e1"', "Last-Modified": "Sat, 21 Nov 2026 09:32:14 GMT"}
    )
    got, failure = read(connector(server), path)
    assert got == b""
    assert isinstance(failure, errors.OriginError | errors.Stale)


@pytest.mark.parametrize("status", [200, 203])
def test_a_range_comes_with_its_status(server: ScriptedS3, status: int) -> None:
    """Content-Range has a meaning in a reply 206 only."""

    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.status = status
        return answer

    server.script = script
    got, failure = read(connector(server))
    assert got == b""
    assert isinstance(failure, errors.OriginError)


FAULTS = [
    (404, "NoSuchKey", errors.NotFound),
    (404, "NoSuchBucket", errors.NotFound),
    (403, "AccessDenied", errors.AccessDenied),
    (403, "SignatureDoesNotMatch", errors.AccessDenied),
    (403, "RequestTimeTooSkewed", errors.CredentialsMissing),
    (403, "InvalidObjectState", errors.Archived),
    (400, "ExpiredToken", errors.CredentialsMissing),
    (400, "AuthorizationHeaderMalformed", errors.OriginError),
    (400, "KeyTooLongError", errors.NotFound),
    (400, "RequestTimeout", errors.Unavailable),
    (412, "PreconditionFailed", errors.Stale),
    (416, "InvalidRange", errors.Stale),
    (408, "", errors.Unavailable),  # of a proxy in front of the server
    (429, "TooManyRequests", errors.Throttled),
    (500, "InternalError", errors.Unavailable),
    (502, "", errors.Unavailable),
    (503, "SlowDown", errors.Throttled),
    (503, "SlowDownRead", errors.Throttled),  # MinIO
    (503, "ServiceUnavailable", errors.Unavailable),
    (504, "", errors.Unavailable),
]


@pytest.mark.parametrize("path", [b"f", b"tab\tand\x7f"])
@pytest.mark.parametrize(("status", "code", "expected"), FAULTS)
def test_a_refused_read(
    server: ScriptedS3, path: bytes, status: int, code: str, expected: type[CacheFSError]
) -> None:
    server.script = lambda _request: error(status, code, "<RequestId>REQ1</RequestId>")
    got, failure = read(connector(server), path)
    assert got == b""
    assert type(failure) is expected
    assert failure.request_id == "REQ1"
    assert failure.path == f"s3://bucket/{path.decode()}"
    assert "\n" not in failure.one_line().replace(path.decode(), "")


@pytest.mark.parametrize(("status", "code", "expected"), FAULTS[1:9] + FAULTS[12:])
def test_a_refused_listing(
    server: ScriptedS3, status: int, code: str, expected: type[CacheFSError]
) -> None:
    server.script = lambda _request: error(status, code)
    with pytest.raises(expected) as caught:
        connector(server).check()
    assert caught.value.request_id == "REQ1"
    assert caught.value.path == "s3://bucket/"
    assert caught.value.retryable or caught.value.remedy


def test_a_refused_connection() -> None:
    source = S3Connector(
        "bucket", "", S3Options(endpoint_url="http://127.0.0.1:1", region="us-east-1")
    )
    with pytest.raises(errors.Unreachable, match="cannot be reached"):
        source.check()
    _, failure = read(source)
    assert isinstance(failure, errors.Unreachable)
    assert "cannot be reached" in failure.cause


def test_an_unreachable_endpoint_is_told_before_the_region_is_known() -> None:
    with pytest.raises(errors.Unreachable, match="cannot be reached"):
        S3Connector("bucket", "", S3Options(endpoint_url="http://127.0.0.1:1")).check()


def test_nothing_under_the_prefix(server: ScriptedS3) -> None:
    server.script = lambda request: listing() if request.method == "GET" else error(404, "NotFound")
    with pytest.raises(errors.NotFound, match="nothing under this prefix"):
        connector(server, "some/prefix").check()
    connector(server).check()  # an empty bucket is a bucket


def test_an_endpoint_that_is_no_server_of_s3(server: ScriptedS3) -> None:
    server.script = lambda _: Answer(404, b"<html>not found</html>")
    with pytest.raises(errors.NotFound, match="does not answer as a server of S3") as caught:
        connector(server).check()
    assert caught.value.remedy == "check its URL"
    server.script = lambda _: error(404, "NoSuchBucket")
    with pytest.raises(errors.NotFound, match="no such bucket"):
        connector(server).check()


def test_a_prefix_that_is_an_object(server: ScriptedS3) -> None:
    server.script = lambda request: (
        listing()
        if request.method == "GET"
        else Answer(headers={"Last-Modified": "Sat, 21 Nov 2026 09:32:14 GMT", "ETag": '"e"'})
    )
    with pytest.raises(errors.NotFound, match="an object, not a prefix"):
        connector(server, "file.bin").check()


def test_a_listing_that_is_torn(server: ScriptedS3) -> None:
    whole = listing(("f", 1)).body
    server.script = lambda _request: Answer(body=whole[:-20])
    with pytest.raises(errors.BadBody):
        list(connector(server).list_dir(b""))


def test_an_endpoint_that_is_no_s3_server(server: ScriptedS3) -> None:
    server.script = lambda _request: Answer(body=b"<html><body>Welcome</body></html>")
    with pytest.raises(errors.OriginError, match="no S3 server"):
        connector(server).check()


def test_a_server_that_takes_no_bucket_from_the_host_name(server: ScriptedS3) -> None:
    """MinIO without MINIO_DOMAIN, SeaweedFS without -s3.domainName."""
    body = b'<ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'
    server.script = lambda _request: Answer(body=body)
    with pytest.raises(errors.OriginError, match="no bucket from the host name") as caught:
        connector(server).check()
    assert caught.value.remedy == "give --addressing-style path"


def test_a_caller_who_may_not_list_still_reads(server: ScriptedS3) -> None:
    head = {"Last-Modified": "Sat, 21 Nov 2026 09:32:14 GMT", "ETag": '"e"', "Content-Length": "7"}
    server.script = lambda request: (
        error(403, "AccessDenied") if request.method == "GET" else Answer(headers=head)
    )
    assert connector(server).stat(b"f").fingerprint.size == 7


def test_a_refused_head_is_asked_for_its_words(server: ScriptedS3) -> None:
    server.script = lambda request: (
        Answer(400) if request.method == "HEAD" else error(400, "ExpiredToken")
    )
    with pytest.raises(errors.CredentialsMissing, match="expired"):
        connector(server).read(b"empty", 0, 0, Fingerprint(Kind.FILE, 0, 0, "e1"))


@pytest.mark.parametrize("stalled", [b"f", b"tab\tand\x7f"])
@pytest.mark.parametrize("after", [None, 0, 100, 2 << 20])
def test_a_reply_that_stalls(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch, stalled: bytes, after: int | None
) -> None:
    monkeypatch.setattr("connectors.fetch.connection_pool.SILENCE_LIMIT_S", 0.2)
    monkeypatch.setattr("connectors.fetch.connection_pool.CHUNK_LIMIT_S", 0.2)

    def script(request: Request) -> Answer:
        if after is None:
            server.stalled.wait(30)
        answer = ranged(request, DATA)
        answer.stall_after = after
        return answer

    server.script = script
    got, failure = read(connector(server), stalled)
    server.stalled.set()
    assert DATA.startswith(got)
    assert isinstance(failure, errors.Unreachable)
    assert "in time" in failure.cause


@pytest.mark.parametrize("path", [b"f", b"tab\tand\x7f"])
def test_a_close_ends_a_read_in_another_thread(server: ScriptedS3, path: bytes) -> None:
    """The body stalls, and the time-out of the read is far away."""

    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.stall_after = 100
        return answer

    server.script = script
    body = connector(server).read(path, 0, len(DATA), VERSION)

    def drain() -> None:
        try:
            for _ in body:
                pass
        except CacheFSError:
            pass

    reading = threading.Thread(target=drain, daemon=True)
    reading.start()
    closing = threading.Thread(target=body.close, daemon=True)
    reading.join(0.3)
    assert reading.is_alive()
    closing.start()
    closing.join(4)
    assert not closing.is_alive()
    reading.join(4)
    assert not reading.is_alive()
    server.stalled.set()


def test_retries_until_the_first_bytes(server: ScriptedS3) -> None:
    answers = [error(503, "SlowDown"), error(500, "InternalError")]
    server.script = lambda request: answers.pop(0) if answers else ranged(request, DATA)
    pauses: list[float] = []
    meter = Meter()
    source = open_connector(
        UfsSpec("s3://bucket", {"endpoint_url": server.url, "region": "us-east-1"}),
        deadline_s=30,
        meter=meter,
        sleep=pauses.append,
        rng=lambda: 0.5,
    )
    assert read(source) == (DATA, None)
    assert pauses == [0.05, 0.1]
    assert meter.snapshot().errors == {"throttled": 1, "unavailable": 1}
    assert meter.snapshot().body_bytes == len(DATA)
    source.close()
