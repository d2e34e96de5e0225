"""A peer that does as it is told: says nothing, breaks off, lies. In a thread, over loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import xxhash

from cachefs.core import cluster as c
from cachefs.core.model import PAGE_BYTES


class ScriptedPeer:
    """`behaviour`: silent, cut (the body ends in its third page), lie (wrong bytes), busy, gone
    (closes without an answer), no_sums. It has every byte of `data`."""

    def __init__(self, data: bytes, behaviour: str) -> None:
        self.data = data
        self.behaviour = behaviour
        self.requests = 0
        self.doubts: list[c.Doubt] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.append(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock.makefile("rwb") as stream:
            while line := stream.readline():
                length = 0
                while (header := stream.readline().strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                body = stream.read(length)
                if line.startswith(b"POST"):
                    call = c.decode_call(body)
                    assert isinstance(call, c.Doubt)
                    self.doubts.append(call)
                    stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    stream.flush()
                    continue
                self.requests += 1
                if not self._answer(stream.write, line.split()[1].decode()):
                    sock.shutdown(socket.SHUT_RDWR)
                    return
                stream.flush()

    def _answer(self, write: Callable[[bytes], object], target: str) -> bool:
        """False: the connection is closed then."""
        if self.behaviour == "silent":
            return True
        if self.behaviour == "gone":
            return False
        if self.behaviour == "busy":
            write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            return True
        query = parse_qs(urlsplit(target).query)
        first, end = int(query["first"][0]), int(query["end"][0])
        pages = [
            self.data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] for page in range(first, end)
        ]
        sums = ",".join(f"{xxhash.xxh3_64_intdigest(page):016x}" for page in pages)
        body = b"".join(pages)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
        if self.behaviour != "no_sums":
            head += f"{c.CHECKSUMS_HEADER}: {sums}\r\n"
        write(head.encode() + b"\r\n")
        if self.behaviour == "cut":
            write(body[: 2 * PAGE_BYTES + PAGE_BYTES // 2])
            return False
        write(body[:-1] + bytes([body[-1] ^ 1]) if self.behaviour == "lie" else body)
        return True

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)


@contextlib.contextmanager
def scripted(data: bytes, behaviour: str) -> Iterator[ScriptedPeer]:
    """For the time of a test."""
    peer = ScriptedPeer(data, behaviour)
    try:
        yield peer
    finally:
        peer.close()
