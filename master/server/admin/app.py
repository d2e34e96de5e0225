"""The HTTP edge of the admin API: it passes requests to their routes, and encodes replies and
errors as JSON.

It refuses pages of other sites in a browser. A request that writes must declare a JSON body, for
which such a page needs a CORS permission that this server never gives. On loopback, requests must
name this machine as the host: another site may resolve its name to loopback (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
import struct
import urllib.parse
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from cachefs.core import admin as a
from cachefs.core.access import HEADER, Caller, token_of
from cachefs.core.errors import AccessDenied, CacheFSError, NotFound, ProtocolError, Throttled
from cachefs.core.message import DECODE_ERRORS
from cachefs.network.guard import is_loopback_name
from master.server.admin import openapi, routes
from master.server.admin.at import At, Backend, Reply
from master.server.admin.routes import Route
from master.server.http import Answer, read_body, status_of

log = logging.getLogger(__name__)

MOST_REQUESTS: Final = 128  # in flight; some wait seconds for all workers
MOST_STRANGERS: Final = 32  # whose secret is compared
STORE: Final = Caller("a store", may_write=False, may_join=False)  # with no right
_KEY: Final = re.compile("[!-~]{1,255}")
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_NEED_JSON: Final = ("POST", "PATCH", "PUT")

Authorize = Callable[[web.BaseRequest], Caller]


class Refused(CacheFSError):
    """A refused request, with the HTTP status and the headers of the reply."""

    code = "refused"

    def __init__(self, status: HTTPStatus, cause: str, remedy: str = "", **headers: str) -> None:
        super().__init__(cause, remedy=remedy)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Question(NamedTuple):
    route: Route
    params: dict[str, str]


class AdminApp:
    """The handler of requests below `API`. `backends` returns one per namespace; the first is the
    default. `authorize`: as `Guard.caller`. `on_loopback`: the app refuses other host names. It
    calls `on_failure(code)` for each failure, and `accepted(connection)` for one whose secret of a
    source was right."""

    def __init__(
        self,
        backends: Callable[[], Sequence[Backend]],
        authorize: Authorize,
        *,
        on_loopback: bool,
        on_failure: Callable[[str], None] = lambda code: None,
        accepted: Callable[[Hashable], None] = lambda connection: None,
    ) -> None:
        self._backends = backends
        self._authorize = authorize
        self._on_loopback = on_loopback
        self._on_failure = on_failure
        self._accepted = accepted
        self._in_flight: Counter[str] = Counter()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Returns the reply to a request; never raises."""
        try:
            return await self._answer(request)
        except Refused as err:
            return self._problem(err, err.status, err.headers)
        except CacheFSError as err:
            return self._problem(err, status_of(err))
        except (struct.error, OverflowError) as err:
            return self._problem(ProtocolError(f"a number is out of range: {err}"), 400)
        except Exception as err:  # the caller gets a reply in any case
            log.error("a request failed", exc_info=err)
            return self._problem(CacheFSError(f"internal error: {type(err).__name__}"), 500)

    @contextlib.contextmanager
    def _counted(self, kind: str, most: int) -> Iterator[None]:
        """Counts a request of a kind in flight. Raises Throttled for more than `most`."""
        if self._in_flight[kind] >= most:
            raise Throttled(f"{most} requests are under way", remedy="ask again")
        self._in_flight[kind] += 1
        try:
            yield
        finally:
            self._in_flight[kind] -= 1

    def _problem(
        self, err: CacheFSError, status: int, headers: dict[str, str] | None = None
    ) -> web.Response:
        code = AccessDenied.code if status == HTTPStatus.UNAUTHORIZED else err.code
        self._on_failure(code)
        problem = a.Problem(int(status), code, err.cause, err.remedy, err.path, err.request_id)
        return Answer(
            body=msgspec.json.encode(problem),
            status=int(status),
            content_type=a.PROBLEM_TYPE,
            headers={**_HEADERS, **(headers or {})},
        )

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self._check_host(request)
        if request.rel_url.raw_path == a.OPENAPI_PATH and request.method in ("GET", "HEAD"):
            return _json(openapi.text(), 200)  # the same for every cluster: needs no token
        asked = _question(request)
        at = await self._admitted(request, asked)
        with contextlib.ExitStack() as unless_answered:
            unless_answered.callback(asked.route.refused, at)
            with self._counted("admitted", MOST_REQUESTS):
                data = await self._body(request, asked.route.max_body_bytes)
                at = dataclasses.replace(at, body=_decoded(data, asked.route))
                reply = _reply(await asked.route.handler(at))
            unless_answered.pop_all()
        return reply

    async def _admitted(self, request: web.BaseRequest, asked: Question) -> At:
        """Returns the request without its body, which is read for a caller with a right only.
        Strangers have their own limit, and take no place of others."""
        admit = asked.route.admit
        caller = STORE if admit is not None else self._caller(request)
        query = _query(request, asked.route)
        backends = self._backends()
        at = At(
            _backend(backends, getattr(query, "namespace", None)),
            [one.namespace.hex() for one in backends],
            caller,
            _params(asked),
            query,
            None,
            _key(request),
            token_of(request.headers.get(HEADER)) if admit is not None else "",
        )
        if admit is not None:
            with self._counted("stranger", MOST_STRANGERS):
                await admit(at)
            self._accepted(request.protocol)
        return at

    def _check_host(self, request: web.BaseRequest) -> None:
        if self._on_loopback and not is_loopback_name(request.headers.get("Host", "")):
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is reached by names of its own machine only",
                "ask it as 127.0.0.1 or localhost",
            )

    def _caller(self, request: web.BaseRequest) -> Caller:
        try:
            return self._authorize(request)
        except AccessDenied as err:
            raise Refused(
                HTTPStatus.UNAUTHORIZED, err.cause, err.remedy, WWW_Authenticate="Bearer"
            ) from err

    async def _body(self, request: web.BaseRequest, most_bytes: int) -> bytes:
        if request.method not in _NEED_JSON:
            return b""
        if request.content_type != a.JSON_TYPE:
            raise Refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "a request that writes says that its body is JSON",
                f"send Content-Type: {a.JSON_TYPE}",
            )
        if (request.content_length or 0) > most_bytes:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of more than {most_bytes} bytes"
            )
        return await read_body(request, most_bytes)


def _question(request: web.BaseRequest) -> Question:
    """Returns the route of a request, and its path's parameters. Raises NotFound, or Refused for a
    method that the page does not have."""
    found = _routes(request.rel_url.raw_path)
    if not found:
        raise NotFound("no such page", path=request.path, remedy=f"see {a.OPENAPI_PATH}")
    for route, params in found:
        if route.method == request.method:
            return Question(route, params)
    allowed = ", ".join(dict.fromkeys(route.method for route, _ in found))
    raise Refused(
        HTTPStatus.METHOD_NOT_ALLOWED, f"this page has no {request.method}", Allow=allowed
    )


@functools.lru_cache(maxsize=256)
def _routes(raw_path: str) -> list[tuple[Route, dict[str, str]]]:
    """Returns the routes of a path with their parameters, which the callers only read."""
    segments = [
        urllib.parse.unquote(part, errors="replace")
        for part in raw_path.removeprefix(a.API).split("/")[1:]
    ]
    if segments and not segments[-1]:
        segments.pop()
    return routes.find(segments)


def _params(asked: Question) -> Any:
    try:
        return msgspec.convert(asked.params, asked.route.params, strict=False)
    except (msgspec.ValidationError, ValueError) as err:
        raise NotFound(f"no such thing: {err}") from err


def _query(request: web.BaseRequest, route: Route) -> Any:
    given: dict[str, str] = {}
    for name, value in request.rel_url.query.items():
        if name in given:
            raise ProtocolError(f"the parameter {name!r} is given twice")
        given[name] = value
    try:
        return msgspec.convert(given, route.query, strict=False)
    except (msgspec.ValidationError, ValueError) as err:
        raise ProtocolError(f"a parameter is not as it should be: {err}") from err


def _decoded(data: bytes, route: Route) -> Any:
    if route.body is None:
        return None
    try:
        empty = b"{}" if route.body is a.Nothing else b""
        return msgspec.json.decode(data or empty, type=route.body)
    except DECODE_ERRORS as err:
        raise ProtocolError(f"the body is not as it should be: {err}") from err


def _key(request: web.BaseRequest) -> str:
    key = request.headers.get(a.KEY_HEADER, "")
    if key and not _KEY.fullmatch(key):
        raise ProtocolError(f"{a.KEY_HEADER} has 1 to 255 ASCII characters and no spaces")
    return key


def _backend(backends: Sequence[Backend], namespace: str | None) -> Backend:
    for backend in backends:
        if namespace in (None, backend.namespace.hex()):
            return backend
    raise NotFound("no such namespace here", remedy=f"GET {a.API} names them")


def _reply(found: Any) -> web.Response:
    reply = found if isinstance(found, Reply) else Reply(found, 200)
    headers = {"Location": reply.location} if reply.location else {}
    if reply.answer is None:
        return web.Response(status=reply.status, headers={**_HEADERS, **headers})
    return _json(msgspec.json.encode(reply.answer), reply.status, headers)


def _json(body: bytes, status: int, headers: dict[str, str] | None = None) -> web.Response:
    return Answer(
        body=body,
        status=status,
        content_type=a.JSON_TYPE,
        headers={**_HEADERS, **(headers or {})},
    )
