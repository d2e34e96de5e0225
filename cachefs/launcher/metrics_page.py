"""`GET /metrics` and `GET /healthz` of a process that has no event loop: at a Unix socket, or at
HOST:PORT. Serves on threads of its own, from `start` to `close`."""

from __future__ import annotations

import http.server
import os
import secrets
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cachefs.core.access import parse_address
from cachefs.core.errors import BadConfig

UNIX: Final = "unix:"
REQUEST_S: Final = 5.0  # for a request to arrive
CLOSE_S: Final = 1.0
_POLL_S: Final = 0.1


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


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
        self._inode = 0

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
        if self._address.startswith(UNIX):
            remove_own_socket(self._address.removeprefix(UNIX), self._inode)

    def _listen(self) -> socketserver.BaseServer:
        if not self._address.startswith(UNIX):
            host, port = parse_address(self._address, 0)
            server = http.server.ThreadingHTTPServer((host, port), self._handler)
            server.daemon_threads = True
            return server
        path = self._address.removeprefix(UNIX)
        hidden = hidden_name(path)
        unix_server = _UnixServer(hidden, self._handler)
        os.chmod(hidden, 0o600)
        self._inode = os.stat(hidden).st_ino
        os.rename(hidden, path)
        return unix_server


def hidden_name(path: str) -> str:
    """Returns a name beside a socket, at which to bind before a rename: a process takes the name of
    a socket over at once, and it never refuses a connection in between."""
    return os.path.join(os.path.dirname(path), f".{secrets.token_hex(4)}")


def remove_own_socket(path: str, inode: int) -> None:
    """Removes a socket, unless another process has replaced it."""
    try:
        if os.stat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        return


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
