"""What an odd or a hostile S3 server answers: no listing is without an end and no body without a
limit, no object hides its directory, and a right body is read however it comes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cachefs.core import errors
from cachefs.core.errors import CacheFSError
from cachefs.core.model import Kind
from connectors.base import Page
from connectors.fetch.exchange import ERROR_BYTES, _declared_bytes
from connectors.fetch.request import Head
from connectors.s3 import http as s3_http
from connectors.s3 import listing as s3_listing
from connectors.s3.connector import S3Connector
from connectors.s3.options import S3Options
from tests.unit.connectors.odd_objects import ODD, SIZES, odd_script
from tests.unit.connectors.scripted_s3 import (
    MODIFIED,
    Answer,
    Request,
    ScriptedS3,
    error,
    head,
    listing,
    ranged,
)
from tests.unit.connectors.test_s3_faults import DATA, VERSION, connector, read

PATHS = [b"f", b"tab\tand\x7f"]
NS = 10**9
IN_FLIGHT_BYTES = 16 << 20  # what sockets hold that a client reads no more


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> bytes:
    found: bytes = request.param
    return found


def whole(source: S3Connector, path: bytes) -> tuple[bytes, CacheFSError | None]:
    """As `read`, in one buffer."""
    try:
        return bytes(source.read_all(path, VERSION)), None
    except CacheFSError as failure:
        return b"", failure


Way = Callable[[S3Connector, bytes], tuple[bytes, CacheFSError | None]]
ways = pytest.mark.parametrize("way", [read, whole], ids=["in chunks", "whole"])


# ---- a right body is read however it comes ----


def chunked(size: int, *, extra: bytes = b"", cut_after: int | None = None) -> Answer:
    request = Request("GET", "", {"range": f"bytes=0-{len(DATA) - 1}"})
    answer = ranged(request, DATA)
    answer.body += extra
    answer.chunk_bytes, answer.cut_after = size, cut_after
    return answer


@ways
@pytest.mark.parametrize("size", [7777, 1 << 20, len(DATA), 1 << 24])
def test_a_body_in_chunks(server: ScriptedS3, path: bytes, way: Way, size: int) -> None:
    server.script = lambda _request: chunked(size)
    assert way(connector(server), path) == (DATA, None)


@ways
@pytest.mark.parametrize("size", [1 << 20, len(DATA), len(DATA) // 2])
def test_a_body_in_chunks_that_is_longer_than_it_says(
    server: ScriptedS3, path: bytes, way: Way, size: int
) -> None:
    server.script = lambda _request: chunked(size, extra=b"x")
    got, failure = way(connector(server), path)
    assert DATA.startswith(got)
    assert isinstance(failure, errors.BadBody)


@ways
@pytest.mark.parametrize("cut_after", [0, 1, 1 << 20, len(DATA) - 1, len(DATA)])
def test_a_body_in_chunks_that_is_cut(
    server: ScriptedS3, path: bytes, way: Way, cut_after: int
) -> None:
    """Also where all is there but the end, which says that it is."""
    server.script = lambda _request: chunked(1 << 20, cut_after=cut_after)
    got, failure = way(connector(server), path)
    assert DATA.startswith(got)
    assert failure is not None
    assert failure.retryable


def test_a_length_of_thousands_of_digits_is_none() -> None:
    """A call-back of libcurl reads it, which must not raise."""
    assert _declared_bytes(Head(206, {"content-length": "9" * 5000})) == 0


def test_an_unknown_coding_of_the_transfer_is_refused(server: ScriptedS3, path: bytes) -> None:
    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.headers["Transfer-Encoding"] = "gzip"
        return answer

    server.script = script
    got, failure = read(connector(server), path)
    assert got == b""
    assert failure is not None


def without_etag(now: Answer, modified: str = MODIFIED) -> Callable[[Request], Answer]:
    """GET says no etag; HEAD says what is `now`."""

    def script(request: Request) -> Answer:
        if request.method == "HEAD":
            return now
        answer = ranged(request, DATA)
        del answer.headers["ETag"]
        answer.headers["Last-Modified"] = modified
        return answer

    return script


@ways
def test_a_reply_without_an_etag_whose_version_is_proven(
    server: ScriptedS3, path: bytes, way: Way
) -> None:
    server.script = without_etag(head("e1", len(DATA)))
    assert way(connector(server), path) == (DATA, None)
    assert [request.method for request in server.requests][-2:] == ["GET", "HEAD"]


LATER = "Sat, 21 Nov 2026 09:32:15 GMT"


@pytest.mark.parametrize(
    ("now", "modified"),
    [
        (head("e2", len(DATA)), MODIFIED),
        (head("e1", len(DATA) + 1), MODIFIED),
        (head("e1", len(DATA), LATER), MODIFIED),
        (head("e1", len(DATA)), LATER),
        (head("e1", len(DATA)), "yesterday"),
        (Answer(headers={"Last-Modified": MODIFIED, "Content-Length": str(len(DATA))}), MODIFIED),
    ],
    ids=["other etag", "other size", "other time", "reply of another time", "no time", "no etag"],
)
def test_a_reply_without_an_etag_that_may_be_another_version(
    server: ScriptedS3, path: bytes, now: Answer, modified: str
) -> None:
    server.script = without_etag(now, modified)
    got, failure = read(connector(server), path)
    assert got == b""
    assert isinstance(failure, errors.Stale)


# ---- a listing has an end ----


def page(token: str, *keys: str) -> Answer:
    """One of a listing; "": the last one."""
    more = "<IsTruncated>true</IsTruncated>" if token else "<IsTruncated>false</IsTruncated>"
    more += f"<NextContinuationToken>{token}</NextContinuationToken>"
    answer = listing(*((key, 1) for key in keys))
    answer.body = answer.body.replace(b"<IsTruncated>false</IsTruncated>", more.encode())
    return answer


def asked(request: Request) -> int:
    """The number in the token of a request; 0: there is none."""
    found = re.search(r"continuation-token=(\d+)", request.target)
    return int(found[1]) if found else 0


@pytest.fixture
def few_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(s3_listing, "IDLE_PAGES", 20)
    return 20


Act = Callable[[S3Connector], object]
# An act, and its requests before the listing that has no end.
LISTINGS: list[tuple[Act, int]] = [
    (lambda source: list(source.list_dir(b"")), 0),
    (lambda source: source.stat(b"d"), 1),
    (lambda source: source.check(), 0),
]
LISTING_IDS = ["list_dir", "stat", "check"]
listings = pytest.mark.parametrize(("act", "before"), LISTINGS, ids=LISTING_IDS)


@listings
def test_pages_without_keys_that_name_a_next_one_for_ever(
    server: ScriptedS3, few_pages: int, act: Act, before: int
) -> None:
    server.script = lambda request: page(str(asked(request) + 1))
    with pytest.raises(errors.OriginError, match="no end"):
        act(connector(server))
    assert len(server.requests) == before + few_pages + 1


@pytest.mark.parametrize("key", ["f", "a//b"])
def test_the_same_keys_for_ever(server: ScriptedS3, few_pages: int, key: str) -> None:
    """Also of keys that are hidden. Of a server with an order the second page is an error."""
    server.script = lambda request: page(str(asked(request) + 1), key)
    options = S3Options(server.url, region="us-east-1", ordered_listings=False)
    with pytest.raises(errors.OriginError, match="no end"):
        list(S3Connector("bucket", "", options).list_dir(b""))
    assert len(server.requests) == few_pages + 2


@listings
def test_a_page_that_names_itself(server: ScriptedS3, act: Act, before: int) -> None:
    server.script = lambda request: page("1")
    with pytest.raises(errors.OriginError, match="names itself"):
        act(connector(server))
    assert len(server.requests) == before + 2


def test_pages_without_keys_before_others(server: ScriptedS3) -> None:
    """As of a prefix below which many objects were deleted."""

    def script(request: Request) -> Answer:
        number = asked(request)
        if request.method == "HEAD":
            return error(404, "NotFound")
        return page("" if number == 9 else str(number + 1), *(["d/f"] if number == 7 else []))

    server.script = script
    source = connector(server)
    assert [entry.name for page in source.list_dir(b"d") for entry in page.entries] == [b"f"]
    assert source.stat(b"d").fingerprint.kind is Kind.DIRECTORY
    connector(server, "d").check()


# ---- a body has a limit ----


def test_the_body_of_a_refusal_has_a_limit(server: ScriptedS3, path: bytes) -> None:
    server.script = lambda _request: Answer(503, b"<Error>" + b"x" * 65536, endless=True)
    got, failure = read(connector(server), path)
    assert got == b""
    assert isinstance(failure, errors.Unavailable)
    assert server.sent_bytes < IN_FLIGHT_BYTES


def test_the_body_of_a_refused_listing_has_a_limit(server: ScriptedS3) -> None:
    server.script = lambda _request: Answer(403, b"<Error>" + b"x" * 65536, endless=True)
    with pytest.raises(errors.AccessDenied):
        list(connector(server).list_dir(b""))
    assert server.sent_bytes < IN_FLIGHT_BYTES


def test_a_refusal_is_read_to_its_limit(server: ScriptedS3) -> None:
    """Words that go beyond it are lost; the status is not."""
    server.script = lambda _request: error(503, "SlowDown", "x" * (ERROR_BYTES - 200))
    _, failure = read(connector(server))
    assert isinstance(failure, errors.Throttled)
    server.script = lambda _request: error(503, "SlowDown", "x" * ERROR_BYTES)
    _, failure = read(connector(server))
    assert isinstance(failure, errors.Unavailable)


@pytest.mark.parametrize("encoding", ["none", "shift_jis"])
def test_a_refusal_in_an_unknown_encoding(server: ScriptedS3, encoding: str) -> None:
    """Its status is known."""
    body = f'<?xml version="1.0" encoding="{encoding}"?><Error><Code>SlowDown</Code></Error>'
    server.script = lambda _request: Answer(500, body.encode())
    _, failure = read(connector(server))
    assert isinstance(failure, errors.Unavailable)


@pytest.mark.parametrize("act", [act for act, _ in LISTINGS], ids=LISTING_IDS)
def test_a_page_of_a_listing_has_a_limit(server: ScriptedS3, act: Act) -> None:
    server.script = lambda _request: Answer(200, b"<ListBucketResult>" + b" " * 65536, endless=True)
    with pytest.raises(errors.OriginError, match="more than 16 MiB"):
        act(connector(server))
    assert server.sent_bytes < s3_http.LISTING_BYTES + IN_FLIGHT_BYTES


@pytest.mark.parametrize("act", [act for act, _ in LISTINGS], ids=LISTING_IDS)
def test_a_page_of_tags_alone_is_refused_before_its_tree_is_built(
    server: ScriptedS3, act: Act
) -> None:
    body = b"<ListBucketResult>" + b"<a/>" * (3 << 20) + b"</ListBucketResult>"
    server.script = lambda _request: Answer(200, body)
    with pytest.raises(errors.OriginError, match="more than 400000 tags"):
        act(connector(server))


def test_a_region_that_is_none_is_not_taken(server: ScriptedS3) -> None:
    odd = {"x-amz-bucket-region": "no region, " + "x" * 2000}
    server.script = lambda request: (
        Answer(headers=odd) if request.method == "HEAD" else listing(("f", 1))
    )
    [found] = connector(server, region="").list_dir(b"")
    assert [entry.name for entry in found.entries] == [b"f"]
    assert "/us-east-1/s3/aws4_request" in server.requests[-1].headers["authorization"]


# ---- one object hides no other ----


def test_objects_of_impossible_times_and_sizes(server: ScriptedS3) -> None:
    server.script = odd_script
    source = connector(server)
    found: list[Page] = list(source.list_dir(b""))
    shown = {entry.name.decode(): entry for page in found for entry in page.entries}
    assert shown.keys() == {*ODD, "right"}
    assert sum(page.hidden for page in found) == len(SIZES)
    for name, (_, _, seconds) in ODD.items():
        assert shown[name].fingerprint.mtime_ns == seconds * NS
    for name, entry in shown.items():
        assert source.stat(name.encode()) == entry
        assert bytes(source.read_all(name.encode(), entry.fingerprint)) == b"odd"
    for name in SIZES:
        with pytest.raises(errors.NotFound):
            source.stat(name.encode())
