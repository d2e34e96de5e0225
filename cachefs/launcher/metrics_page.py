"""`GET /metrics` and `GET /healthz` of a process that has no event loop: at a Unix socket, or at
HOST:PORT. Serves on separate threads, from `start` to `close`."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cachefs.core.access import parse_address
from cachefs.core.errors import BadConfig
from cachefs.network.socket_name import SocketName

UNIX: Final = "unix:"
REQUEST_S: Final = 5.0  # for a request to arrive
MOST_CONNECTIONS: Final = 32
BACKLOG: Final = 128
CLOSE_S: Final = 1.0
KEEP_S: Final = 1.0
_POLL_S: Final = 0.1


class _Threads(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread for each connection. Beyond `MOST_CONNECTIONS` the server ends the oldest one: a
    caller that sends its request at once is answered."""

    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[Any, None] = {}  # the oldest first
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                with contextlib.suppress(OSError):  # its thread closes it
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Ends a connection. Its thread calls this."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _TcpServer(_Threads):
    """A server at a host and a port."""

    allow_reuse_address = True


class _UnixServer(_Threads, socketserver.UnixStreamServer):
    """A server at a name that it takes over, and takes again when a successor has ended."""

    def __init__(self, path: str, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self._name = SocketName(path)
        self._keep_at = 0.0
        super().__init__(self._name.hidden, handler)
        os.chmod(self._name.hidden, 0o600)
        self._name.take()

    def service_actions(self) -> None:
        """Keeps the name. `serve_forever` calls this between requests."""
        now = time.monotonic()
        if now >= self._keep_at:
            self._keep_at = now + KEEP_S
            with contextlib.suppress(OSError):  # the next call tries again
                self._name.keep()

    def server_close(self) -> None:
        super().server_close()
        self._name.release()


class MetricsPage:
    """The page of one process."""

    def __init__(
        self, address: str, registry: CollectorRegistry, is_healthy: Callable[[], bool]
    ) -> None:
        """`address`: `unix:PATH`, which replaces a socket of that name, or HOST:PORT."""
        self._address = address
        self._handler = _handler_of(registry, is_healthy)
        self._server: socketserver.BaseServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listens. Raises BadConfig if it cannot."""
        try:
            self._server = self._listen()
        except OSError as err:
            raise BadConfig(
                f"cannot listen on {self._address}: {err.strerror}",
                remedy="choose another --metrics",
            ) from err
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the page, and removes its socket unless another process has replaced it.
        Idempotent."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join(CLOSE_S)
        self._server.server_close()
        self._server = None

    def _listen(self) -> socketserver.BaseServer:
        if not self._address.startswith(UNIX):
            host, port = parse_address(self._address, 0)
            return _TcpServer((host, port), self._handler)
        return _UnixServer(self._address.removeprefix(UNIX), self._handler)


def _handler_of(
    registry: CollectorRegistry, is_healthy: Callable[[], bool]
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = REQUEST_S

        def do_GET(self) -> None:
            match self.path:
                case "/metrics":
                    self._reply(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)
                case "/healthz" if is_healthy():
                    self._reply(HTTPStatus.OK, b"ok\n")
                case "/healthz":
                    self._reply(HTTPStatus.SERVICE_UNAVAILABLE, b"not healthy\n")
                case _:
                    self._reply(HTTPStatus.NOT_FOUND, b"no such page\n")

        def _reply(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Logs nothing: a scrape is no event, and a Unix socket has no client address."""

    return Handler
