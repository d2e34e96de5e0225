"""The admin API of a fake master: the real routes over scripted answers to calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from cachefs.client.http import HttpClient
from cachefs.core import admin as a
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import EVERYTHING, Caller
from cachefs.core.errors import AccessDenied, CacheFSError
from cachefs.core.model import NamespaceId
from cachefs.core.placement import View
from cachefs.core.specs import Security
from master.server.admin import routes
from master.server.admin.at import At, Backend, Reply
from master.server.http import status_of

NAMESPACE = NamespaceId(b"n" * 16)
OF_WORKERS = ("/usage", "/free", "/locations", "/health")  # pages that look at the workers
Ask = Callable[[m.Message], m.Message]


class Page(NamedTuple):
    status: int
    kind: str
    body: bytes


class Workers:
    """As the script says that they are, asked at their addresses."""

    def __init__(self, table: c.WorkerTable | None) -> None:
        self._table = table or c.WorkerTable(View(0), [])

    @property
    def view(self) -> View:
        return self._table.view

    def rows(self) -> list[c.WorkerRow]:
        return self._table.rows

    async def ask(self, url: str, call: c.Have | c.Drop) -> c.Answer:
        with HttpClient(url, Security()) as worker:
            answer: c.Answer = worker.call(call, c.Had if isinstance(call, c.Have) else c.Dropped)
            return answer


def answer(method: str, target: str, body: bytes, key: str, ask: Ask) -> Page:
    """`ask` answers calls, by a Failure too."""
    url = urlsplit(target)
    segments = [unquote(part) for part in url.path.removeprefix(a.API).split("/")[1:]]
    (found,) = [one for one in routes.find(segments) if one[0].method == method]
    route, params = found

    async def ask_later(call: Any, caller: Caller) -> m.Message:
        return ask(call)

    async def admit_nobody(path: bytes, secret: str) -> None:
        raise AccessDenied("no source accepts events")

    table = ask(c.ListWorkers()) if url.path.endswith(OF_WORKERS) else None
    workers = Workers(table if isinstance(table, c.WorkerTable) else None)
    at = At(
        Backend(NAMESPACE, ask_later, admit_nobody, lambda path: None, workers, workers),
        [NAMESPACE.hex()],
        EVERYTHING,
        msgspec.convert(params, route.params, strict=False),
        msgspec.convert(dict(parse_qsl(url.query)), route.query, strict=False),
        None if route.body is None else msgspec.json.decode(body, type=route.body),
        key,
    )
    try:
        reply = asyncio.run(_run(route.handler(at)))
    except CacheFSError as err:
        problem = a.Problem(
            status_of(err), err.code, err.cause, err.remedy, err.path, err.request_id
        )
        return Page(problem.status, a.PROBLEM_TYPE, msgspec.json.encode(problem))
    if not isinstance(reply, Reply):
        reply = Reply(reply, 200)
    data = b"" if reply.answer is None else msgspec.json.encode(reply.answer)
    return Page(reply.status, a.JSON_TYPE, data)


async def _run(work: Any) -> Any:
    return await work
