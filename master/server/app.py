"""The master's HTTP server: calls, the admin API, metrics and a liveness page.

    POST /v1/call   msgpack of one `Call` -> msgpack of one `Answer`; a `Failure` with 4xx or 5xx
    /api/v1/…       JSON, see `cachefs.core.admin`
    GET /metrics    Prometheus
    GET /healthz    200 while the event loop runs; needs no token

The server translates errors into `Failure` (the wire edge). It bounds the idle time of connections,
the size of calls and replies, the calls in flight, and the time of a reply.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)

from cachefs.core import cluster as c
from cachefs.core.access import Caller, check_listen, is_loopback, permit_metrics
from cachefs.core.addresses import ALIVE_PATH
from cachefs.core.admin import API
from cachefs.core.errors import CacheFSError, DeadlineExceeded, ProtocolError, Throttled
from cachefs.core.messages import Message, failure_of
from cachefs.core.placement import View
from cachefs.network.error_causes import cannot_listen
from cachefs.network.guard import (
    CALL_TYPE,
    Authorize,
    Guard,
    GuardedServer,
    GuardedSite,
    RefusedRequest,
)
from master.mounts import OpenConnector
from master.namespace import Master
from master.server.admin.app import AdminApp
from master.server.admin.at import Backend, Peers
from master.server.alarm_metrics import AlarmCollector
from master.server.call_metrics import CallMetrics
from master.server.calls import Calls
from master.server.http import Answer, read_body, status_of
from master.server.members import Members
from master.server.metrics import MasterCollector

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 2048  # calls; the server refuses more, and queues none
ANSWER_S: Final = 140.0  # a backstop: requests to origins have their own deadlines
MAX_LINE_BYTES: Final = 64 << 10  # of the request line and of a header
IDLE_S: Final = 75.0  # of a connection
BACKLOG: Final = 1024
STOP_S: Final = 2.0  # the wait for calls in flight

METRICS_PATH: Final = "/metrics"
_WAITING: Final = (c.GetEvents, c.GetView, c.Work)


class MasterServer:
    """The server of one master on one address. The caller closes `master` after `stop`."""

    def __init__(
        self,
        master: Master,
        *,
        listen: tuple[str, int],
        open_connector: OpenConnector,
        authorize: Authorize | None = None,
        ssl_context: ssl.SSLContext | None = None,
        registry: CollectorRegistry | None = None,
        peers: Peers | None = None,
        clock: Callable[[], float] = time.monotonic,
        lost_after_s: float = c.LOST_AFTER_S,
        certificate: dict[str, Any] | None = None,
    ) -> None:
        """Reads the membership. `listen`: host ("": every address) and port (0: any free one).
        `authorize` returns the caller of an `Authorization` header or raises AccessDenied. If it is
        None, processes of this user and of root have all rights, on loopback only. A thread calls
        `open_connector` to open a source that an operator adds. `peers` sends the admin API's
        requests to workers. `certificate` is part of the status. Raises BadConfig."""
        if authorize is None:
            check_listen(listen[0], has_tokens=False)
        self._listen = listen
        self._ssl = ssl_context
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._guard = Guard(authorize, on_loopback=is_loopback(listen[0]), most=most)
        self._tally = CallMetrics()
        self._encoder = _Encoder()
        self.members = Members(master.store, clock, lost_after_s, master.run.set_back)
        self._calls = Calls(master, self.members, open_connector, certificate or {})
        self._registry = registry or CollectorRegistry()
        if registry is None:
            ProcessCollector(registry=self._registry)
        self._registry.register(MasterCollector(self._calls.status, self._tally))
        self._registry.register(AlarmCollector(self._calls.health_facts))
        self._runner: web.ServerRunner | None = None
        backend = Backend(
            master.namespace,
            self._ask,
            self._calls.sources.admit_store,
            master.mounts.lose_events,
            self.members,
            peers,
        )
        self._admin = AdminApp(
            lambda: [backend],
            self._guard.caller,
            on_loopback=self._guard.on_loopback,
            on_failure=self._tally.failed,
            accepted=self._guard.strangers.forget,
        )

    async def start(self) -> int:
        """Binds the address, starts to serve, and returns the port. Raises BadConfig if the
        address cannot be bound."""
        server = GuardedServer(
            self._handle, self._guard, keepalive_timeout=IDLE_S, max_line_size=MAX_LINE_BYTES
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=STOP_S)
        await self._runner.setup()
        host, port = self._listen
        site = GuardedSite(self._runner, host, port, ssl_context=self._ssl, backlog=BACKLOG)
        try:
            await site.start()
        except OSError as err:
            await self._runner.cleanup()
            raise cannot_listen(f"{host}:{port}", err) from err
        self.members.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Ends long polls and walks, waits for calls in flight, closes connections. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in [*runner.sites]:
            await site.stop()
        await self._calls.close()
        await self.members.close()
        deadline = time.monotonic() + STOP_S
        while self._tally.in_flight and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await runner.cleanup()

    @property
    def in_flight(self) -> int:
        """The number of calls in flight, without long polls."""
        return self._tally.in_flight

    @property
    def polls(self) -> int:
        """The number of long polls."""
        return self._calls.queues()["polls"]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == c.CALL_PATH and request.method == "POST":
            return await self._call(request)
        if request.path == API or request.path.startswith(f"{API}/"):
            return await self._admin.handle(request)
        try:
            return self._page(request)
        except RefusedRequest as err:
            return web.Response(status=err.status, text=err.one_line() + "\n")

    def _page(self, request: web.BaseRequest) -> web.Response:
        """Returns the liveness page, the metrics or a 404. Raises RefusedRequest."""
        self._guard.check_host(request)
        if request.path == ALIVE_PATH:
            return web.Response(text="ok\n")
        if request.path == METRICS_PATH:
            return self._metrics(request)
        return web.Response(status=404, text="no such page\n")

    def _metrics(self, request: web.BaseRequest) -> web.Response:
        try:
            permit_metrics(self._guard.caller(request))
        except CacheFSError as err:
            return web.Response(status=403, text=err.one_line() + "\n")
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _call(self, request: web.BaseRequest) -> web.Response:
        try:
            self._guard.check_call(request)
            caller = self._guard.caller(request)
            call = c.decode_call(await read_body(request, c.MAX_CALL_BYTES))
            body = self._encoder.encode(await self._ask(call, caller))
        except CacheFSError as err:
            return self._failed(err)
        except (struct.error, OverflowError) as err:  # a number that fits no key of the store
            return self._failed(ProtocolError(f"a number is out of range: {err}"))
        except Exception as err:  # the caller gets a reply in any case
            log.error("a call failed", exc_info=err)
            return self._failed(CacheFSError(f"internal error: {type(err).__name__}"))
        return Answer(body=body, content_type=CALL_TYPE)

    async def _ask(self, call: c.Call, caller: Caller) -> Message:
        """Returns the reply to a call, and counts it. Raises the typed errors."""
        began = time.monotonic()
        answer = self._calls.answer_nowait(call, caller)
        if answer is None:
            answer = await self._answer_later(call, caller)
        took_s = None if isinstance(call, _WAITING) else time.monotonic() - began
        self._tally.answered(type(call).__name__, took_s)
        return answer

    async def _answer_later(self, call: c.Call, caller: Caller) -> Message:
        """Returns the reply to a call that must wait. `Calls` bounds the long polls."""
        if isinstance(call, _WAITING):
            return await self._answer_in_time(call, caller)
        if self._tally.in_flight >= MAX_IN_FLIGHT:
            raise Throttled(f"{MAX_IN_FLIGHT} calls are under way")
        self._tally.in_flight += 1
        try:
            return await self._answer_in_time(call, caller)
        finally:
            self._tally.in_flight -= 1

    async def _answer_in_time(self, call: c.Call, caller: Caller) -> Message:
        """Returns the reply, or raises DeadlineExceeded after `ANSWER_S`. Shielded work continues;
        the caller can repeat the call."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._calls.answer(call, caller)
        except TimeoutError as err:
            raise DeadlineExceeded(f"no answer within {ANSWER_S:g} s") from err

    def _failed(self, err: CacheFSError) -> web.Response:
        self._tally.failed(err.code)
        body = c.encode(failure_of(err))
        return web.Response(status=status_of(err), body=body, content_type=CALL_TYPE)


class _Encoder:
    """The encoder of replies. It encodes a reply with a view once for all workers."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._beaten: dict[bool, bytes] = {}  # by `draining`

    def encode(self, answer: Message) -> bytes:
        """Returns the encoded reply. Raises ProtocolError if it is too large."""
        if isinstance(answer, c.Beaten) and answer.view is not None:
            return self._with_view(answer, answer.view)
        body = c.encode(answer)
        if len(body) > c.MAX_ANSWER_BYTES:
            raise ProtocolError(f"an answer of {len(body)} bytes; ask for less")
        return body

    def _with_view(self, answer: c.Beaten, view: View) -> bytes:
        if view is not self._view:
            self._view, self._beaten = view, {}
        body = self._beaten.get(answer.draining)
        if body is None:
            body = self._beaten[answer.draining] = c.encode(answer)
        return body
