"""Checks of requests to an HTTP server of the cluster, before they are answered.

On loopback a server accepts only host names of this machine, against DNS rebinding by a web page. A
call must have the content type msgpack, which a page of another site cannot send without CORS
permission. A server without tokens answers only processes of its user and of root.
"""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from cachefs.core.access import EVERYTHING, HEADER, Caller, is_loopback
from cachefs.core.errors import AccessDenied, ProtocolError
from cachefs.network.socket_owners import check_caller
from cachefs.network.unauthenticated import UNAUTHENTICATED_TIMEOUT_S, UnauthenticatedConnections

CALL_TYPE: Final = "application/msgpack"

Authorize = Callable[[str | None], Caller]


class RefusedRequest(ProtocolError):
    """A refused request for which HTTP has a status."""

    def __init__(self, status: HTTPStatus, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy=remedy)
        self.status = int(status)


class Guard:
    """The checks of one server with at most `most` connections. `authorize`: returns the caller for
    a header `Authorization`; None: no tokens. `on_loopback`: only this machine reaches it."""

    def __init__(self, authorize: Authorize | None, *, on_loopback: bool, most: int) -> None:
        self.on_loopback = on_loopback
        self.most = most
        self.strangers = UnauthenticatedConnections(most)
        self._authorize = authorize
        self._checked: set[Hashable] = set()  # connections whose user was checked

    def check_host(self, request: web.BaseRequest) -> None:
        """Raises RefusedRequest for a foreign `Host` on loopback."""
        if self.on_loopback and not is_loopback_name(request.headers.get("Host", "")):
            raise RefusedRequest(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server is reached by names of its own machine only",
                "ask it as 127.0.0.1 or localhost",
            )

    def check_call(self, request: web.BaseRequest) -> None:
        """Raises RefusedRequest as `check_host`, and for a body that is not msgpack."""
        self.check_host(request)
        if request.content_type != CALL_TYPE and not self._is_old_worker(request):
            raise RefusedRequest(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "the content type of a call is msgpack",
                f"send Content-Type: {CALL_TYPE}",
            )

    def _is_old_worker(self, request: web.BaseRequest) -> bool:
        """Returns whether a call has no content type but a valid token, which no page of another
        site can send. Workers of earlier versions report corruption this way."""
        if self._authorize is None or "Content-Type" in request.headers:
            return False
        try:
            self._authorize(request.headers.get(HEADER))
        except AccessDenied:
            return False
        return True

    def caller(self, request: web.BaseRequest) -> Caller:
        """Returns the caller. Raises AccessDenied."""
        if self._authorize is not None:
            caller = self._authorize(request.headers.get(HEADER))
        else:
            self._check_user(request)
            caller = EVERYTHING
        self.strangers.forget(request.protocol)
        return caller

    def ended(self, connection: Hashable) -> None:
        """Forgets a closed connection."""
        self.strangers.forget(connection)
        self._checked.discard(connection)

    def _check_user(self, request: web.BaseRequest) -> None:
        """Raises AccessDenied. Checks a connection once, as its owner cannot change."""
        transport, connection = request.transport, request.protocol
        if connection in self._checked:
            return
        ends = [transport.get_extra_info(end) if transport else None for end in _ENDS]
        check_caller(*(end or ("", 0) for end in ends))
        self._checked.add(connection)


_ENDS: Final = ("sockname", "peername")


@functools.lru_cache(maxsize=64)
def is_loopback_name(host: str) -> bool:
    """Returns whether the value of a header `Host` is a name of this machine's loopback."""
    return is_loopback(host.rpartition(":")[0] if re.search(r":\d*$", host) else host)


class GuardedServer(web.Server):
    """An HTTP server with a limit of connections. Beyond it, it closes the oldest unauthenticated
    connection, which may be the new one. It decompresses no body: a stranger's small request would
    occupy the event loop for seconds."""

    def __init__(self, handler: Any, guard: Guard, **options: Any) -> None:
        super().__init__(handler, access_log=None, auto_decompress=False, **options)
        self._guard = guard
        self._count = 0  # `connections` would copy them all

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._count += 1
        self._guard.strangers.came(handler, transport)
        if self._count > self._guard.most:
            self._guard.strangers.close_oldest()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        self._count -= 1
        self._guard.ended(handler)
        super().connection_lost(handler, exc)


class GuardedSite(web.TCPSite):
    """An address of a `GuardedServer`. `UNAUTHENTICATED_TIMEOUT_S` also limits a TLS handshake."""

    def __init__(self, runner: web.ServerRunner, host: str, port: int, **options: Any) -> None:
        super().__init__(runner, host or None, port, **options)
        self._address = host or None, port

    async def start(self) -> None:
        """Raises OSError."""
        await web.BaseSite.start(self)
        context: ssl.SSLContext | None = self._ssl_context
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            server,
            *self._address,
            ssl=context,
            backlog=self._backlog,
            ssl_handshake_timeout=UNAUTHENTICATED_TIMEOUT_S if context is not None else None,
        )
