"""The API server's replies become objects or typed errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from cachefs.core import errors
from cachefs.kube.api import KubeApi, error_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Account:
    """An account whose token is renewed when it is read again."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.tokens = ["old", "new"]

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[0]}"}

    def forget(self) -> None:
        self.tokens.pop(0)


def run(handler: Handler, work: Callable[[KubeApi], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        async with TestServer(app) as server, ClientSession() as session:
            account: Any = Account(str(server.make_url("")).rstrip("/"))
            return await work(KubeApi(account, session))

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.InUse),
        (409, "Conflict", errors.Stale),
        (403, "Forbidden", errors.AccessDenied),
        (422, "Invalid", errors.BadConfig),
        (429, "TooManyRequests", errors.Throttled),
        (503, "ServiceUnavailable", errors.Unavailable),
        (302, "", errors.ProtocolError),
    ],
)
def test_a_failure_has_a_type_and_the_servers_words(
    status: int, reason: str, kind: type[errors.CacheFSError]
) -> None:
    body = f'{{"reason": "{reason}", "message": "its words"}}'.encode()
    found = error_of(status, body, "/p")
    assert (type(found), found.cause) == (kind, "its words")
    assert type(error_of(502, b"<html>", "/p")) is errors.Unavailable


def test_a_list_has_all_pages() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/namespaces/ml/pods"
        after = int(request.query.get("continue") or 0)
        more = {"continue": str(after + 1)} if after < 2 else {}
        return web.json_response({"metadata": more, "items": [{"n": after}]})

    async def work(api: KubeApi) -> list[Any]:
        return [one["n"] async for one in api.list("Pod", "ml")]

    assert run(handler, work) == [0, 1, 2]


def test_a_renewed_token_is_used_once_more() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        is_new = request.headers["Authorization"] == "Bearer new"
        return web.json_response({"a": 1} if is_new else {}, status=200 if is_new else 401)

    assert run(handler, lambda api: api.get("Dataset", ("ml", "one"))) == {"a": 1}


def test_a_server_that_does_not_answer_is_unreachable() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with pytest.raises(errors.Unreachable):
        run(handler, lambda api: api.get("Pod", ("ml", "one")))


def test_an_object_that_is_not_there_is_none() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "no"}, status=404)

    assert run(handler, lambda api: api.find("Lease", ("ml", "one"))) is None
    assert run(handler, lambda api: api.is_served("Dataset")) is False
