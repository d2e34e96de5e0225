"""Blocking calls of a master or of another node's worker, for the command line.

One connection, one call at a time, msgpack both ways (`cachefs.core.cluster`). The admin client
(`cachefs.client.admin`) uses the same connection.
"""

from __future__ import annotations

import http.client
import math
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from cachefs.client.credentials import client_context, presents_to
from cachefs.client.deadline import DeadlineSocket
from cachefs.client.token_file import TokenFile
from cachefs.core import cluster as c
from cachefs.core.access import parse_address
from cachefs.core.addresses import ALIVE_PATH, MAY_SPEAK_TLS, address_of
from cachefs.core.errors import (
    AccessDenied,
    CacheFSError,
    DeadlineExceeded,
    ProtocolError,
    Unreachable,
)
from cachefs.core.messages import Failure, Message, error_of
from cachefs.core.specs import Security
from cachefs.network.checked_connect import ListenerCheck, connect, left_s
from cachefs.network.socket_owners import ForeignListener
from cachefs.network.tls_causes import cause_of_tls, remedy_of_tls

CALL_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
PROBE_TIMEOUT_S: Final = (
    4.0  # a running process answers ALIVE_PATH within this time, even under load
)
_PROBE_VALID_S: Final = 1.0  # how long a reply proves that the process runs
_T = TypeVar("_T", bound=Message)
Reply = tuple[int, http.client.HTTPMessage, bytes]  # status, headers, body
UNIX: Final = "unix:"  # prefix of a socket's path, in place of a URL
RUNNING: Final = "is it running there?"
_MSGPACK: Final = {"Content-Type": "application/msgpack"}


class HttpClient:
    """A client of the process at `url`, or at the socket `unix:PATH`. Belongs to one thread. Before
    a request that may take long, it checks that the process is running. Raises BadConfig and
    AccessDenied for the files of `security`. `remedy`: for a process that does not answer."""

    def __init__(
        self,
        url: str,
        security: Security,
        *,
        name: str = "the master",
        remedy: str = RUNNING,
    ) -> None:
        self.url = url
        self._name = name
        self._remedy = remedy
        self._tokens = TokenFile(security.token_file)
        self._context = client_context(security, url)
        self._presents_to = presents_to(security)
        self._connection: _Connection | None = None
        self._status = 0  # of the last reply
        self._answered_at = -math.inf

    def call(self, body: Message, answer: type[_T], timeout_s: float = CALL_TIMEOUT_S) -> _T:
        """Returns the reply, which must be an `answer`. Raises the typed error of a Failure,
        Unreachable, DeadlineExceeded, ProtocolError. Calls are idempotent: if a kept connection
        turns out to be broken, the call is sent again."""
        _, _, data = self.exchange("POST", c.CALL_PATH, c.encode(body), timeout_s, _MSGPACK)
        reply = self._decoded(data)
        if isinstance(reply, Failure):
            raise error_of(reply)
        if not isinstance(reply, answer):
            raise ProtocolError(f"{self._name} answered {type(reply).__name__} to a request")
        return reply

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Returns any reply with its status. Raises Unreachable, DeadlineExceeded, ProtocolError.
        Requests must be idempotent, as in `call`."""
        is_kept = self._connection is not None
        deadline = time.monotonic() + timeout_s
        self._tokens.check_if_due()
        request = _Request(method, path, body, {**self._tokens.headers, **(headers or {})})
        try:
            return self._attempt(request, deadline)
        except Unreachable:
            if not is_kept:
                raise
        return self._attempt(request, deadline)

    def _attempt(self, request: _Request, deadline: float) -> Reply:
        try:
            return self._probe_and_exchange(request, deadline)
        except BaseException as err:
            self.close()  # drops a reply that may still arrive on it
            raise self._classified(err) from err

    def _probe_and_exchange(self, request: _Request, deadline: float) -> Reply:
        if deadline - time.monotonic() > PROBE_TIMEOUT_S and self._needs_probe():
            self._exchange(
                _Request("GET", ALIVE_PATH, None, {}), time.monotonic() + PROBE_TIMEOUT_S
            )
        return self._exchange(request, deadline)

    def _needs_probe(self) -> bool:
        return time.monotonic() - self._answered_at > _PROBE_VALID_S

    def _exchange(self, request: _Request, deadline: float) -> Reply:
        connection = self._connected(deadline)
        connection.request(request.method, request.path, request.body, request.headers)
        response = connection.getresponse()
        data = response.read(c.MAX_ANSWER_BYTES + 1)
        if len(data) > c.MAX_ANSWER_BYTES:
            raise ProtocolError(f"the reply of {self._name} is too large")
        if response.will_close:
            self.close()
        self._status = response.status
        self._answered_at = time.monotonic()
        return response.status, response.headers, data

    def _decoded(self, data: bytes) -> Message:
        try:
            return c.decode_answer(data)
        except ProtocolError as err:
            raise ProtocolError(
                f"{self._name} returned status {self._status} and an unknown reply",
                path=self.url,
                remedy="check that it is a CacheFS process",
            ) from err

    def _connected(self, deadline: float) -> _Connection:
        if self._connection is None:
            self._connection = self._new_connection()
            self._connection.deadline = min(deadline, time.monotonic() + CONNECT_TIMEOUT_S)
            self._connection.connect()
        self._connection.until(deadline)
        return self._connection

    def _new_connection(self) -> _Connection:
        if self.url.startswith(UNIX):
            return _UnixConnection(self.url.removeprefix(UNIX))
        host, port = parse_address(address_of(self.url), c.DEFAULT_PORT)
        return _TcpConnection(host, port, self._context, self._presents_to)

    def _classified(self, err: BaseException) -> BaseException:
        if isinstance(err, CacheFSError):
            return err
        if isinstance(err, ssl.SSLError):
            cause = f"{self._name} does not speak TLS as expected: {cause_of_tls(err)}"
            return Unreachable(cause, path=self.url, remedy=remedy_of_tls(err))
        if isinstance(err, TimeoutError):
            remedy = "see its log: it is stopped or overloaded"
            cause = f"no answer from {self._name} in time"
            return DeadlineExceeded(cause, path=self.url, remedy=remedy)
        if isinstance(err, ForeignListener):
            return AccessDenied(err.strerror or str(err), path=self.url)
        if isinstance(err, http.client.RemoteDisconnected) and self.url.startswith("http://"):
            cause = f"{self._name} closed the connection before the reply"
            return Unreachable(cause, path=self.url, remedy=MAY_SPEAK_TLS)
        if isinstance(err, OSError):
            cause = f"{self._name} does not answer: {err.strerror or err}"
            return Unreachable(cause, path=self.url, remedy=self._remedy)
        if isinstance(err, http.client.HTTPException):
            return Unreachable(f"{self._name} broke the connection: {err!r}", path=self.url)
        return err


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes | None
    headers: dict[str, str]


class _Connection(http.client.HTTPConnection):
    """HTTP over one connection. All its operations end at `deadline` (monotonic)."""

    deadline = 0.0

    def connect(self) -> None:
        """Connects until the deadline. Raises OSError."""
        self.sock = DeadlineSocket(self._open(), self.deadline)

    def until(self, deadline: float) -> None:
        """Sets the deadline of the next exchange."""
        assert isinstance(self.sock, DeadlineSocket)
        self.sock.deadline = deadline

    def _open(self) -> socket.socket:
        raise NotImplementedError


class _TcpConnection(_Connection):
    """HTTP over TCP, with TLS if there is a context."""

    def __init__(
        self, host: str, port: int, context: ssl.SSLContext | None, judge: ListenerCheck
    ) -> None:
        super().__init__(host, port)
        self._context = context
        self._judge = judge

    def _open(self) -> socket.socket:
        sock = connect(self.host, self.port, left_s(self.deadline), self._judge)
        if self._context is None:
            return sock
        try:
            sock.settimeout(left_s(self.deadline))
            return self._context.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise


class _UnixConnection(_Connection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def _open(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(left_s(self.deadline))
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        return sock
