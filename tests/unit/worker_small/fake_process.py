"""The server's end of the process that reads small files, with a test at the other end."""

from __future__ import annotations

import os
import socket

from connectors.fetch.request import Get as Request
from tests.unit.worker.rig import until
from worker.fill.small.engine import Engine
from worker.fill.small.wire import MESSAGE_BYTES, MOST_OF_ONE, Get, Got, decode_gets, encode

REQUEST = Request("http://127.0.0.1:9/f", ["X: secret"], 3, {10004: "secret"}, [("etag", "e")])


class FakeProcess:
    """What a test does in its place. `got`: what it was told to read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock.dup()
        self.sock.setblocking(False)
        self.got: list[Get] = []
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def poll(self) -> int | None:
        return 0 if self.killed else None

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def tell(self, *gots: Got) -> None:
        self.sock.send(encode(list(gots)))

    def come(self, get: Get) -> None:
        self.tell(Got(get.number, "", 3, 77, 4096))

    def end(self) -> None:
        self.sock.close()

    def take(self) -> list[list[tuple[Get, int]]]:
        """Datagrams that came since: requests, and the inodes of the files that came along."""
        found = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, MESSAGE_BYTES, MOST_OF_ONE)
            except BlockingIOError:
                return found
            gets = decode_gets(data)
            assert len(gets) == len(fds)
            found.append([(get, _inode(fd)) for get, fd in zip(gets, fds, strict=True)])
            self.got += gets


def _inode(fd: int) -> int:
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


class Processes:
    """All that were started. `fault`: of the next start."""

    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.fault: OSError | None = None

    def __call__(self, sock: socket.socket, words: int) -> FakeProcess:
        if self.fault is not None:
            raise self.fault
        self.started.append(FakeProcess(sock))
        return self.started[-1]

    @property
    def last(self) -> FakeProcess:
        return self.started[-1]

    def end(self) -> None:
        for process in self.started:
            process.end()


async def ready(engine: Engine, processes: Processes) -> FakeProcess:
    """One that was launched and has said so."""
    engine.attend()
    processes.last.tell()
    await until(lambda: engine.is_ready)
    return processes.last
