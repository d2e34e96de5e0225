"""Requests that write to S3: what they send, and what a reply means. The suite of writers runs on
real servers."""

from __future__ import annotations

import hashlib

import pycurl
import pytest

from cachefs.core import errors
from cachefs.core.model import Fingerprint, Kind
from connectors.s3.options import S3Options
from connectors.s3.writer import S3Writer
from connectors.writing import ABSENT, ANY, Upload
from tests.unit.connectors.scripted_s3 import Answer, Request, ScriptedS3, error, head
from tests.unit.connectors.test_s3_gets import _fields, by_botocore

DATA = bytes(range(256)) * 8192  # 2 MiB
VERSION = Fingerprint(Kind.FILE, len(DATA), 0, "e1")
TOKEN = Upload(b"a f+%", 5 << 20, "an/id+==").token()
ETAGS = [b"0" * 32, b"f" * 32]
WHOLE = hashlib.md5(bytes(16) + b"\xff" * 16, usedforsecurity=False).hexdigest() + "-2"
DONE = '<CompleteMultipartUploadResult><ETag>"{}"</ETag></CompleteMultipartUploadResult>'


def writer(server: ScriptedS3) -> S3Writer:
    return S3Writer("bucket", "", S3Options(endpoint_url=server.url, region="us-east-1"))


def answering(server: ScriptedS3, answer: Answer, etag: str = "e1") -> None:
    """Answers what writes with `answer`, and a HEAD with an object of this etag."""

    def script(request: Request) -> Answer:
        return head(etag, len(DATA)) if request.method == "HEAD" else answer

    server.script = script


@pytest.mark.parametrize(
    ("expect", "name", "value"),
    [(ABSENT, "if-none-match", "*"), (VERSION, "if-match", '"e1"'), (ANY, "if-match", None)],
)
def test_a_put_is_signed_and_conditional(
    server: ScriptedS3, expect: object, name: str, value: str | None
) -> None:
    answering(server, Answer(headers={"ETag": '"e1"'}))
    assert writer(server).put(b"a f+%", memoryview(DATA), expect).etag == "e1"  # type: ignore[arg-type]
    put, _ = server.requests
    assert (put.method, put.target, put.body) == ("PUT", "/bucket/a%20f%2B%25", DATA)
    assert put.headers.get(name) == value
    assert put.headers["x-amz-content-sha256"] == hashlib.sha256(DATA).hexdigest()
    assert _fields(put.headers["authorization"]) == _fields(by_botocore(server.url, put))


def test_an_idle_connection_keeps_no_body(server: ScriptedS3) -> None:
    answering(server, Answer(headers={"ETag": '"e1"'}))
    source = writer(server)
    source.put_part(TOKEN, 0, memoryview(DATA))
    for lane, _ in source._http._lanes._idle:
        assert pycurl.POSTFIELDS not in (lane.exchange._options or {})
    source.put_part(TOKEN, 1, memoryview(DATA))
    assert server.connections == 1
    assert [request.body for request in server.requests] == [DATA, DATA]


@pytest.mark.parametrize(
    ("answer", "expect", "kind"),
    [
        (error(412, "PreconditionFailed"), ABSENT, errors.AlreadyExists),
        (error(412, "PreconditionFailed"), VERSION, errors.Stale),
        (error(409, "ConditionalRequestConflict"), ABSENT, errors.Unavailable),
        (error(404, "NoSuchKey"), VERSION, errors.NotFound),
        (error(501, "NotImplemented"), ABSENT, errors.Unsupported),
        (error(400, "EntityTooLarge"), ANY, errors.Unsupported),
        (error(403, "AccessDenied"), ANY, errors.AccessDenied),
        (error(503, "SlowDown"), ANY, errors.Throttled),
    ],
)
def test_what_refuses_a_put(
    server: ScriptedS3, answer: Answer, expect: object, kind: type[Exception]
) -> None:
    answering(server, answer)
    with pytest.raises(kind):
        writer(server).put(b"f", memoryview(DATA), expect)  # type: ignore[arg-type]


def test_a_file_that_is_replaced_at_once(server: ScriptedS3) -> None:
    answering(server, Answer(headers={"ETag": '"mine"'}), etag="of another")
    with pytest.raises(errors.Stale, match="replaced by another version since"):
        writer(server).put(b"f", memoryview(DATA), ANY)


def test_the_end_of_an_upload(server: ScriptedS3) -> None:
    answering(server, Answer(body=DONE.format(WHOLE).encode()), etag=WHOLE)
    assert writer(server).finish(TOKEN, ETAGS, ABSENT).etag == WHOLE
    post, _ = server.requests
    assert post.target == "/bucket/a%20f%2B%25?uploadId=an%2Fid%2B%3D%3D"
    assert post.body.count(b"<Part>") == 2
    assert b"<PartNumber>1</PartNumber><ETag>&quot;00" in post.body
    assert _fields(post.headers["authorization"]) == _fields(by_botocore(server.url, post))


def test_an_error_after_the_status_200(server: ScriptedS3) -> None:
    late = b'<?xml version="1.0"?>\n   <Error><Code>InternalError</Code></Error>'
    answering(server, Answer(body=late))
    with pytest.raises(errors.Unavailable, match="InternalError"):
        writer(server).finish(TOKEN, ETAGS, ANY)


@pytest.mark.parametrize("answer", [error(404, "NoSuchUpload"), error(412, "PreconditionFailed")])
def test_an_upload_that_had_ended(server: ScriptedS3, answer: Answer) -> None:
    """Its object is recognised by the etags of the parts; any other one is not."""
    answering(server, answer, etag=WHOLE)
    assert writer(server).finish(TOKEN, ETAGS, ABSENT).etag == WHOLE
    answering(server, answer, etag="e1")
    with pytest.raises((errors.NotFound, errors.AlreadyExists)):
        writer(server).finish(TOKEN, ETAGS, ABSENT)


def test_a_source_that_changes_while_it_is_copied(server: ScriptedS3) -> None:
    """The store has one status for the condition of the source and that of the target."""
    heads = iter([head("e1", len(DATA)), head("e2", len(DATA))])
    server.script = lambda request: (
        next(heads) if request.method == "HEAD" else error(412, "PreconditionFailed")
    )
    with pytest.raises(errors.Stale):
        writer(server).copy(b"f", VERSION, b"g", ANY)
