"""A small S3 server that answers as a test says, with one object and any fault."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.services.tls import server_context

LISTING = (
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>{}</ListBucketResult>"
)
OBJECT = (
    "<Contents><Key>{}</Key><LastModified>2026-11-21T09:32:14.123Z</LastModified>"
    "<ETag>&quot;e1&quot;</ETag><Size>{}</Size></Contents>"
)
ENDLESS_BYTES = 256 << 20  # so that a client that has never enough fails a test, and no machine
GONE = ConnectionError, ssl.SSLError
MODIFIED = "Sat, 21 Nov 2026 09:32:14 GMT"


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes = b""


@dataclass
class Answer:
    """`cut_after`: the connection ends after so many body bytes. `stall_after`: nothing more comes
    after so many, until the server's `stalled` is set. `chunk_bytes`: the body goes in chunks of so
    many. `endless`: the body is sent again and again, in chunks, until the client has enough."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    stall_after: int | None = None
    chunk_bytes: int = 0
    endless: bool = False


Script = Callable[[Request], Answer]


def error(status: int, code: str, extra: str = "") -> Answer:
    body = f"<Error><Code>{code}</Code><Message>said so</Message>{extra}</Error>"
    return Answer(status, body.encode(), {"x-amz-request-id": "REQ1"})


def listing(*objects: tuple[str, int]) -> Answer:
    return Answer(body=LISTING.format("".join(OBJECT.format(*o) for o in objects)).encode())


def head(etag: str, size: int, modified: str = MODIFIED) -> Answer:
    """To a HEAD."""
    headers = {"Last-Modified": modified, "ETag": f'"{etag}"', "Content-Length": str(size)}
    return Answer(headers=headers)


def ranged(request: Request, data: bytes, etag: str = "e1") -> Answer:
    """A right answer to a ranged GET, which ignores If-Match."""
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    headers = {
        "ETag": f'"{etag}"',
        "Last-Modified": MODIFIED,
        "Content-Range": f"bytes {first}-{last}/{len(data)}",
    }
    return Answer(206, data[int(first) : int(last) + 1], headers)


class ScriptedS3:
    """The running server: its URL, what it was asked, and the script that answers."""

    def __init__(self, port: int, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self.stalled = threading.Event()
        self.sent_bytes = 0  # of endless bodies
        self.connections = 0
        self.script: Script = lambda _request: error(404, "NoSuchKey")

    def present(self, certificate: Path) -> None:
        """Shows another certificate to whom connects from now on."""
        self.tls = server_context(certificate)


@contextlib.contextmanager
def scripted_s3(
    certificate: Path | None = None,
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED,
) -> Iterator[ScriptedS3]:
    """Serves on loopback until the end of the block; `certificate`: PEM with its key, for TLS up to
    the version `newest`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with contextlib.suppress(*GONE):  # a client that has seen enough closes
                super().handle()

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            request = Request(self.command, self.path, headers, body)
            server.requests.append(request)
            self._answer(server.script(request))

        do_HEAD = do_CONNECT = do_PUT = do_POST = do_DELETE = do_GET

        def _answer(self, answer: Answer) -> None:
            self.send_response(answer.status)
            named = {name.lower() for name in answer.headers}
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.chunk_bytes or answer.endless:
                self.send_header("Transfer-Encoding", "chunked")
            elif "content-length" not in named:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(*GONE):  # a client may have seen enough
                    self._write(answer)
            if answer.cut_after is not None:
                self.close_connection = True

        def _write_chunks(self, answer: Answer) -> None:
            size = answer.chunk_bytes
            body = answer.body[: answer.cut_after]
            for start in range(0, len(body), size):
                self._write_chunk(body[start : start + size])
            if answer.cut_after is None:
                self._write_chunk(b"")

        def _write_chunk(self, chunk: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))

        def _write_endless(self, body: bytes) -> None:
            self.close_connection = True
            while server.sent_bytes < ENDLESS_BYTES:
                self._write_chunk(body)
                server.sent_bytes += len(body)

        def _write(self, answer: Answer) -> None:
            if answer.endless:
                self._write_endless(answer.body)
                return
            if answer.chunk_bytes:
                self._write_chunks(answer)
                return
            if answer.stall_after is None:
                self.wfile.write(answer.body[: answer.cut_after])
                return
            self.wfile.write(answer.body[: answer.stall_after])
            server.stalled.wait(30)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, object]:
            """The connection's thread shakes hands."""
            sock, address = super().get_request()
            server.connections += 1
            if server.tls is not None:
                sock = server.tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            return sock, address

    httpd = Server(("127.0.0.1", 0), Handler)
    tls = server_context(certificate, newest) if certificate else None
    server = ScriptedS3(httpd.server_port, tls)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        thread.join(10)
        httpd.server_close()
