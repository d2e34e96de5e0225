"""An HTTP/1.1 proxy in front of one S3 server: counts, shapes and breaks what goes through.

It forwards messages as they are (Host and signatures hold) and copies bodies in large pieces, so
that it is cheap enough to sit in front of benches. One thread per client connection; all end with
`stop`. Everything may be changed while requests run.

    with FaultProxy(server.endpoint_url) as proxy:
        proxy.script(status(503, code="SlowDown"), method="GET", times=2)
        ...use proxy.endpoint_url...
        assert proxy.counters().body_bytes == size

In another process: `python -m tests.services.proxy --upstream URL [--rate BYTES/S] [--latency S]`
prints one JSON line with its URL, serves `/-/...` (see `proxy_control`), and ends when stdin does.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.services import proxy_control
from tests.services.faults import (
    CONDITIONS,
    AlteredLength,
    Armed,
    CutBody,
    Fault,
    Hang,
    IgnoreIfMatch,
    Refuse,
    Request,
    Rule,
    ShortBody,
    Status,
    WrongEtag,
    altered_length,
    choose,
    cut_body,
    expired_credentials,
    hang,
    ignore_if_match,
    refuse,
    short_body,
    status,
    wrong_etag,
)
from tests.services.http_wire import Head, Stream, WireError
from tests.services.shaper import Shaper

__all__ = [
    "Counters",
    "FaultProxy",
    "altered_length",
    "cut_body",
    "expired_credentials",
    "hang",
    "ignore_if_match",
    "refuse",
    "short_body",
    "status",
    "wrong_etag",
]

STOP_LIMIT_S = 10.0
LONG_NAP_S = 0.1


class Counters(msgspec.Struct):
    """Since the start or the last `reset`. Bytes are body bytes handed to clients, errors' too."""

    requests: Counter[str] = msgspec.field(default_factory=Counter)
    requests_by_key: Counter[str] = msgspec.field(default_factory=Counter)
    bytes_by_key: Counter[str] = msgspec.field(default_factory=Counter)
    statuses: Counter[str] = msgspec.field(default_factory=Counter)
    body_bytes: int = 0
    object_bytes: int = 0
    aborted_by_client: int = 0
    connections: int = 0
    faults: int = 0


class FaultProxy:
    """The proxy, in threads of this process: `start` and `stop`, or `with`. Any thread may call."""

    def __init__(
        self,
        upstream_url: str,
        *,
        rate_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        port: int = 0,
    ) -> None:
        url = urlsplit(upstream_url)
        self.upstream = (url.hostname or "127.0.0.1", url.port or 80)
        self.port = port
        self.latency_s = latency_s
        self.stopping = threading.Event()
        self._shaper = Shaper(rate_bytes_per_s)
        self._changed = threading.Condition()
        self._counters = Counters()
        self._rules: list[Armed] = []
        self._refusals = 0
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._connections: dict[threading.Thread, _Connection] = {}

    @property
    def endpoint_url(self) -> str:
        """Of the proxy; the same after `offline` and `online`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def rate_bytes_per_s(self) -> float | None:
        return self._shaper.rate_bytes_per_s

    @rate_bytes_per_s.setter
    def rate_bytes_per_s(self, rate: float | None) -> None:
        with self._changed:
            self._shaper = Shaper(rate)

    def start(self) -> FaultProxy:
        self.stopping.clear()
        self.online()
        return self

    def stop(self) -> None:
        """Closes every socket and joins every thread. May be called again."""
        self.stopping.set()
        self.offline()

    def online(self) -> None:
        """Listens (again), on the same port."""
        if self._listener is not None:
            return
        listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="proxy")
        self._acceptor.start()

    def offline(self) -> None:
        """Stops listening and cuts every connection: an origin that is down."""
        listener, self._listener = self._listener, None
        if listener is not None and self._acceptor is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            self._acceptor.join(STOP_LIMIT_S)
            listener.close()
        self.cut_connections()

    def cut_connections(self) -> None:
        """Cuts every connection there is, in mid-body too; new ones are taken."""
        with self._changed:
            current = dict(self._connections)
        for connection in current.values():
            connection.wake()
        for thread in current:
            thread.join(STOP_LIMIT_S)

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        err: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def script(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        key: str | None = None,
        query: str | None = None,
        range_bytes: tuple[int, int] | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> Armed:
        """Puts a fault in force (see `Rule`); the returned object counts `seen` and `hits`."""
        armed = Armed(
            Rule(
                fault=fault,
                method=method,
                key=key,
                query=query,
                range_bytes=range_bytes,
                nth=nth,
                times=times,
            )
        )
        self.arm(armed)
        return armed

    def arm(self, armed: Armed) -> None:
        with self._changed:
            self._rules.append(armed)

    def clear(self) -> None:
        """No fault is in force any more."""
        with self._changed:
            self._rules.clear()
            self._refusals = 0

    def refuse_connections(self, count: int) -> None:
        """The next `count` connections are closed as soon as they are accepted."""
        with self._changed:
            self._refusals += count

    def counters(self) -> Counters:
        """A copy that does not move any more."""
        with self._changed:
            return copy.deepcopy(self._counters)

    def reset(self) -> None:
        """All counters start again at zero."""
        with self._changed:
            self._counters = Counters()

    def wait_until(self, condition: Callable[[Counters], bool], limit_s: float = 10.0) -> Counters:
        """Waits for a condition on the counters. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self._counters), limit_s):
                raise TimeoutError(f"the proxy saw {self._counters} within {limit_s:g} s")
        return self.counters()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # the listener was shut down
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._counters.connections += 1
            refused = self._refusals > 0
            self._refusals -= refused
            if refused:
                sock.close()
                return
            connection = _Connection(self, Stream(sock))
            thread = threading.Thread(target=self._run, args=(connection,), name="proxy-conn")
            self._connections[thread] = connection
        thread.start()

    def _run(self, connection: _Connection) -> None:
        try:
            connection.serve()
        finally:
            connection.close()
            with self._changed:
                del self._connections[threading.current_thread()]

    def choose(self, request: Request) -> Fault | None:
        """Counts a request and says what hits it."""
        with self._changed:
            self._counters.requests[request.method] += 1
            self._counters.requests_by_key[request.key] += 1
            fault = choose(self._rules, request)
            self._counters.faults += fault is not None
            self._changed.notify_all()
            return fault

    def count_response(self, number: int) -> None:
        with self._changed:
            self._counters.statuses[str(number)] += 1

    def count_body(self, request: Request, count: int, number: int) -> None:
        with self._changed:
            self._counters.body_bytes += count
            self._counters.bytes_by_key[request.key] += count
            if request.key and number < 300:
                self._counters.object_bytes += count
            self._changed.notify_all()

    def count_abort(self) -> None:
        with self._changed:
            self._counters.aborted_by_client += 1
            self._changed.notify_all()

    def piece_bytes(self) -> int:
        return self._shaper.piece_bytes()

    def shape(self, count: int) -> None:
        """Waits until `count` more bytes may be sent at the shared rate."""
        if not self._shaper.rate_bytes_per_s:
            return
        with self._changed:
            wait_s = self._shaper.reserve(count, time.monotonic())
        self.pause(wait_s)

    def pause(self, wait_s: float) -> None:
        """Sleeps, but not into a stop. Short naps are plain sleeps, which cost half as much."""
        if wait_s >= LONG_NAP_S:
            self.stopping.wait(wait_s)
        elif wait_s > 0:
            time.sleep(wait_s)


class _ClientGone(Exception):
    """The client closed before it had the whole response."""


class _Cut(Exception):
    """A fault ends this connection."""


class _Connection:
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
            while (head := self._client.read_head()) is not None:
                if not self._exchange(head):
                    return
        except _ClientGone:
            if not self._closed.is_set():
                self._proxy.count_abort()
        except (_Cut, WireError, OSError):
            return  # the client sees a closed connection, as from a server that broke off

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
            sock = socket.create_connection(self._proxy.upstream, 10.0)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upstream = self._upstream = Stream(sock)
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
        upstream.pour(body.from_server_bytes, send, self._proxy.piece_bytes)
        if body.cut:
            raise _Cut
        if body.padding_bytes:
            send(memoryview(bytes(body.padding_bytes)))
        if body.from_server_bytes != body.length_bytes:
            self._drop_upstream()  # the rest of this body is still in it

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
        self, connection: _Connection, proxy: FaultProxy, request: Request, number: int
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
        if fault is None or number >= 300:
            return
        if isinstance(fault, WrongEtag):
            response.set(b"ETag", fault.etag.encode())
        elif isinstance(fault, AlteredLength):
            self._alter(response, fault.delta_bytes)
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


def main(arguments: list[str] | None = None) -> None:
    """Runs until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.services.proxy")
    parser.add_argument("--upstream", required=True, help="URL of the server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="bytes/s over all connections")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each response")
    chosen = parser.parse_args(arguments)
    with FaultProxy(
        chosen.upstream,
        rate_bytes_per_s=chosen.rate or None,
        latency_s=chosen.latency,
        port=chosen.port,
    ) as proxy:
        line: dict[str, Any] = {"endpoint_url": proxy.endpoint_url, "port": proxy.port}
        print(json.dumps(line), flush=True)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
