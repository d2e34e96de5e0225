"""An HTTP/1.1 proxy in front of one S3 server: counts, shapes and breaks what goes through.

It forwards messages as they are (Host and signatures hold) and copies bodies in large pieces, so
that it is cheap enough to sit in front of benches. One thread per client connection; all end with
`stop`. Everything may be changed while requests run.

    with FaultProxy(server.endpoint_url) as proxy:
        proxy.script(status(503, code="SlowDown"), method="GET", times=2)
        ...use proxy.endpoint_url...
        assert proxy.counters().body_bytes == size

With a certificate the proxy speaks TLS to its clients; `present` shows another one to whom
connects from then on. `upstream_ca` is what it trusts of a server whose URL says https.

In another process: `python -m tests.services.proxy --upstream URL [--rate BYTES/S] [--latency S]
[--certificate PEM]` prints one JSON line with its URL, serves `/-/...` (see `proxy_control`), and
ends when stdin does.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.services.faults import (
    Armed,
    Fault,
    Request,
    Rule,
    altered_length,
    choose,
    cut_body,
    drip_body,
    expired_credentials,
    hang,
    ignore_if_match,
    refuse,
    short_body,
    stall_body,
    status,
    wrong_etag,
)
from tests.services.http_wire import Stream
from tests.services.proxy_connection import Connection
from tests.services.shaper import Shaper
from tests.services.tls import server_context

__all__ = [
    "Counters",
    "FaultProxy",
    "altered_length",
    "cut_body",
    "drip_body",
    "expired_credentials",
    "hang",
    "ignore_if_match",
    "refuse",
    "short_body",
    "stall_body",
    "status",
    "wrong_etag",
]

CONNECT_LIMIT_S = 10.0
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
    handshakes: int = 0
    resumed: int = 0
    faults: int = 0


class FaultProxy:
    """The proxy, in threads of this process: `start` and `stop`, or `with`. Any thread may call."""

    def __init__(
        self,
        upstream_url: str,
        *,
        rate_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
        upstream_ca: Path | None = None,
    ) -> None:
        url = urlsplit(upstream_url)
        self.upstream = (url.hostname or "127.0.0.1", url.port or 80)
        self._upstream_tls: ssl.SSLContext | None = None
        if url.scheme == "https":
            self._upstream_tls = ssl.create_default_context(cafile=upstream_ca)
        self.host = host
        self.port = port
        self.latency_s = latency_s
        self.stopping = threading.Event()
        self._scheme = "https" if certificate else "http"
        self._tls: ssl.SSLContext | None = None
        self._shaper = Shaper(rate_bytes_per_s)
        self._changed = threading.Condition()
        self._counters = Counters()
        self._rules: list[Armed] = []
        self._refusals = 0
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._connections: dict[threading.Thread, Connection] = {}
        if certificate:
            self.present(certificate)

    @property
    def endpoint_url(self) -> str:
        """Of the proxy; the same after `offline` and `online`."""
        return f"{self._scheme}://{self.host}:{self.port}"

    def present(
        self, certificate: Path, newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
    ) -> None:
        """Shows another certificate, and speaks TLS up to `newest`, to whom connects from now on.
        Sessions of before cannot be resumed."""
        context = server_context(certificate, newest)
        with self._changed:
            self._tls = context

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
        listener = socket.create_server((self.host, self.port), backlog=512)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._acceptor = threading.Thread(
            target=self._accept, args=(listener,), name="proxy", daemon=True
        )
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

    def wait_until(self, condition: Callable[[Counters], bool], limit_s: float = 30.0) -> Counters:
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
            connection = Connection(self, Stream(self._secured(sock)))
            thread = threading.Thread(
                target=self._run, args=(connection,), name="proxy-conn", daemon=True
            )
            self._connections[thread] = connection
        thread.start()

    def _secured(self, sock: socket.socket) -> socket.socket:
        """The handshake is left to the connection's thread."""
        if self._tls is None:
            return sock
        return self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _run(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            connection.close()
            with self._changed:
                del self._connections[threading.current_thread()]

    def connect(self) -> Stream:
        """A new connection to the server. Raises OSError."""
        sock = socket.create_connection(self.upstream, CONNECT_LIMIT_S)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._upstream_tls is not None:
            sock = self._upstream_tls.wrap_socket(sock, server_hostname=self.upstream[0])
        return Stream(sock)

    def choose(self, request: Request) -> Fault | None:
        """Counts a request and says what hits it."""
        with self._changed:
            self._counters.requests[request.method] += 1
            self._counters.requests_by_key[request.key] += 1
            fault = choose(self._rules, request)
            self._counters.faults += fault is not None
            self._changed.notify_all()
            return fault

    def count_handshake(self, resumed: bool) -> None:
        with self._changed:
            self._counters.handshakes += 1
            self._counters.resumed += resumed
            self._changed.notify_all()

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


def main(arguments: list[str] | None = None) -> None:
    """Runs until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.services.proxy")
    parser.add_argument("--upstream", required=True, help="URL of the server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="bytes/s over all connections")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each response")
    parser.add_argument("--certificate", type=Path, help="PEM with its key: clients use TLS")
    chosen = parser.parse_args(arguments)
    with FaultProxy(
        chosen.upstream,
        rate_bytes_per_s=chosen.rate or None,
        latency_s=chosen.latency,
        port=chosen.port,
        certificate=chosen.certificate,
    ) as proxy:
        line: dict[str, Any] = {"endpoint_url": proxy.endpoint_url, "port": proxy.port}
        print(json.dumps(line), flush=True)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
