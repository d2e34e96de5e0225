"""The process that reads small files: requests to origins go out on its connections, bodies go
straight into files that the server has made (`worker.fill.small.wire`).

`python -I -m worker.fill.small.process SOCKET WORDS VERSION`: descriptors of a socket to the server
and of the memory in which `at_disk` stands, and the version of the server: another one, installed
while that runs, does not serve it, and it reads by threads until it is started again. The process
has no name, no index and no state, and the keys that libcurl signs with come with each request, by
the socket: it ends with its server, and may be killed at any time. Who started it learns by the end
of the socket that nothing more is written.

Why a process: libcurl calls back for each header and each 16 KiB. In the server each of some twenty
call-backs for a small file would have to get the GIL from the loop, at the cost of a change of
threads (docs/architecture.md has the figures).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import signal
import socket
import sys
from typing import Final

import xxhash

import cachefs
from cachefs.core.errors import TooManyOpenFiles
from connectors.fetch.many import Many
from connectors.fetch.request import Made
from worker.fill.small.wire import MESSAGE_BYTES, MOST_OF_ONE, WORDS_BYTES, Got, decode_gets, encode
from worker.store.filesystem import allocated_bytes

ANSWER_LIMIT_S: Final = 10.0  # for a server that does not listen


class Task:
    """One file. Its descriptor is closed when it is told of."""

    __slots__ = ("_fd", "_number", "_reader")

    def __init__(self, reader: Reader, number: int, fd: int) -> None:
        self._reader = reader
        self._number = number
        self._fd = fd

    def taken(self, body: memoryview | None, came_bytes: int, code: str, made: Made) -> None:
        """See `connectors.fetch.many.Taken`."""
        try:
            if body is None:
                got = Got(self._number, code, came_bytes, made=made)
            else:
                got = self._stored(self._number, body, made)
        finally:
            os.close(self._fd)
        self._reader.tell(got)

    def _stored(self, number: int, body: memoryview, made: Made) -> Got:
        checksum, size_bytes, refused = xxhash.xxh3_64_intdigest(body), len(body), 0
        self._reader.at_disk(number)
        try:
            done = 0
            while done < size_bytes:  # a full disk shows itself at the next one
                done += os.pwrite(self._fd, body[done:] if done else body, done)
        except OSError as err:
            refused = err.errno or errno.EIO
        try:
            allocated = allocated_bytes(self._fd)
        except OSError as err:
            allocated, refused = 0, err.errno or errno.EIO
        self._reader.at_disk(0)
        return Got(number, "", size_bytes, checksum, allocated, refused, made)


class Reader:
    """The server's socket as an inbox (`connectors.fetch.many.Inbox`)."""

    def __init__(self, sock: socket.socket, words: memoryview) -> None:
        self._sock = sock
        self._words = words
        self._many = Many(self)
        self._ended: list[Got] = []
        self._owes_answer = True  # an empty one tells that this is alive

    def run(self) -> None:
        """Until the server has gone."""
        self._sock.settimeout(ANSWER_LIMIT_S)
        self._many.serve()

    def fileno(self) -> int:
        return self._sock.fileno()

    def ready(self) -> bool:
        """See `Inbox`."""
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, MESSAGE_BYTES, MOST_OF_ONE)
        except ConnectionError:
            return False
        if not data:
            return False
        gets = decode_gets(data)
        self._owes_answer = not gets
        for get, fd in zip(gets, fds, strict=False):
            self._many.start(get.request, Task(self, get.number, fd).taken)
        for get in gets[len(fds) :]:  # no descriptors are left for their files
            self.tell(Got(get.number, TooManyOpenFiles.code, 0))
        return True

    def turned(self) -> None:
        """See `Inbox`."""
        if self._ended or self._owes_answer:
            ended, self._ended, self._owes_answer = self._ended, [], False
            with contextlib.suppress(ConnectionError):  # its end is about to be read
                self._sock.send(encode(ended))

    def tell(self, got: Got) -> None:
        self._ended.append(got)
        if len(self._ended) >= MOST_OF_ONE:  # those behind it in this turn may take long
            self.turned()

    def at_disk(self, number: int) -> None:
        """The file of that number is being written now; 0: none."""
        self._words[0] = number
        self._words[1] += 1


def main() -> None:
    # The terminal, and a service manager, tell all processes: this one ends when the server has.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s small files: %(message)s")
    sock, words = (int(argument) for argument in sys.argv[1:3])
    if sys.argv[3] != cachefs.__version__:
        sys.exit(f"small files: this is {cachefs.__version__}, and the server {sys.argv[3]}")
    shared = mmap.mmap(words, WORDS_BYTES)
    os.close(words)
    with socket.socket(fileno=sock) as server:
        Reader(server, memoryview(shared).cast("Q")).run()


if __name__ == "__main__":
    main()
