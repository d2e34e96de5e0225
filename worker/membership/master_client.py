"""Calls to one master over HTTP. Owns the connections, the master's health as this worker sees it,
and the only retry of calls: every call of a worker is idempotent.

A call may wait for an origin, so a late reply does not mean that the master is down. If no reply
was received since a call began, the client probes `ALIVE_PATH`, which waits for no origin. A
stopped master is detected within `LOOK_S` and two probes.

A failure in the master's reply is raised unchanged; a failure of the network is raised as
`MasterUnreachable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import aiohttp
from aiohttp import hdrs

from cachefs.core import cluster as c
from cachefs.core.access import NOT_KNOWN
from cachefs.core.addresses import ALIVE_PATH, MAY_SPEAK_TLS, master_url
from cachefs.core.errors import AccessDenied, CacheFSError, ProtocolError, Throttled, Unreachable
from cachefs.core.messages import Failure, ListDir, Message, error_of
from cachefs.network.checked_connect import ListenerCheck, accept_any_listener
from cachefs.network.connector import CheckedConnector
from cachefs.network.error_causes import CLOSED, cause_of, remedy_of_handshake
from worker.membership.token_skew import TokenSkew

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Message)

CONNECTIONS: Final = {"names": 32, "listings": 32, "members": 8, "probes": 1}
CONNECT_S: Final = 3.0
ANSWER_S: Final = 60.0  # the timeout of a reply; the master waits for origins
REACH_S: Final = 30.0  # the retries of a call end after that time
LOOK_S: Final = 1.0  # between checks for a master that is down, during an attempt
LATE_LOOK_S: Final = 0.25  # the same, after the last time for a retry
PROBE_S: Final = 1.5  # the timeout of a probe
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
TOKEN_PAUSE_S: Final = 0.25  # while the token of the cluster is replaced
FAILURES_OF_A_DOWN_MASTER: Final = 2  # the first may be an idle connection that was just closed
# The calls of the membership wait for no origin, and must not queue for a connection behind calls
# that do; nor lookups in one origin behind listings of another.
_MEMBERS: Final = (
    c.Register,
    c.Heartbeat,
    c.Leave,
    c.GetView,
    c.GetEvents,
    c.PermitEviction,
    c.Work,
)
_LISTINGS: Final = (ListDir, c.ListNext, c.Walk)
_KEEPALIVE: Final = (  # a partition ends a call within about 10 s
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class MasterUnreachable(Unreachable):
    """The master did not reply. (An origin that the master cannot reach is plain Unreachable.)"""


class MasterClient:
    """The connection to one master. All methods belong to one event loop."""

    def __init__(
        self,
        url: str,
        *,
        token: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        presents_to: ListenerCheck = accept_any_listener,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`url`: see `master_url`. `token`: the headers that present the token, read at each call.
        `jitter` is uniform in [0, 1). Raises BadConfig."""
        self.url = master_url(url, tls=ssl_context is not None)
        self._token = token or {}
        self._ssl: ssl.SSLContext | bool = ssl_context if ssl_context is not None else True
        self._presents_to = presents_to
        self._clock = clock
        self._jitter = jitter
        self._sessions: dict[str, aiohttp.ClientSession] = {}  # see `CONNECTIONS`
        self._reached = asyncio.Event()
        self._failures = 0
        self._heard_at = clock()
        self._probing: asyncio.Task[None] | None = None
        self._closed = False
        self._skew = TokenSkew()
        self.counters = {"calls": 0, "retries": 0, "unreachable": 0}

    @property
    def down(self) -> bool:
        """True if the last calls or probes got no reply."""
        return self._failures >= FAILURES_OF_A_DOWN_MASTER

    async def ask(
        self, body: c.Call, kind: type[T], *, answer_s: float = ANSWER_S, reach_s: float = REACH_S
    ) -> T:
        """Sends a call and returns the reply, which is a `kind`. Retries for `reach_s` seconds if
        the master cannot be reached (0: one attempt). The timeout of an attempt is `answer_s`, but
        only `reach_s` while the master is down. Raises the master's failure, MasterUnreachable,
        AccessDenied, ProtocolError. After a cancellation the master may have acted."""
        answer = await self._call(body, answer_s, reach_s)
        if isinstance(answer, Failure):
            raise error_of(answer)
        if not isinstance(answer, kind):
            raise ProtocolError(f"the master replied {type(answer).__name__}, not {kind.__name__}")
        return answer

    async def close(self) -> None:
        """Closes the connections; calls in flight fail. Idempotent."""
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        for session in self._sessions.values():
            await session.close()

    async def _call(self, body: c.Call, answer_s: float, reach_s: float) -> c.Answer:
        until = self._clock() + reach_s
        attempt, data = 0, c.encode(body)
        self.counters["calls"] += 1
        while True:
            refused = False
            answer: c.Answer | MasterUnreachable
            try:
                answer = await self._attempt(body, data, answer_s, until)
            except MasterUnreachable as err:
                self._failed(err)
                answer = err
            else:
                self._succeeded()
                refused = _is_refused(answer)
                may_pass = self._skew.may_pass(self._clock(), is_refused=refused)
                if not may_pass and not _is_busy(answer):
                    return answer
            pause_s = TOKEN_PAUSE_S if refused else self._pause_s(attempt)
            if self._closed or self._clock() + pause_s >= until:
                if isinstance(answer, MasterUnreachable):
                    raise answer
                return answer
            attempt += 1
            self.counters["retries"] += 1
            # A reply to another call is no news of the token.
            await (asyncio.sleep(pause_s) if refused else self._wait(pause_s))

    def _pause_s(self, attempt: int) -> float:
        """Returns the backoff; 0 before the second attempt, since the server may just have closed
        an idle connection."""
        if attempt == 0:
            return 0.0
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(attempt, 16)))
        return longest * (0.5 + self._jitter() / 2)

    async def _wait(self, pause_s: float) -> None:
        """Waits for the pause, or until another call reaches the master."""
        if pause_s <= 0:
            return
        self._reached.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._reached.wait()

    def _failed(self, err: MasterUnreachable) -> None:
        self._failures += 1
        self.counters["unreachable"] += 1
        if self._failures == FAILURES_OF_A_DOWN_MASTER:
            log.warning("%s", err.one_line())

    def _succeeded(self) -> None:
        if self.down:
            log.info("the master at %s answers again", self.url)
        self._failures = 0
        self._heard_at = self._clock()
        self._reached.set()

    async def _attempt(self, body: c.Call, data: bytes, answer_s: float, until: float) -> c.Answer:
        limit = asyncio.timeout(answer_s)
        try:
            async with limit:
                with self._watched(limit, until):
                    return await self._exchange(data, _connections_of(body))
        except TimeoutError as err:
            raise self._unreachable(f"no answer to {type(body).__name__} in time") from err
        except aiohttp.ClientSSLError as err:
            raise self._unreachable(cause_of(err), remedy_of_handshake(err)) from err
        except (aiohttp.ClientError, OSError) as err:
            raise self._unreachable(cause_of(err)) from err

    @contextlib.contextmanager
    def _watched(self, limit: asyncio.Timeout, until: float) -> Iterator[None]:
        """Watches an attempt in the block: probes the master if no reply was received since the
        attempt began, and after `until` ends the attempt if the master is down."""
        loop, began = asyncio.get_running_loop(), self._clock()

        def look() -> None:
            if self.down and self._clock() >= until:
                return limit.reschedule(loop.time())
            if self._heard_at < began:
                self._probe_soon()
            looks.append(loop.call_later(self._next_look_s(until), look))

        looks = deque([loop.call_later(self._next_look_s(until), look)], maxlen=1)
        try:
            yield
        finally:
            looks.pop().cancel()

    def _next_look_s(self, until: float) -> float:
        left_s = until - self._clock()
        return min(LOOK_S, left_s) if left_s > 0 else LATE_LOOK_S

    # ---- probes ----

    def _probe_soon(self) -> None:
        """Starts a probe, unless one is in progress."""
        if not self._closed and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe())
            self._probing.add_done_callback(_log_failure)

    async def _probe(self) -> None:
        """Probes the master until it replies, at most `FAILURES_OF_A_DOWN_MASTER` times. Any reply
        counts as alive; no reply counts as a failed call."""
        for _ in range(FAILURES_OF_A_DOWN_MASTER):
            if await self._is_alive():
                self._heard_at = self._clock()
                return

    async def _is_alive(self) -> bool:
        try:
            async with (
                asyncio.timeout(PROBE_S),
                self._open_session("probes").get(self.url + ALIVE_PATH, allow_redirects=False),
            ):
                return True
        except TimeoutError:
            self._failed(self._unreachable("a probe timed out"))
        except (aiohttp.ClientError, OSError) as err:
            self._failed(self._unreachable(cause_of(err)))
        return False

    def _unreachable(
        self, why: str, remedy: str = "is `cachefs master` running there?"
    ) -> MasterUnreachable:
        if why == CLOSED and self.url.startswith("http://"):
            remedy = MAY_SPEAK_TLS
        return MasterUnreachable(
            f"the master at {self.url} cannot be reached: {why}", remedy=remedy
        )

    async def _exchange(self, data: bytes, connections: str) -> c.Answer:
        session = self._open_session(connections)
        headers = {hdrs.CONTENT_TYPE: "application/msgpack", **self._token}
        async with session.post(
            self.url + c.CALL_PATH, data=data, headers=headers, allow_redirects=False
        ) as reply:
            body = await _bounded_body(reply)
            try:
                return c.decode_answer(body)
            except ProtocolError as err:
                raise self._not_an_answer(reply.status) from err

    def _not_an_answer(self, status: int) -> CacheFSError:
        """Returns the error of a reply that a proxy or another server sent."""
        if status in (401, 403):
            return AccessDenied(
                f"the master at {self.url} denied access", remedy="give a valid --token-file"
            )
        if status >= 500 or status == 429:
            return self._unreachable(f"HTTP status {status}")
        return ProtocolError(f"the server at {self.url} is not a master: HTTP status {status}")

    def _open_session(self, connections: str) -> aiohttp.ClientSession:
        if self._closed:
            raise self._unreachable("this node is ending")
        session = self._sessions.get(connections)
        if session is None:
            connector = CheckedConnector(
                self._presents_to, _KEEPALIVE, limit=CONNECTIONS[connections], ssl=self._ssl
            )
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            session = self._sessions[connections] = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return session


def _connections_of(body: c.Call) -> str:
    if isinstance(body, _MEMBERS):
        return "members"
    return "listings" if isinstance(body, _LISTINGS) else "names"


def _log_failure(probing: asyncio.Task[None]) -> None:
    if not probing.cancelled() and (error := probing.exception()) is not None:
        log.error("a probe of the master failed: %s", error, exc_info=error)


def _is_refused(answer: c.Answer) -> bool:
    """Returns whether the master does not know the node's token."""
    return isinstance(answer, Failure) and NOT_KNOWN in answer.cause


def _is_busy(answer: c.Answer) -> bool:
    """Returns whether the master refused the call because of too many calls in flight."""
    return isinstance(answer, Failure) and answer.code == Throttled.code


async def _bounded_body(reply: aiohttp.ClientResponse) -> bytes:
    """Reads a body. Raises ProtocolError if it exceeds `MAX_ANSWER_BYTES`."""
    if (reply.content_length or 0) > c.MAX_ANSWER_BYTES:
        raise ProtocolError(f"the master's reply has {reply.content_length} bytes: too large")
    if reply.content_length is not None:
        return await reply.read()
    body = bytearray()
    async for chunk in reply.content.iter_any():
        body += chunk
        if len(body) > c.MAX_ANSWER_BYTES:
            raise ProtocolError(f"the master's reply exceeds {c.MAX_ANSWER_BYTES} bytes")
    return bytes(body)
