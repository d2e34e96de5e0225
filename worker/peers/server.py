"""The HTTP server of a node: pages for other workers, calls of workers and operators, metrics.

Cached pages are served in any epoch. Only an owner of a block (or its stand-in) fills missing
pages, so that each byte is read from an origin once. All waits are bounded, and so are the requests
in flight, in total and for each address.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientPayloadError, web

from cachefs.core import access
from cachefs.core import cluster as c
from cachefs.core.addresses import ALIVE_PATH
from cachefs.core.errors import (
    AccessDenied,
    BadBody,
    CacheFSError,
    DeadlineExceeded,
    NoSpace,
    NotFound,
    OriginError,
    ProtocolError,
    Stale,
    Throttled,
    Unavailable,
    Unreachable,
)
from cachefs.core.messages import Done, failure_of
from cachefs.core.model import ContentId, Origin
from cachefs.network.guard import (
    CALL_TYPE,
    Authorize,
    Guard,
    GuardedServer,
    GuardedSite,
    RefusedRequest,
)
from connectors.reach import Reach, no_requests
from worker.fill.source import NotHere
from worker.peers.asked import DATA_PREFIX, Asked, check_pages, parse_asked
from worker.peers.page_check import wrong_pages
from worker.peers.senders import Senders
from worker.peers.sending import PagesResponse
from worker.runtime.process_limits import descriptors
from worker.stats.by_path import url_of

if TYPE_CHECKING:
    from worker.cache.peer_reads import Pages
    from worker.cache.serving import CacheServing
    from worker.peers.ownership_map import OwnershipMap

log = logging.getLogger(__name__)

MOST_REQUESTS: Final = 512
MOST_OF_ONE: Final = 256  # of one address
PROVIDE_S: Final = 40.0
LOOK_S: Final = 0.25  # between looks at the way to the origin while a fill waits for it
BODY_S: Final = 20.0  # for the body of a call
IDLE_S: Final = 75.0  # the timeout of an idle connection
STOP_S: Final = 2.0
MOST_BLOCK: Final = 0xFFFFFFFF  # the number of a block, see `cachefs.core.placement`

# Errors that the origin itself replied. All others are this worker's: it does not reach the origin,
# has no valid credentials, or is busy.
_REPLIES: Final = (AccessDenied, BadBody, NotFound, OriginError, Throttled, Unavailable)
_STATUS: Final[dict[type[CacheFSError], int]] = {
    ProtocolError: 400,
    AccessDenied: 403,
    NotFound: 404,
    Stale: 410,
    Throttled: 503,
    NoSpace: 507,
}


class NotOwner(CacheFSError):
    """Other workers own the block in this worker's view."""

    code = "not-owner"


class FillFailed(CacheFSError):
    """The fill for a peer failed; `inner` is the cause. The peer may succeed."""

    code = "fill-failed"
    status = 502

    def __init__(self, inner: CacheFSError) -> None:
        super().__init__(inner.cause)
        self.inner = inner


class OriginRefused(FillFailed):
    """The origin's reply was an error. The peer would get the same one."""

    code = "origin-refused"
    status = 422


async def _nothing(offer: c.Offer) -> None:
    raise NotFound("this worker takes no offers")


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of calls. Each may raise the typed errors."""

    drop: Callable[[list[ContentId]], Awaitable[c.Dropped]]
    status: Callable[[], dict[str, Any]]
    offer: Callable[[c.Offer], Awaitable[None]] = _nothing
    metrics: Callable[[], tuple[bytes, str]] | None = None  # the text and its content type


@dataclass(slots=True)
class ServerCounters:
    """Counters since the start."""

    requests: int = 0
    pages: int = 0
    bytes: int = 0
    from_cache: int = 0  # requests
    brought: int = 0
    not_here: int = 0
    not_owner: int = 0
    refused: int = 0
    failed: int = 0


class PeerServer:
    """The server, from `start` to `stop`. `refresh` updates the ring to the newest view. `reach`
    returns the way from this node to an origin. `authorize` returns the caller for an
    `Authorization` header, or raises AccessDenied. None: processes of this user and of root may
    make all calls."""

    def __init__(
        self,
        cache: CacheServing,
        ring: OwnershipMap,
        handlers: Handlers,
        *,
        refresh: Callable[[], Awaitable[object]],
        reach: Callable[[Origin], Reach] = no_requests,
        authorize: Authorize | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.counters = ServerCounters()
        self._cache = cache
        self._ring = ring
        self._handlers = handlers
        self._refresh = refresh
        self._reach = reach
        self._authorize = authorize
        self._ssl_context = ssl_context
        self._in_flight: collections.Counter[str] = collections.Counter()
        self._runner: web.ServerRunner | None = None
        self._senders: Senders
        self._guard: Guard

    async def start(self, host: str, port: int = 0) -> int:
        """Starts to listen and returns the port. Raises OSError if the address is not available."""
        self._senders = Senders()
        self._guard = Guard(
            self._authorize, on_loopback=access.is_loopback(host), most=descriptors() // 2
        )
        server = GuardedServer(self._handle, self._guard, keepalive_timeout=IDLE_S)
        runner = web.ServerRunner(server, shutdown_timeout=STOP_S)
        await runner.setup()
        self._runner = runner
        site = GuardedSite(runner, host, port, ssl_context=self._ssl_context)
        try:
            await site.start()
        except BaseException:
            await self.stop()
            raise
        address: tuple[Any, ...] = runner.addresses[0]
        return int(address[1])

    async def stop(self) -> None:
        """Stops listening; waits up to `STOP_S` for requests in flight. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
            await self._senders.close(STOP_S)

    def status(self) -> dict[str, int]:
        """Returns plain values for operators."""
        found = {name: getattr(self.counters, name) for name in self.counters.__slots__}
        return {**found, "in_flight": self._in_flight.total()}

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, is_get = request.path, request.method == "GET"
        if path.startswith(DATA_PREFIX) and is_get:
            return await self._data(request)
        if path == c.CALL_PATH and request.method == "POST":
            return await self._call(request)
        if path == "/metrics" and is_get:
            return await self._metrics(request)
        return self._page(request)

    def _page(self, request: web.BaseRequest) -> web.Response:
        """Serves the pages that need no token."""
        try:
            self._guard.check_host(request)
        except RefusedRequest as err:
            return self._refused_page(err)
        if request.path == ALIVE_PATH and request.method == "GET":
            return web.Response(text="ok\n")
        return web.Response(status=404, text="no such page\n")

    # ---- pages ----

    async def _data(self, request: web.BaseRequest) -> web.StreamResponse:
        self.counters.requests += 1
        try:
            self._guard.check_host(request)
            with self._slot(request):
                if not self._guard.caller(request).may_join:
                    raise AccessDenied("this token is not a worker's")
                asked = parse_asked(request)
                pages, record_cached = await self._find(asked)
                return await self._send(request, pages, record_cached=record_cached)
        except CacheFSError as err:
            return self._refusal(err)

    async def _send(
        self, request: web.BaseRequest, pages: Pages, *, record_cached: bool
    ) -> web.StreamResponse:
        headers = {
            c.CHECKSUMS_HEADER: ",".join([f"{sum:016x}" for sum in pages.checksums]),
            c.SOURCE_HEADER: "cache" if record_cached else "origin",
            c.EPOCH_HEADER: str(self._ring.epoch),
        }
        response = PagesResponse(pages, self._senders.threads, headers)
        try:
            await response.send(request)
        except ConnectionError as err:  # the peer used another source, or has ended
            log.debug("%s: %s", request.remote, err)
            return response
        counters = self.counters
        counters.pages += len(pages.checksums)
        counters.bytes += pages.size_bytes
        counters.from_cache += record_cached
        counters.brought += not record_cached
        return response

    async def _find(self, asked: Asked) -> tuple[Pages, bool]:
        key = asked.content.key
        # A request with `have` may be a migration: it does not count as a reader's access.
        found = await self._cache.here(key, asked.first, asked.end, for_reader=not asked.have)
        if found is not None:
            return found, True
        if asked.have:
            raise NotFound("the pages are not cached here")
        if asked.origin is None:
            raise ProtocolError(f"{c.ORIGIN_HEADER} is missing")
        await self._check_owner(asked, asked.origin.rule.owners)
        try:
            return await self._provided(asked, asked.origin), False
        except NotHere as err:
            if self._is_cut(asked.origin):
                raise _cut(asked.origin) from err
            raise NotFound(err.cause) from err
        except Stale as err:
            if isinstance(err.__cause__, NotFound):  # a `file://` source may not be mounted here
                raise FillFailed(err) from err
            raise
        except (NoSpace, FillFailed):
            raise
        except CacheFSError as err:
            raise self._failed(asked.origin, err) from err

    def _failed(self, origin: Origin, error: CacheFSError) -> FillFailed:
        """Returns the failure of a fill. A file that this worker may not read is a reply to all
        workers only if this one may read others."""
        is_mine = isinstance(error, AccessDenied) and self._reach(origin).is_in_doubt
        if isinstance(error, _REPLIES) and not is_mine:
            return OriginRefused(error)
        return FillFailed(error)

    async def _provided(self, asked: Asked, origin: Origin) -> Pages:
        """Returns pages that are filled if necessary. Raises FillFailed, before the fill ends, if
        this worker does not reach the origin: the peer's time is short. The fill continues."""
        if not self._reach(origin).may_try(time.monotonic()):
            raise _cut(origin)
        try:
            async with asyncio.timeout(PROVIDE_S) as limit:
                with self._watched(origin, limit):
                    return await self._cache.provide(origin, asked.first, asked.end, asked.epoch)
        except TimeoutError as err:
            if self._is_cut(origin):
                raise _cut(origin) from err
            raise FillFailed(DeadlineExceeded("the fill took too long")) from err

    @contextlib.contextmanager
    def _watched(self, origin: Origin, limit: asyncio.Timeout) -> Iterator[None]:
        """Ends `limit` as soon as this worker does not reach the origin."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(LOOK_S, lambda: look())

        def look() -> None:
            nonlocal timer
            if not self._is_cut(origin):
                timer = loop.call_later(LOOK_S, look)
            elif not limit.expired():
                limit.reschedule(loop.time())

        try:
            yield
        finally:
            timer.cancel()

    def _is_cut(self, origin: Origin) -> bool:
        return self._reach(origin).is_cut(time.monotonic())

    async def _check_owner(self, asked: Asked, replicas: int) -> None:
        """Raises NotOwner unless this worker may fill for the peer. The primary owner waits for no
        peer, so it fills for any epoch. Other owners and the stand-in fill only for requests of
        their epoch: else two workers might wait for each other. `worker` is checked because an
        address may belong to another worker now, even to the requesting one."""
        ring = self._ring
        if asked.worker not in ("", ring.me):
            raise NotOwner(f"this is worker {ring.me}, not {asked.worker}")
        if asked.epoch > ring.epoch:
            with contextlib.suppress(CacheFSError):
                await self._refresh()
        rank = ring.rank(asked.content.ino, asked.block, replicas)
        most = replicas if asked.next else replicas - 1
        if rank != 0 and not (0 < rank <= most and asked.epoch == ring.epoch):
            raise NotOwner(f"not the owner in epoch {ring.epoch}")

    # ---- calls ----

    async def _call(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            self._guard.check_call(request)
            with self._slot(request):
                caller = self._guard.caller(request)
                call = c.decode_call(await _body(request))
                access.permit(caller, call)
                answer = await self._dispatch(caller, call)
        except CacheFSError as err:
            return self._refusal(err)
        return web.Response(body=c.encode(answer), content_type=CALL_TYPE)

    async def _dispatch(self, caller: access.Caller, call: c.Call) -> c.Answer:
        match call:
            case c.Have(contents):
                _bounded(contents)
                return await self._cache.had([c.content_of(key).key for key in contents])
            case c.Offer():
                _check_blocks(call.blocks)
                await self._handlers.offer(call)
                return Done()
            case c.Doubt(content, pages):
                if not caller.may_join:
                    raise AccessDenied("this token is not a worker's")
                await self._cache.doubt(
                    c.content_of(content).key, [page for page in pages if page >= 0]
                )
                return Done()
            case c.Verify(content, first, end):
                return await self._verify(c.content_of(content).key, first, end)
            case c.Drop(contents):
                _bounded(contents)
                return await self._handlers.drop([c.content_of(key) for key in contents])
            case c.WorkerStatus():
                return c.WorkerStatusReply(self._handlers.status())
            case _:
                raise ProtocolError(f"{type(call).__name__} must be sent to a master")

    async def _verify(self, key: bytes, first: int, end: int) -> c.Verified:
        """Compares cached pages with their checksums. Raises NotFound, ProtocolError."""
        check_pages(first, end)
        found = await self._cache.here(key, first, end)
        if found is None:
            raise NotFound("the pages are not cached here")
        wrong = await wrong_pages(found, self._senders.threads)
        if wrong:
            await self._cache.doubt(key, wrong)
        return c.Verified(len(found.checksums), wrong)

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            self._guard.check_host(request)
            access.permit_metrics(self._guard.caller(request))
        except CacheFSError as err:
            return self._refused_page(err)
        if self._handlers.metrics is None:
            return web.Response(status=404)
        body, kind = self._handlers.metrics()
        return web.Response(body=body, headers={"Content-Type": kind})

    # ---- inside ----

    @contextlib.contextmanager
    def _slot(self, request: web.BaseRequest) -> Iterator[None]:
        """Holds a slot of the requests in flight. Raises Throttled."""
        address = request.remote or ""
        if self._in_flight.total() >= MOST_REQUESTS or self._in_flight[address] >= MOST_OF_ONE:
            raise Throttled("too many requests in flight")
        self._in_flight[address] += 1
        try:
            yield
        finally:
            self._in_flight[address] -= 1
            if not self._in_flight[address]:
                del self._in_flight[address]

    def _refused_page(self, err: CacheFSError) -> web.Response:
        """Returns the error page of a request by a browser or a scraper: plain text."""
        self.counters.refused += 1
        status = err.status if isinstance(err, RefusedRequest) else _STATUS.get(type(err), 500)
        return web.Response(status=status, text=err.one_line() + "\n")

    def _refusal(self, err: CacheFSError) -> web.Response:
        counters, shown = self.counters, err
        if isinstance(err, NotOwner):
            status = 409
            counters.not_owner += 1
        elif isinstance(err, FillFailed):
            status, shown = err.status, err.inner
            counters.failed += 1
        else:
            status = err.status if isinstance(err, RefusedRequest) else _STATUS.get(type(err), 500)
            counters.not_here += status == 404
            counters.refused += status != 404
        headers = {c.EPOCH_HEADER: str(self._ring.epoch)}
        return web.Response(
            status=status, body=c.encode(failure_of(shown)), content_type=CALL_TYPE, headers=headers
        )


def _cut(origin: Origin) -> FillFailed:
    return FillFailed(Unreachable(f"this worker does not reach {url_of(origin)}"))


async def _body(request: web.BaseRequest) -> bytes:
    """Reads the body of a call. Raises ProtocolError if it is too large, too slow or incomplete."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > c.MAX_CALL_BYTES:
                    raise ProtocolError(f"a call of more than {c.MAX_CALL_BYTES} bytes")
    except (ClientPayloadError, ConnectionError) as err:
        raise ProtocolError("the connection broke within the call") from err
    except TimeoutError as err:
        raise ProtocolError(f"the call was not sent within {BODY_S:g} s") from err
    return bytes(body)


def _bounded(items: list[Any]) -> None:
    if len(items) > c.BATCH_LIMIT:
        raise ProtocolError(f"more than {c.BATCH_LIMIT} items in one call")


def _check_blocks(blocks: list[tuple[bytes, int]]) -> None:
    """Validates the blocks of an offer. Raises ProtocolError."""
    _bounded(blocks)
    for key, block in blocks:
        c.content_of(key)
        if not 0 <= block <= MOST_BLOCK:
            raise ProtocolError(f"block {block} is out of range")
