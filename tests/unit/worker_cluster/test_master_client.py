"""Calls of a master over real connections: what is tried again, what is an answer, what the errors
are, and when a master counts as down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import HEADER, NOT_KNOWN, header_of
from cachefs.core.addresses import ALIVE_PATH
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    ProtocolError,
    Stale,
    Throttled,
    Unreachable,
)
from cachefs.core.model import NamespaceId
from tests.unit.worker_cluster.fake_master import run, until
from worker.membership.master_client import CONNECTIONS, MasterClient, MasterUnreachable

GREETED = c.encode(c.Greeted(NamespaceId(b"n" * 16)))
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers calls by a script, one handler for each request in turn, the last one for ever."""

    def __init__(self, *handlers: Answer) -> None:
        self.handlers = [*handlers]
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.alive: Answer = reply(b"ok")
        self.probes = 0
        self.url = ""
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((dict(request.headers), await request.read()))
        handler = self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0]
        return await handler(request)

    async def probe(self, request: web.Request) -> web.StreamResponse:
        self.probes += 1
        return await self.alive(request)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Server]:
        app = web.Application()
        app.router.add_post(c.CALL_PATH, self.handle)
        app.router.add_get(ALIVE_PATH, self.probe)
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            yield self
        finally:
            await runner.cleanup()


@asynccontextmanager
async def connected(url: str, **options: str) -> AsyncIterator[MasterClient]:
    client = MasterClient(url, jitter=lambda: 0.0, **options)
    try:
        yield client
    finally:
        await client.close()


def reply(body: bytes = GREETED, status: int = 200) -> Answer:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status)

    return handler


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


def test_a_call_is_answered_and_carries_the_token() -> None:
    async def script() -> None:
        async with (
            Server(reply()).listening() as server,
            connected(server.url, token={HEADER: header_of("secret")}) as client,
        ):
            greeted = await client.ask(c.Greeting("1.0"), c.Greeted)
            assert greeted.namespace == b"n" * 16
            ((headers, body),) = server.requests
            assert headers[HEADER] == "Bearer secret"
            assert c.decode_call(body) == c.Greeting("1.0")

    run(script())


def test_a_failure_is_the_masters_answer_and_is_not_asked_again() -> None:
    async def script() -> None:
        for failure, status in (
            (m.Failure("stale", "gone", path="a/b"), 409),
            (m.Failure("unreachable", "the origin is down"), 503),
        ):
            handler = reply(c.encode(failure), status)
            async with Server(handler).listening() as server, connected(server.url) as client:
                with pytest.raises((Stale, Unreachable)) as caught:
                    await client.ask(c.Greeting(), c.Greeted)
                assert caught.value.cause == failure.cause
                assert not isinstance(caught.value, MasterUnreachable)
                assert len(server.requests) == 1
                assert not client.down

    run(script())


@pytest.mark.parametrize("broken", [cut, reply(b"Bad Gateway", 502), reply(b"", 429)])
def test_a_broken_connection_is_tried_again(broken: Answer) -> None:
    async def script() -> None:
        async with (
            Server(broken, broken, broken, reply()).listening() as server,
            connected(server.url) as client,
        ):
            assert await client.ask(c.Greeting(), c.Greeted)
            assert client.counters == {"calls": 1, "retries": 3, "unreachable": 3}
            assert not client.down

    run(script())


def test_a_busy_master_is_asked_again_and_is_not_down() -> None:
    async def script() -> None:
        busy = reply(c.encode(m.Failure("throttled", "too much")), 429)
        async with (
            Server(busy, busy, busy, reply()).listening() as server,
            connected(server.url) as client,
        ):
            assert await client.ask(c.Greeting(), c.Greeted)
            assert len(server.requests) == 4
            assert not client.down
        async with Server(busy).listening() as server, connected(server.url) as client:
            with pytest.raises(Throttled):
                await client.ask(c.Greeting(), c.Greeted, reach_s=0.01)

    run(script())


def test_a_token_that_is_replaced_at_this_moment_is_presented_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.membership.master_client.TOKEN_PAUSE_S", 0.001)

    async def script() -> None:
        refused = reply(c.encode(m.Failure("access-denied", NOT_KNOWN)), 403)
        async with Server(refused).listening() as server, connected(server.url) as client:
            with pytest.raises(AccessDenied):
                await client.ask(c.Greeting(), c.Greeted)
            assert len(server.requests) == 1, "it was never accepted"
            server.handlers = [reply(), refused, refused, reply(), refused]
            for _ in range(2):
                assert await client.ask(c.Greeting(), c.Greeted)
            monkeypatch.setattr("worker.membership.token_skew.SKEW_S", 0.05)
            for _ in range(2):
                with pytest.raises(AccessDenied):
                    await client.ask(c.Greeting(), c.Greeted)
            asked = len(server.requests)
            with pytest.raises(AccessDenied):
                await client.ask(c.Greeting(), c.Greeted)
            assert len(server.requests) == asked + 1, "it was withdrawn"

    run(script())


def test_one_attempt_where_the_caller_wants_one() -> None:
    async def script() -> None:
        async with Server(cut).listening() as server, connected(server.url) as client:
            with pytest.raises(MasterUnreachable) as caught:
                await client.ask(c.Greeting(), c.Greeted, reach_s=0)
            assert "if it speaks TLS" in caught.value.remedy, "as a server of TLS does"
            assert len(server.requests) == 1
            assert not client.down, "an idle connection may have been closed"
            with pytest.raises(MasterUnreachable):
                await client.ask(c.Greeting(), c.Greeted, reach_s=0)
            assert client.down

    run(script())


def test_a_master_that_comes_back_answers_who_waited() -> None:
    async def script() -> None:
        server = Server(reply())
        async with server.listening():
            pass  # a port that nobody listens on
        async with connected(server.url) as client:
            with pytest.raises(MasterUnreachable):
                await client.ask(c.Greeting(), c.Greeted, reach_s=0.01)
            waiting = asyncio.ensure_future(client.ask(c.Greeting(), c.Greeted))
            await until(lambda: client.down)
            async with server.listening():
                assert await waiting
                assert not client.down

    run(script())


def test_an_answer_that_does_not_come_has_its_time() -> None:
    async def script() -> None:
        async with Server(hang).listening() as server, connected(server.url) as client:
            with pytest.raises(MasterUnreachable, match="no answer to Greeting"):
                await client.ask(c.Greeting(), c.Greeted, answer_s=0.01, reach_s=0)

    run(script())


def test_nobody_waits_long_for_a_master_that_others_find_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.membership.master_client.LOOK_S", 0.001)

    async def script() -> None:
        async with Server(hang).listening() as server, connected(server.url) as client:
            waiting = asyncio.ensure_future(
                client.ask(c.Greeting(), c.Greeted, answer_s=1000, reach_s=0.02)
            )
            await until(lambda: bool(server.requests))
            await asyncio.sleep(0.04)
            assert not waiting.done(), "it may only be slow"
            for _ in range(2):
                with pytest.raises(MasterUnreachable):
                    await client.ask(c.Greeting(), c.Greeted, answer_s=0.001, reach_s=0)
            with pytest.raises(MasterUnreachable):
                await waiting

    run(script())


def test_a_question_finds_out_that_a_master_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other call fails meanwhile."""
    monkeypatch.setattr("worker.membership.master_client.LOOK_S", 0.001)
    monkeypatch.setattr("worker.membership.master_client.PROBE_S", 0.01)

    async def script() -> None:
        server = Server(hang)
        server.alive = hang
        async with server.listening(), connected(server.url) as client:
            with pytest.raises(MasterUnreachable):
                await client.ask(c.Greeting(), c.Greeted, answer_s=1000, reach_s=0.02)
            assert client.down
            server.handlers = [reply()]
            await client.ask(c.Greeting(), c.Greeted)
            assert not client.down

    run(script())


def test_a_master_that_waits_for_an_origin_is_not_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.membership.master_client.LOOK_S", 0.001)

    async def script() -> None:
        async with Server(hang).listening() as server, connected(server.url) as client:
            waiting = asyncio.ensure_future(
                client.ask(c.Greeting(), c.Greeted, answer_s=1000, reach_s=0.02)
            )
            await until(lambda: bool(server.probes))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert not client.down
            assert server.probes == 1, "a master that was heard of is not probed again"
            waiting.cancel()

    run(script())


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (reply(b"<html>", 200), ProtocolError),
        (reply(b"no", 401), AccessDenied),
        (reply(b"no", 403), AccessDenied),
        (reply(b"no", 404), ProtocolError),
        (reply(c.encode(m.Done())), ProtocolError),
        (reply(b"x" * 1001), ProtocolError),
    ],
)
def test_what_is_no_answer_is_told_apart(
    handler: Answer, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c, "MAX_ANSWER_BYTES", 1000)

    async def script() -> None:
        async with Server(handler).listening() as server, connected(server.url) as client:
            with pytest.raises(error):
                await client.ask(c.Greeting(), c.Greeted)
            assert len(server.requests) == 1

    run(script())


def test_a_body_without_a_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "MAX_ANSWER_BYTES", 1000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 100)
        return response

    async def script() -> None:
        async with Server(endless).listening() as server, connected(server.url) as client:
            with pytest.raises(ProtocolError, match="exceeds"):
                await client.ask(c.Greeting(), c.Greeted)

    run(script())


def test_what_speaks_no_tls_says_where_to_look() -> None:
    async def script() -> None:
        async with Server(reply()).listening() as server:
            url = server.url.replace("http:", "https:")
            async with connected(url) as client:
                with pytest.raises(MasterUnreachable) as caught:
                    await client.ask(c.Greeting(), c.Greeted, reach_s=0)
                assert "--tls-ca" in caught.value.remedy

    run(script())


def test_nobody_is_sent_elsewhere_with_a_token() -> None:
    async def script() -> None:
        async with Server(reply()).listening() as other:

            async def elsewhere(request: web.Request) -> web.StreamResponse:
                raise web.HTTPTemporaryRedirect(other.url + c.CALL_PATH)

            async with Server(elsewhere).listening() as server, connected(server.url) as client:
                with pytest.raises(ProtocolError):
                    await client.ask(c.Greeting(), c.Greeted)
            assert not other.requests

    run(script())


def test_after_the_end_no_call_is_made() -> None:
    async def script() -> None:
        async with Server(hang).listening() as server, connected(server.url) as client:
            waiting = asyncio.ensure_future(client.ask(c.Greeting(), c.Greeted))
            await until(lambda: bool(server.requests))
            await client.close()
            for ask in (waiting, client.ask(c.Greeting(), c.Greeted)):
                with pytest.raises(MasterUnreachable):
                    await ask

    run(script())


def test_a_master_is_named_by_an_address() -> None:
    async def script() -> None:
        assert MasterClient("127.0.0.1:7").url == "http://127.0.0.1:7"
        assert MasterClient("https://host").url == "https://host:19998"
        with pytest.raises(BadConfig):
            MasterClient("ftp://host:1")

    run(script())


def test_listings_that_wait_for_an_origin_hold_up_neither_heartbeats_nor_names() -> None:
    """However many of them: a worker that only waits is not lost."""

    async def script() -> None:
        waiting, most = 0, CONNECTIONS["listings"]

        async def handler(request: web.Request) -> web.StreamResponse:
            nonlocal waiting
            if isinstance(c.decode_call(await request.read()), m.ListDir | c.ListNext):
                waiting += 1
                await asyncio.Event().wait()
            return web.Response(body=GREETED)

        async with Server(handler).listening() as server, connected(server.url) as client:
            namespace = NamespaceId(b"n" * 16)
            questions: list[c.Call] = [m.ListDir(namespace, 1), c.ListNext(namespace, 1)] * most
            listings = [
                asyncio.ensure_future(client.ask(question, m.Message)) for question in questions
            ]
            await until(lambda: waiting >= most)
            for call in (c.Heartbeat("w", 1), m.GetAttr(namespace, 2)):
                await client.ask(call, c.Greeted, answer_s=5, reach_s=0)
            assert waiting == most
            for listing in listings:
                listing.cancel()
            await asyncio.gather(*listings, return_exceptions=True)

    run(script())
