"""An S3 origin that needs little CPU, for benches in which the origin must not be the bottleneck:
`python -m bench.light_origin --folder OBJECTS --upstream URL [--certificate PEM]`.

One thread answers GET and HEAD of an object from `OBJECTS/BUCKET/KEY` with epoll and sendfile (over
TLS: with OpenSSL, from one copy in memory), with the etag that the real server stored there. All
other requests (listings) are forwarded to the real server at URL. All connections share one rate of
bodies, and every request waits for the latency. Signatures of requests that it answers itself are
not checked.

It prints one JSON line with its URL and ends with its standard input. `GET /-/counters`, `POST
/-/settings` and `/-/reset` are those of the proxy of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from tests.services.shaper import Shaper
from tests.services.tls import server_context

MAX_PIECE_BYTES = 1 << 20
READ_BYTES = 256 << 10  # read at a time, to encrypt it
WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
MAX_HEAD_BYTES = 64 << 10
FORWARD_LIMIT_S = 60.0
END = b"\r\n\r\n"


class Head:
    """The request line and headers. Raises ValueError for a malformed request line."""

    def __init__(self, raw: bytes) -> None:
        first, _, self._rest = raw.partition(b"\r\n")
        method, target, _ = first.split(b" ", 2)
        self.method, self.raw = method, raw
        self.path, _, self.query = target.partition(b"?")

    def get(self, name: bytes) -> bytes:
        """Returns the value of a header; `name` is in lower case."""
        for line in self._rest.split(b"\r\n"):
            key, _, value = line.partition(b":")
            if key.lower() == name:
                return value.strip()
        return b""

    @property
    def length_bytes(self) -> int:
        return int(self.get(b"content-length") or 0)

    @property
    def is_object(self) -> bool:
        """True for a GET or HEAD of an object without special parameters."""
        key = self.path.lstrip(b"/").partition(b"/")[2]
        is_plain = self.query in (b"", b"x-id=GetObject", b"x-id=HeadObject")
        return self.method in (b"GET", b"HEAD") and bool(key) and is_plain


@dataclass
class Reply:
    """A head, and `left` bytes of a file from `offset` on, the first of which may be in `data`."""

    head: bytes
    file: int = -1
    offset: int = 0
    left: int = 0
    data: memoryview = field(default_factory=lambda: memoryview(b""))

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def span(value: bytes, size: int) -> tuple[int, int] | None:
    """Returns [first, end) of a Range header; None: the whole object."""
    if not value.startswith(b"bytes="):
        return None
    first, _, last = value[6:].partition(b"-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)


def object_reply(folder: bytes, head: Head) -> Reply:
    """Returns the reply to a GET or HEAD of an object, including conditions and ranges."""
    path = os.path.normpath(folder + b"/" + unquote_to_bytes(head.path))
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        etag = os.getxattr(file, "user.etag")
    except OSError:
        return error(b"404 Not Found", b"NoSuchKey")
    status = os.fstat(file)
    reply = Reply(b"", file, 0, status.st_size)
    if (wanted := head.get(b"if-match")) and wanted.strip(b'"') != etag.strip(b'"'):
        reply.close()
        return error(b"412 Precondition Failed", b"PreconditionFailed")
    lines = [b"HTTP/1.1 200 OK"]
    if (part := span(head.get(b"range"), status.st_size)) is not None:
        if part[0] >= part[1]:
            reply.close()
            return error(b"416 Requested Range Not Satisfiable", b"InvalidRange")
        reply.offset, reply.left = part[0], part[1] - part[0]
        shown = b"%d-%d/%d" % (part[0], part[1] - 1, status.st_size)
        lines = [b"HTTP/1.1 206 Partial Content", b"Content-Range: bytes " + shown]
    lines += [b"ETag: " + etag, b"Content-Length: %d" % reply.left]
    lines += [b"Last-Modified: " + formatdate(status.st_mtime, usegmt=True).encode()]
    lines += [b"Accept-Ranges: bytes", b"Content-Type: application/octet-stream"]
    reply.head = b"\r\n".join(lines) + END
    if head.method == b"HEAD":
        reply.close()
        reply.left = 0
    return reply


def error(status: bytes, code: bytes) -> Reply:
    body = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>' + code + b"</Code></Error>"
    lines = [b"HTTP/1.1 " + status, b"Content-Type: application/xml"]
    return Reply(b"\r\n".join([*lines, b"Content-Length: %d" % len(body)]) + END + body)


def json_reply(value: object) -> Reply:
    body = json.dumps(value).encode()
    return Reply(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % len(body) + END + body)


@dataclass
class Client:
    """One connection, with one request at a time. `is_open`: a TLS handshake is complete, too."""

    socket: socket.socket
    is_open: bool
    received: bytearray = field(default_factory=bytearray)
    reply: Reply | None = None


class LightOrigin:
    """The event loop. Only `_forward` runs in other threads, each with its connection."""

    def __init__(self, folder: str, upstream_url: str, certificate: Path | None = None) -> None:
        url = urlsplit(upstream_url)
        self._upstream = (url.hostname or "127.0.0.1", url.port or 80)
        self._folder = os.fsencode(folder)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._clients: dict[int, Client] = {}
        self._due: list[tuple[float, int, Client]] = []
        self._numbers = itertools.count()
        self._shaper = Shaper(None)
        self._latency_s = 0.0
        self._counters = {"GET": 0, "object_bytes": 0}
        self._tls = server_context(certificate) if certificate else None
        port = self._listener.getsockname()[1]
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"

    def serve(self) -> None:
        """Serves until standard input ends."""
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(0, select.EPOLLIN | select.EPOLLHUP)
        while True:
            for fd, _ in self._epoll.poll(self._pause_s(), 256):
                if fd == 0:
                    return
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._clients:
                    self._safely(self._ready, self._clients[fd])
            self._send_due()

    def _pause_s(self) -> float:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else -1.0

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
                self._clients[connection.fileno()] = Client(connection, self._tls is None)
                self._epoll.register(connection, select.EPOLLIN)

    def _safely(self, act: Callable[[Client], None], client: Client) -> None:
        """Calls `act`, and closes the connection if it breaks or its request is malformed."""
        try:
            act(client)
        except WAITS:
            pass
        except (OSError, ValueError):
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if self._clients.pop(client.socket.fileno(), None) is not None:
            if client.reply is not None:
                client.reply.close()
            client.socket.close()

    def _ready(self, client: Client) -> None:
        if not client.is_open and isinstance(client.socket, ssl.SSLSocket):
            client.socket.do_handshake()
            client.is_open = True
        if client.reply is not None:
            self._epoll.modify(client.socket, select.EPOLLIN)
            self._send(client)
        else:
            self._receive(client)

    # ---- requests ----

    def _receive(self, client: Client) -> None:
        data = client.socket.recv(MAX_HEAD_BYTES)
        if not data:
            return self._drop(client)
        client.received += data
        end = client.received.find(END)
        if end < 0:
            return None
        head = Head(bytes(client.received[: end + len(END)]))
        if not head.is_object and not head.path.startswith(b"/-/"):
            return self._hand_over(client)
        if len(client.received) < end + len(END) + head.length_bytes:
            return None
        body = bytes(client.received[end + len(END) :])
        client.received.clear()
        if head.path.startswith(b"/-/"):
            client.reply = json_reply(self._act(head.path, body))
            return self._send(client)
        self._counters["GET"] += head.method == b"GET"
        client.reply = object_reply(self._folder, head)
        return self._wait(client, self._latency_s)

    def _act(self, path: bytes, body: bytes) -> object:
        if path == b"/-/settings":
            wanted = json.loads(body)
            self._shaper = Shaper(wanted["rate_bytes_per_s"])
            self._latency_s = float(wanted["latency_s"])
        elif path == b"/-/reset":
            self._counters = dict.fromkeys(self._counters, 0)
        return {"requests": {"GET": self._counters["GET"]}, **self._counters}

    # ---- replies ----

    def _wait(self, client: Client, pause_s: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + pause_s, next(self._numbers), client))

    def _send_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, client = heapq.heappop(self._due)
            if client.reply is not None and client.socket.fileno() in self._clients:
                self._safely(self._send, client)

    def _send(self, client: Client) -> None:
        reply = client.reply
        assert reply is not None
        try:
            if reply.head:
                more = socket.MSG_MORE if reply.left and self._tls is None else 0
                sent = client.socket.send(reply.head, more)
                reply.head = reply.head[sent:]
            while reply.left and not reply.head:
                if not self._send_piece(client, reply):
                    return
        except WAITS:
            self._epoll.modify(client.socket, select.EPOLLIN | select.EPOLLOUT)
            return
        reply.close()
        client.reply = None

    def _send_piece(self, client: Client, reply: Reply) -> bool:
        """Sends a piece. Returns False if the rest must wait for the shared rate."""
        rate = self._shaper.rate_bytes_per_s
        most = self._shaper.piece_bytes() if rate else MAX_PIECE_BYTES
        most = min(most, reply.left)
        if self._tls is None:
            sent = os.sendfile(client.socket.fileno(), reply.file, reply.offset, most)
        else:
            sent = self._encrypt(client.socket, reply, most)
        reply.offset += sent
        reply.left -= sent
        self._counters["object_bytes"] += sent
        pause_s = self._shaper.reserve(sent, time.monotonic())
        if pause_s and reply.left:
            self._wait(client, pause_s)
            return False
        return True

    def _encrypt(self, connection: socket.socket, reply: Reply, most: int) -> int:
        """Sends one TLS record of the rest, and returns its length. A record that had to wait is
        resent from the same bytes, as OpenSSL requires."""
        if not reply.data:
            size = min(READ_BYTES, reply.left)
            reply.data = memoryview(os.pread(reply.file, size, reply.offset))
        sent = connection.send(reply.data[:most])
        reply.data = reply.data[sent:]
        return sent

    # ---- the real server ----

    def _hand_over(self, client: Client) -> None:
        """Hands the connection to a thread that forwards it to the real server, and closes it."""
        self._epoll.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        thread = threading.Thread(target=self._forward, args=(client,), daemon=True)
        thread.start()

    def _forward(self, client: Client) -> None:
        time.sleep(self._latency_s)
        head, _, body = bytes(client.received).partition(END)
        with contextlib.suppress(OSError), client.socket as down:
            down.settimeout(FORWARD_LIMIT_S)
            with socket.create_connection(self._upstream, FORWARD_LIMIT_S) as up:
                up.sendall(head + b"\r\nConnection: close" + END + body)
                left = Head(head + END).length_bytes - len(body)
                while left > 0 and (piece := down.recv(min(left, MAX_HEAD_BYTES))):
                    up.sendall(piece)
                    left -= len(piece)
                while piece := up.recv(MAX_PIECE_BYTES):
                    down.sendall(piece)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.light_origin")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--certificate", type=Path, help="PEM with its key: serve TLS")
    chosen = parser.parse_args()
    served = LightOrigin(chosen.folder, chosen.upstream, chosen.certificate)
    print(json.dumps({"endpoint_url": served.url}), flush=True)
    served.serve()


if __name__ == "__main__":
    main()
