"""One client's connection through the proxy: requests forwarded, responses relayed or broken."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from tests.services import proxy_control
from tests.services.faults import (
    CONDITIONS,
    AlteredLength,
    CutBody,
    DripBody,
    Fault,
    Hang,
    IgnoreIfMatch,
    Refuse,
    Request,
    ShortBody,
    Status,
    WrongEtag,
)
from tests.services.http_wire import Head, Stream, WireError

if TYPE_CHECKING:
    from tests.services.proxy import FaultProxy


class _ClientGone(Exception):
    """The client closed before it had the whole response."""


class _Cut(Exception):
    """A fault ends this connection."""


class Connection:
    """One client's connection, and the connection to the server that goes with it."""

    def __init__(self, proxy: FaultProxy, client: Stream) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream: Stream | None = None
        self._closed = threading.Event()

    def wake(self) -> None:
        """From any thread: what this connection does ends soon, and its thread closes it."""
        self._closed.set()
        self._client.wake()
        upstream = self._upstream
        if upstream is not None:
            upstream.wake()

    def close(self) -> None:
        self._closed.set()
        self._client.close()
        self._drop_upstream()

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()

    def serve(self) -> None:
        try:
            self._shake_hands()
            while (head := self._client.read_head()) is not None:
                if not self._exchange(head):
                    return
        except _ClientGone:
            if not self._closed.is_set():
                self._proxy.count_abort()
        except (_Cut, WireError, OSError):
            return  # the client sees a closed connection, as from a server that broke off

    def _shake_hands(self) -> None:
        """Raises OSError for a client that refuses the certificate, or speaks no TLS."""
        sock = self._client.sock
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
            self._proxy.count_handshake(bool(sock.session_reused))

    def _exchange(self, head: Head) -> bool:
        """One request and its response. False: the connection is at its end."""
        if head.start.split(b" ", 2)[1].startswith(proxy_control.PREFIX):
            return proxy_control.answer(self._proxy, head, self._client)
        request = Request(head)
        fault = self._proxy.choose(request)
        if isinstance(fault, Refuse):
            raise _Cut
        if isinstance(fault, Hang):
            self._hang(fault)
        if isinstance(fault, Status):
            return self._answer_error(head, request, fault)
        if isinstance(fault, IgnoreIfMatch):
            head.remove(*CONDITIONS)
        response = self._forward(head)
        self._proxy.pause(self._proxy.latency_s)
        self._proxy.count_response(response.status)
        self._relay(request, response, fault)
        return not (head.closes or response.closes)

    def _hang(self, fault: Hang) -> None:
        while not fault.event.wait(0.02):
            if self._closed.is_set():
                raise _Cut

    def _answer_error(self, head: Head, request: Request, fault: Status) -> bool:
        self._request_body(head, lambda _: None)
        body = fault.body(request)
        start = b"HTTP/1.1 %d %s" % (fault.status, fault.code.encode())
        length = b"%d" % len(body)
        response = Head(start, [(b"Content-Type", b"application/xml"), (b"Content-Length", length)])
        self._proxy.pause(self._proxy.latency_s)
        self._proxy.count_response(fault.status)
        body = b"" if request.method == "HEAD" else body
        self._proxy.count_body(request, len(body), fault.status)
        self.to_client(response.encode() + body)
        return not head.closes

    def _request_body(self, head: Head, sink: Callable[[memoryview], None]) -> None:
        if (head.get(b"expect") or b"").lower() == b"100-continue":
            self.to_client(b"HTTP/1.1 100 Continue\r\n\r\n")
        if head.chunked:
            self._client.move_chunked(sink, sink, self._proxy.piece_bytes)
        elif head.length_bytes:
            self._client.move(head.length_bytes, sink, self._proxy.piece_bytes)

    def _forward(self, head: Head) -> Head:
        """The request to the server, and its response's head. An idle connection that the server
        closed meanwhile is replaced once, when the request can be sent again."""
        reused = self._upstream is not None
        try:
            return self._ask(head)
        except (WireError, OSError):
            self._drop_upstream()
            if not reused or head.chunked or head.length_bytes or self._closed.is_set():
                raise
            return self._ask(head)

    def _ask(self, head: Head) -> Head:
        upstream = self._upstream
        if upstream is None:
            upstream = self._upstream = self._proxy.connect()
            if self._closed.is_set():  # `wake` may have missed it
                raise _Cut
        upstream.send(head.encode())
        self._request_body(head, upstream.send)
        while (response := upstream.read_head()) is not None:
            if response.status >= 200:
                return response
        raise WireError("the server closed without an answer")

    def _relay(self, request: Request, response: Head, fault: Fault | None) -> None:
        body = _Body(request, response, fault)
        self.to_client(response.encode())
        send = _Sender(self, self._proxy, request, response.status)
        upstream = self._upstream
        assert upstream is not None
        if not body.present:
            return
        if response.chunked:
            upstream.move_chunked(send, self.to_client, self._proxy.piece_bytes)
        elif body.length_bytes is None:
            upstream.move_to_end(send)
        else:
            self._relay_counted(body, upstream, send)
        if response.closes:
            self._drop_upstream()

    def _relay_counted(self, body: _Body, upstream: Stream, send: _Sender) -> None:
        if body.drip is not None:
            self._drip(body.drip, body.from_server_bytes, upstream, send)
        upstream.pour(body.from_server_bytes, send, self._proxy.piece_bytes)
        if body.cut:
            raise _Cut
        if body.padding_bytes:
            send(memoryview(bytes(body.padding_bytes)))
        if body.from_server_bytes != body.length_bytes:
            self._drop_upstream()  # the rest of this body is still in it

    def _drip(self, fault: DripBody, size_bytes: int, upstream: Stream, send: _Sender) -> NoReturn:
        """Raises _ClientGone, or _Cut once the connection ends or the body is almost over."""
        first = min(fault.after_bytes, size_bytes)
        upstream.pour(first, send, self._proxy.piece_bytes)
        left, piece = size_bytes - first, fault.bytes_per_s // 10
        while not self._closed.wait(0.1) and left > piece:
            left -= piece
            if piece:
                upstream.move(piece, send, self._proxy.piece_bytes)
        raise _Cut

    def to_client(self, data: bytes | memoryview) -> None:
        """Raises _ClientGone."""
        try:
            self._client.send(data)
        except OSError as err:
            raise _ClientGone from err

    def pipe_to_client(self, reader: int, count: int) -> None:
        """Raises _ClientGone."""
        try:
            self._client.take_from(reader, count)
        except OSError as err:
            raise _ClientGone from err


class _Sender:
    """Body pieces to the client: shaped, and counted before a client can have seen them."""

    def __init__(
        self, connection: Connection, proxy: FaultProxy, request: Request, number: int
    ) -> None:
        self._connection = connection
        self._proxy = proxy
        self._request = request
        self._number = number

    def __call__(self, piece: memoryview) -> None:
        with self._counted(len(piece)):
            self._connection.to_client(piece)

    def splice(self, reader: int, count: int) -> None:
        with self._counted(count):
            self._connection.pipe_to_client(reader, count)

    @contextlib.contextmanager
    def _counted(self, count: int) -> Iterator[None]:
        self._proxy.shape(count)
        self._proxy.count_body(self._request, count, self._number)
        try:
            yield
        except _ClientGone:
            self._proxy.count_body(self._request, -count, self._number)
            raise


class _Body:
    """How much of a response's body goes to the client. Changes `response`'s head as the fault
    says; faults of the body leave errors alone."""

    def __init__(self, request: Request, response: Head, fault: Fault | None) -> None:
        number = response.status
        self.length_bytes = response.length_bytes
        self.present = request.method != "HEAD" and number not in (204, 304)
        self.from_server_bytes = self.length_bytes or 0
        self.padding_bytes = 0
        self.cut = False
        self.drip: DripBody | None = None
        if fault is None or number >= 300:
            return
        if isinstance(fault, WrongEtag):
            response.set(b"ETag", fault.etag.encode())
        elif isinstance(fault, AlteredLength):
            self._alter(response, fault.delta_bytes)
        elif self.length_bytes is not None and isinstance(fault, DripBody):
            self.drip = fault
        elif self.length_bytes is not None and isinstance(fault, CutBody):
            self.from_server_bytes = min(fault.after_bytes, self.length_bytes - 1)
            self.cut = True
        elif self.length_bytes is not None and isinstance(fault, ShortBody):
            self.from_server_bytes = max(0, self.length_bytes - fault.missing_bytes)
            response.set(b"Content-Length", b"%d" % self.from_server_bytes)

    def _alter(self, response: Head, delta_bytes: int) -> None:
        ranged = response.get(b"content-range")
        if ranged is not None:
            asked, _, total = ranged.rpartition(b"/")
            response.set(b"Content-Range", b"%s/%d" % (asked, int(total) + delta_bytes))
        elif self.length_bytes is not None:
            claimed = max(0, self.length_bytes + delta_bytes)
            response.set(b"Content-Length", b"%d" % claimed)
            self.from_server_bytes = min(self.length_bytes, claimed)
            self.padding_bytes = claimed - self.from_server_bytes
