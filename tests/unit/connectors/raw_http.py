"""A server on loopback of which a test scripts every byte, and the reads that `Streams` does of
it."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cachefs.core.errors import BY_CODE
from connectors.base import Address, Request
from tests.services.streams_thread import StreamsThread

LIMIT_S = 20.0  # of every wait


class Clock:
    """Stands still until a test moves it. Who waits is woken each time that somebody reads it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._read = threading.Condition()

    def __call__(self) -> float:
        with self._read:
            self._read.notify_all()
        return self.now_s

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """What a thread does before it reads the clock is seen."""
        with self._read:
            assert self._read.wait_for(holds, LIMIT_S), what


@dataclass
class Came:
    """What came, as the script sees it. `connection` and `number` count from 0, the latter on the
    connection."""

    target: str
    connection: int
    number: int
    sock: socket.socket


Script = Callable[[Came], bool]
"""Answers; False: then the server closes."""


def content(target: str, size: int) -> bytes:
    return random.Random(target).randbytes(size)


def size_of(target: str) -> int:
    """A target is /name/size."""
    return int(target.rpartition("/")[2])


def reply(target: str, *more: str, status: str = "206 Partial Content") -> bytes:
    """A right one, with more headers."""
    size = size_of(target)
    lines = [
        f"HTTP/1.1 {status}",
        f'ETag: "{target}"',
        f"Content-Length: {size}",
        f"Content-Range: bytes 0-{size - 1}/{size}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content(target, size)


def answer(request: Came) -> bool:
    request.sock.sendall(reply(request.target))
    return True


class RawServer:
    """Runs until `close`. `requests`: the targets in the order in which they came."""

    def __init__(self) -> None:
        self.script: Script = answer
        self.requests: list[str] = []
        self.ended = 0  # connections
        self.changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address: Address = (socket.AF_INET, self._listener.getsockname())
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """For something that requests, or ends of connections, make true."""
        with self.changed:
            assert self.changed.wait_for(holds, LIMIT_S), what

    def has_asked(self, count: int) -> bool:
        return len(self.requests) >= count

    def has_ended(self, count: int) -> bool:
        return self.ended >= count

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(sock, len(self._connections)))
            self._connections.append(sock)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        with sock, contextlib.suppress(OSError):
            for number in itertools.count():
                target = _target(sock)
                if target is None:
                    break
                with self.changed:
                    self.requests.append(target)
                    self.changed.notify_all()
                if not self.script(Came(target, connection, number, sock)):
                    break
        with self.changed:
            self.ended += 1
            self.changed.notify_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(LIMIT_S)
        for sock in self._connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), "a script waits for ever"


def _target(sock: socket.socket) -> str | None:
    """Of the next request; None where no other comes."""
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        piece = sock.recv(4096)
        if not piece:
            return None
        got += piece
    return got.split(b" ")[1].decode()


@dataclass
class Pending:
    """A read, and all that is said of it."""

    target: str
    taken: list[bytes | None] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    started: bool = False
    before: Callable[[], None] = lambda: None

    def result(self) -> bytes | None:
        assert self.done.wait(LIMIT_S), f"{self.target} is not taken"
        return self.taken[0]

    def take(self, body: memoryview | None, came_bytes: int, code: str) -> None:
        self.before()
        self.taken.append(None if body is None else bytes(body))
        self.ended.append((came_bytes, code))
        self.done.set()


def is_given_back(read: Pending) -> bool:
    """With an error that others know, and no more bytes than were asked for."""
    assert read.result() is None
    [(size_bytes, code)] = read.ended
    return code in BY_CODE and 0 <= size_bytes < size_of(read.target)


class Rig:
    """`Streams`, and all reads that were started of it."""

    def __init__(self, server: RawServer) -> None:
        self.server = server
        self.clock = Clock()
        self.thread = StreamsThread(self.clock)
        self.streams = self.thread.streams
        self.reads: list[Pending] = []

    def start(
        self,
        target: str,
        address: Address | None = None,
        taken: Callable[[], None] = lambda: None,
    ) -> Pending:
        """`taken` is done before it is."""
        pending = Pending(target, before=taken)
        size = size_of(target)
        head = f"GET {target} HTTP/1.1\r\nHost: origin.test\r\n\r\n".encode()
        headers = ("etag", target), ("content-range", f"bytes 0-{size - 1}/{size}")
        request = Request(address or self.server.address, head, size, 206, headers)
        self.reads.append(pending)
        pending.started = self.thread.start(request, pending.take)
        return pending

    def read(self, target: str, address: Address | None = None) -> bytes | None:
        return self.start(target, address).result()

    def is_right(self, pending: Pending) -> bool:
        size = size_of(pending.target)
        return pending.result() == content(pending.target, size) and pending.ended == [(size, "")]

    def turn(self) -> None:
        """Has the thread look at the clock."""
        self.thread.turn(LIMIT_S)

    def got_bytes(self) -> int:
        """Of reads under way."""
        connections = [*self.streams._connections.values()]
        return sum(one.read.got for one in connections if one.read is not None)

    def send(self, request: Came, data: bytes) -> None:
        """On the one connection there is: it is received when this returns, by itself."""
        before = self.got_bytes()
        request.sock.sendall(data)
        self.clock.wait(
            lambda: not self.streams._busy or self.got_bytes() >= before + len(data), "no bytes"
        )

    def check(self) -> None:
        """At the end: each read was told once."""
        for read in self.reads:
            assert len(read.taken) == len(read.ended) == read.started, read.target


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    server = RawServer()
    made = Rig(server)
    try:
        yield made
    finally:
        try:
            made.thread.close(LIMIT_S)
        finally:
            server.close()
    made.check()
