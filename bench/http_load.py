"""Calls a master from one thread over many connections, at little CPU cost for the caller."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.mounts import BenchFailed
from cachefs.core import cluster as c
from cachefs.core.messages import Failure, Message

RECEIVE_BYTES = 1 << 18
WAIT_S = 20.0


@dataclass
class Load:
    """The totals of the received replies, on the sender's clock."""

    calls: int = 0
    bytes: int = 0
    took_s: float = 0.0
    longest_s: float = 0.0

    @property
    def per_s(self) -> float:
        return self.calls / self.took_s


class Connection:
    """One persistent connection with at most one call in flight."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_at = 0.0
        self._data = bytearray()
        self._missing = 0

    def send(self, body: bytes) -> None:
        self._data.clear()
        self._missing = 0
        self.sent_at = time.monotonic()
        self.socket.sendall(_request(body))

    def receive(self) -> bytes | None:
        """Returns the body once it is complete. Raises BenchFailed if the master closed it."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise BenchFailed("the master closed a connection")
        self._data += data
        if not self._missing:
            self._missing = self._length()
        if not self._missing or len(self._data) < self._missing:
            return None
        return bytes(self._data[self._data.find(b"\r\n\r\n") + 4 :])

    def _length(self) -> int:
        """Returns the length of headers and body; 0 while the headers are incomplete."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        for line in self._data[:end].split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                return end + 4 + int(value)
        raise BenchFailed("an answer without a length")


def ask(connection: Connection, call: Message) -> c.Answer:
    """Sends one call and returns the decoded reply. Raises BenchFailed for a failure."""
    connection.send(c.encode(call))
    while (body := connection.receive()) is None:
        pass
    answer = c.decode_answer(body)
    if isinstance(answer, Failure):
        raise BenchFailed(f"{type(call).__name__}: {answer.cause}")
    return answer


def drive(connections: list[Connection], bodies: Iterator[bytes], seconds: float) -> Load:
    """Sends the next call on each connection as soon as its reply has arrived."""
    load, began = Load(), time.monotonic()
    for connection in connections:
        connection.send(next(bodies))
    for connection, answer in answers(connections, lambda: time.monotonic() < began + seconds):
        _count(load, connection, answer)
        connection.send(next(bodies))
    load.took_s = time.monotonic() - began
    return load


def answers(
    connections: list[Connection], wanted: Callable[[], bool]
) -> Iterator[tuple[Connection, bytes]]:
    """Yields complete replies while `wanted()`. The caller sends the next calls."""
    by_fd = {connection.socket.fileno(): connection for connection in connections}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    with poll:
        while wanted():
            for fd, _ in poll.poll(0.05):
                body = by_fd[fd].receive()
                if body is not None:
                    yield by_fd[fd], body


def _count(load: Load, connection: Connection, answer: bytes) -> None:
    if b"Failure" in answer[:20]:
        raise BenchFailed(str(c.decode_answer(answer)))
    load.calls += 1
    load.bytes += len(answer)
    load.longest_s = max(load.longest_s, time.monotonic() - connection.sent_at)


def _request(body: bytes) -> bytes:
    return (
        b"POST /v1/call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
