"""The next page of a listing is requested before the current one is handed over: one page and no
more, its error is raised at its place, and a listing that ends or is dropped requests nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from cachefs.core import errors
from connectors.base import Connector, Page
from connectors.compose import decorate
from connectors.fetch.connection_pool import ConnectionPool
from connectors.fetch.request import HttpRequest
from connectors.meter import Meter
from connectors.page_replies import AHEAD_LIMIT_S, PageReplies
from connectors.pages import closing
from connectors.s3.connector import S3Connector
from connectors.s3.http import S3Http
from tests.services.processes import wait_until
from tests.unit.connectors.raw_http import Came, RawServer, answer, content, get
from tests.unit.connectors.scripted_s3 import Answer, Request, ScriptedS3, error, listing
from tests.unit.connectors.test_s3_faults import connector

PAGES = 5


def number_of(request: Request) -> int:
    """The number of the requested page."""
    found = re.search(r"continuation-token=(\d+)", request.target)
    return int(found[1]) if found else 0


def page(number: int) -> Answer:
    reply = listing((f"f{number}", 1))
    if number < PAGES - 1:
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{number + 1}"
        more += "</NextContinuationToken>"
        reply.body = reply.body.replace(b"<IsTruncated>false</IsTruncated>", more.encode())
    return reply


def pages(request: Request) -> Answer:
    return page(number_of(request))


def names(found: list[Page]) -> list[bytes]:
    return [entry.name for one in found for entry in one.entries]


ALL = [b"f%d" % number for number in range(PAGES)]


def requested(server: ScriptedS3) -> list[int]:
    return [number_of(request) for request in server.requests]


# ---- the listing ----


def test_one_page_is_requested_ahead_and_no_more(server: ScriptedS3) -> None:
    server.script = pages
    found = []
    for count, one in enumerate(connector(server).list_dir(b""), 1):
        found.append(one)
        expected = list(range(min(count + 1, PAGES)))
        wait_until(lambda: requested(server) == expected, f"{expected} are requested")  # noqa: B023
    assert names(found) == ALL
    assert found[-1].last
    assert requested(server) == list(range(PAGES))
    assert server.connections == 1


def test_a_listing_of_one_page_requests_no_other(server: ScriptedS3) -> None:
    server.script = lambda request: page(PAGES - 1)
    assert len(list(connector(server).list_dir(b""))) == 1
    assert len(server.requests) == 1


def test_the_error_of_the_page_ahead_is_raised_at_its_place(server: ScriptedS3) -> None:
    refusals = [1, 2]  # pages, once each

    def script(request: Request) -> Answer:
        if number_of(request) in refusals:
            refusals.remove(number_of(request))
            return error(503, "SlowDown")
        return pages(request)

    server.script = script
    listed = connector(server).list_dir(b"")
    assert names([next(listed)]) == [b"f0"]
    for number in (1, 2):
        with pytest.raises(errors.Throttled):
            next(listed)
        assert names([next(listed)]) == [b"f%d" % number]
    assert names([*listed]) == ALL[3:]


def test_the_decorators_retry_and_count_each_page(server: ScriptedS3) -> None:
    refusals = [3]

    def script(request: Request) -> Answer:
        if number_of(request) in refusals:
            refusals.clear()
            return error(503, "SlowDown")
        return pages(request)

    server.script = script
    meter = Meter()
    source: Connector = decorate(
        connector(server), deadline_s=20.0, meter=meter, in_flight=1, sleep=lambda _s: None
    )
    assert names([*source.list_dir(b"")]) == ALL
    counted = meter.snapshot()
    assert counted.requests == {"list_dir": PAGES + 1}
    assert counted.errors == {"throttled": 1}


@pytest.mark.parametrize("is_decorated", [False, True])
def test_a_closed_listing_ends_the_request_of_its_page_ahead(
    server: ScriptedS3, is_decorated: bool
) -> None:
    held, answers = threading.Event(), threading.Event()

    def script(request: Request) -> Answer:
        if number_of(request) == 1 and not held.is_set():
            held.set()
            answers.wait(20)
        return pages(request)

    server.script = script
    source: Connector = connector(server)
    if is_decorated:
        source = decorate(source, deadline_s=20.0, meter=Meter(), in_flight=2)
    with closing(source.list_dir(b"")) as listed:
        next(listed)
        assert held.wait(20)
    assert not [*listed], "it has ended"
    try:
        assert names([*source.list_dir(b"")]) == ALL
    finally:
        answers.set()
    assert server.connections == 2  # the reply that nobody reads cannot reach another request


def test_a_page_ahead_that_is_cut_is_requested_again(server: ScriptedS3) -> None:
    cuts = [2]

    def script(request: Request) -> Answer:
        reply = pages(request)
        if number_of(request) in cuts:
            cuts.remove(number_of(request))
            reply.headers["Content-Length"] = str(len(reply.body))
            reply.cut_after = len(reply.body) // 2
        return reply

    server.script = script
    listed = connector(server).list_dir(b"")
    assert names([next(listed), next(listed)]) == ALL[:2]
    with pytest.raises(errors.CacheFSError) as failure:
        next(listed)
    assert failure.value.retryable
    assert names([*listed]) == ALL[2:]


def test_an_error_of_a_page_itself_ends_the_request_of_the_next(server: ScriptedS3) -> None:
    def script(request: Request) -> Answer:
        reply = pages(request)
        reply.body = reply.body.replace(b"<Key>f0</Key>", b"<Key>elsewhere</Key>")
        return reply

    server.script = script
    listed = connector(server, "d").list_dir(b"")
    for _ in range(2):
        with pytest.raises(errors.OriginError, match="not below"):
            next(listed)
    wait_until(lambda: requested(server).count(0) == 2, "the page is requested again")
    assert set(requested(server)) <= {0, 1}


# ---- the replies, with a clock ----


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def source_and_replies(
    server: ScriptedS3,
) -> Iterator[tuple[PageReplies, Clock, list[errors.CacheFSError]]]:
    """Replies to a bucket's listing, and errors that its next requests raise."""
    found: S3Connector = connector(server)
    assert isinstance(found._http, S3Http)
    clock, raised = Clock(), list[errors.CacheFSError]()
    http = found._http

    def request(token: str) -> HttpRequest:
        if raised:
            raise raised.pop()
        return http.requests().list("", token, 1)

    server.script = pages
    yield PageReplies(http, request, "s3://bucket/", clock), clock, raised
    found.close()


Replies = tuple[PageReplies, Clock, list[errors.CacheFSError]]


def test_a_page_that_waited_for_long_is_requested_again(
    server: ScriptedS3, source_and_replies: Replies
) -> None:
    replies, clock, _ = source_and_replies
    replies.body("")
    replies.ask("1")
    wait_until(lambda: len(server.requests) == 2, "the page is requested ahead")
    clock.now += AHEAD_LIMIT_S + 1
    assert b"<Key>f1<" in replies.body("1")
    before = len(server.requests)
    assert before == 3
    replies.ask("2")  # the caller is slow: nothing is requested ahead any more
    assert b"<Key>f2<" in replies.body("2")
    assert len(server.requests) == before + 1


def test_a_page_ahead_for_another_token_is_dropped(source_and_replies: Replies) -> None:
    replies, _, _ = source_and_replies
    replies.body("")
    replies.ask("1")
    assert b"<Key>f3<" in replies.body("3")
    assert b"<Key>f1<" in replies.body("1")


def test_an_error_of_the_credentials_is_raised_for_the_page_itself(
    source_and_replies: Replies,
) -> None:
    replies, _, raised = source_and_replies
    replies.body("")
    raised.append(errors.CredentialsMissing("none"))
    replies.ask("1")
    assert b"<Key>f1<" in replies.body("1")
    raised.append(errors.CredentialsMissing("none"))
    with pytest.raises(errors.CredentialsMissing):
        replies.body("2")


# ---- the connections ----


def test_nothing_is_sent_without_a_kept_connection(raw: RawServer, source: ConnectionPool) -> None:
    assert source.send(get(raw, "/f/100"), "path") is None
    assert raw.connections == 0


def test_a_reply_that_comes_later_is_read(raw: RawServer, source: ConnectionPool) -> None:
    body = source.get(get(raw, "/f/100"), "path")
    assert b"".join(bytes(chunk) for chunk in body) == content("/f/100", 100)
    sent = source.send(get(raw, "/g/3000000"), "path")
    assert sent is not None
    later = b"".join(bytes(chunk) for chunk in source.receive(sent))
    assert later == content("/g/3000000", 3_000_000)
    assert raw.connections == 1


def test_a_kept_connection_that_the_server_closes_is_replaced(
    raw: RawServer, source: ConnectionPool
) -> None:
    def script(came: Came) -> bool:
        if came.number == 1:
            return False
        return answer(came)

    raw.script = script
    assert [*source.get(get(raw, "/f/100"), "path")]
    sent = source.send(get(raw, "/g/100"), "path")
    assert sent is not None
    found = b"".join(bytes(chunk) for chunk in source.receive(sent))
    assert found == content("/g/100", 100)
