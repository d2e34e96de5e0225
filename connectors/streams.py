"""Many small reads at once in one thread: requests go out on kept connections, and bodies are taken
as they come. Owned by that thread.

Why not a thread for each: for a file of 100 KB the changes of threads cost more than the reading
does (`bench/cold_small`). Only what goes well is done here. After any other answer, a connection
that breaks or silence, the read is given back, to be done the ordinary way: that one knows what the
answer means, and tries again.
"""

from __future__ import annotations

import collections
import errno
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from connectors.base import Address, Request
from connectors.until import LEAST_BYTES_PER_S

log = logging.getLogger(__name__)

CONNECTIONS: Final = 256  # of them as many as reads are on their way; a kept one serves the next
KEPT_S: Final = 10.0  # less than servers keep them
CONNECT_LIMIT_S: Final = 5.0
SILENCE_LIMIT_S: Final = 10.0  # others wait behind it: who has more patience goes on with it
LOOK_S: Final = 1.0  # between two looks for what takes too long
HEAD_BYTES: Final = 8 << 10
BODY_BYTES: Final = 1 << 20
LIMIT_S: Final = BODY_BYTES / LEAST_BYTES_PER_S  # of one read: slower ones count as silence
ROUND_BYTES: Final = 32 << 10  # of buffers, so that files of about one size share them
KEPT_BYTES: Final = 16 << 20  # of buffers, while nothing is read into them
# The codes of what does not go well, as `cachefs.core.errors` has them.
_CUT: Final = "unreachable"
_REFUSED: Final = "origin-error"
_ONCE: Final = frozenset({"connection", "content-length", "content-range", "etag"})

Taken = Callable[[memoryview | None, int, str], None]
"""The body, valid during the call; or None, how many bytes of it came, and an error's code."""


class Read:
    """One file on its way. `start`: where its bytes begin in the buffer, behind the head."""

    __slots__ = (
        "began_s",
        "buffer",
        "got",
        "is_over",
        "request",
        "start",
        "stop",
        "taken",
        "until_s",
    )

    def __init__(self, request: Request, taken: Taken) -> None:
        self.request = request
        self.taken = taken
        self.buffer = bytearray()
        self.got = 0
        self.start = self.stop = -1
        self.began_s = self.until_s = 0.0  # monotonic
        self.is_over = False  # `end` was called

    @property
    def room(self) -> memoryview:
        """Where the next bytes go: one more than was asked for, to see that none comes."""
        stop = self.stop + 1 if self.stop >= 0 else len(self.buffer)
        return memoryview(self.buffer)[self.got : stop]

    def end(self, code: str) -> None:
        """Tells whoever waits, at the first call: the body, or with a code that it did not come.
        Raises what that one raises."""
        if self.is_over:
            return
        self.is_over = True
        came = self.got - self.start if self.start >= 0 else 0
        self.taken(None if code else memoryview(self.buffer)[self.start : self.stop], came, code)


class Connection:
    """A socket, and what is read from it now. `used`: it has served a read before."""

    __slots__ = ("address", "closes", "connecting", "kept_since_s", "read", "sock", "used")

    def __init__(self, address: Address) -> None:
        """Raises OSError."""
        family, place = address
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self.address = address
        self.read: Read | None = None
        self.used = self.closes = False
        self.kept_since_s = 0.0
        self.sock = socket.socket(family, kind)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = self.sock.connect_ex(place)
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
        except BaseException:
            self.sock.close()
            raise
        self.connecting = True  # until the socket can be written to


class Inbox(Protocol):
    """A descriptor by which the thread is told what to read."""

    def fileno(self) -> int: ...
    def ready(self) -> bool:
        """Something came: starts what it asks for. False: nothing more will."""

    def turned(self) -> None:
        """Some reads may have ended, and the thread is about to wait."""


class Streams:
    """Reads that are started, by the inbox and by those that are told of others, while this
    serves."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: collections.deque[Read] = collections.deque()
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._idle: list[Connection] = []  # the last one is used next
        self._busy = 0
        self._begun: Read | None = None  # it may be on no connection yet
        self._buffers: list[bytearray] = []  # the last one is used next: it is in the CPU's cache
        self._kept_bytes = 0
        self._looked_s = 0.0

    def start(self, request: Request, taken: Taken) -> None:
        """`taken` is called exactly once, and not before this returns."""
        self._waiting.append(Read(request, taken))

    def serve(self, inbox: Inbox) -> None:
        """Until the inbox has ended; then all reads are given back, and this serves no second time.
        Raises what the inbox, or who is told of a read, raises: also then."""
        try:
            self._poll.register(inbox.fileno(), select.EPOLLIN)
            while self._turn(inbox):
                pass
        finally:
            self._end()

    def _end(self) -> None:
        left = [self._begun] if self._begun is not None else []
        left += [one.read for one in self._connections.values() if one.read is not None]
        left += self._waiting
        self._waiting.clear()
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._idle.clear()
        self._buffers.clear()
        self._poll.close()
        for read in left:
            try:
                read.end(_CUT)
            except BaseException:
                log.exception("a read of a small file could not be given back")

    def _turn(self, inbox: Inbox) -> bool:
        """False once the inbox has ended."""
        while self._waiting and self._busy < CONNECTIONS:
            self._begun = self._waiting.popleft()
            self._begin(self._begun)
            self._begun = None
        inbox.turned()
        may_begin = self._waiting and self._busy < CONNECTIONS
        events = self._poll.poll(0 if may_begin else LOOK_S if self._connections else -1)
        began_s, goes_on = self._clock(), True
        for fd, _ in events:
            connection = self._connections.get(fd)
            if connection is not None:
                self._on_event(connection)
            elif not inbox.ready():
                goes_on = False
        now = self._clock()
        if now - self._looked_s >= LOOK_S and now - began_s < LOOK_S:
            # Else what came while those who were told took long is looked at first.
            self._looked_s = now
            self._look(now)
        return goes_on

    def _look(self, now: float) -> None:
        """Ends what takes too long, and connections that nobody used for a while."""
        for connection in [*self._connections.values()]:
            read = connection.read
            if read is not None and now > min(read.until_s, read.began_s + LIMIT_S):
                self._give_back(connection, _CUT)
            elif read is None and now - connection.kept_since_s >= KEPT_S:
                self._drop(connection)

    def _begin(self, read: Read) -> None:
        if read.request.size > BODY_BYTES:
            return self._back(read, _REFUSED)
        read.began_s = self._clock()
        read.buffer = self._buffer(HEAD_BYTES + read.request.size + 1)
        kept = self._kept(read.request.address)
        if kept is not None:
            return self._send(kept, read)
        self._connect(read)

    def _kept(self, address: Address) -> Connection | None:
        for place in range(len(self._idle) - 1, -1, -1):
            if self._idle[place].address == address:
                return self._idle.pop(place)
        return None

    def _connect(self, read: Read) -> None:
        if len(self._connections) >= CONNECTIONS and self._idle:
            self._drop(self._idle[0])
        try:
            connection = self._open(read.request.address)
        except OSError:
            return self._back(read, _CUT)
        self._connections[connection.sock.fileno()] = connection
        connection.read = read
        self._busy += 1
        read.until_s = self._clock() + CONNECT_LIMIT_S

    def _open(self, address: Address) -> Connection:
        """Raises OSError."""
        connection = Connection(address)
        try:
            self._poll.register(connection.sock, select.EPOLLOUT)
        except BaseException:
            connection.sock.close()
            raise
        return connection

    def _send(self, connection: Connection, read: Read) -> None:
        if connection.read is None:
            connection.read = read
            self._busy += 1
        read.until_s = self._clock() + SILENCE_LIMIT_S
        try:
            whole = connection.sock.send(read.request.head) == len(read.request.head)
        except OSError:
            whole = False
        if not whole:
            self._broken(connection, read)

    def _on_event(self, connection: Connection) -> None:
        read = connection.read
        if read is None:  # the server closed it, or says what nobody asked for
            self._drop(connection)
        elif connection.connecting:
            self._connected(connection, read)
        else:
            self._receive(connection, read)

    def _connected(self, connection: Connection, read: Read) -> None:
        if connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return self._give_back(connection, _CUT)
        connection.connecting = False
        self._poll.modify(connection.sock, select.EPOLLIN)
        self._send(connection, read)

    def _receive(self, connection: Connection, read: Read) -> None:
        try:
            got = connection.sock.recv_into(read.room)
        except BlockingIOError:
            return
        except OSError:
            got = 0
        if not got:
            return self._broken(connection, read)
        read.got += got
        read.until_s = self._clock() + SILENCE_LIMIT_S
        if read.start < 0 and not self._has_head(connection, read):
            return
        if read.got >= read.stop:
            connection.closes |= read.got > read.stop  # nobody asked for what comes behind it
            read.got = read.stop
            self._complete(connection, read)

    def _has_head(self, connection: Connection, read: Read) -> bool:
        """Also where it gives the read back, False."""
        end = read.buffer.find(b"\r\n\r\n", 0, min(read.got, HEAD_BYTES))
        if end < 0 and read.got < HEAD_BYTES:
            return False
        status, headers = parse_head(read.buffer[:end]) if end >= 0 else (0, {})
        start = end + 4
        stop = start + read.request.size
        is_right = _is_plain(headers, read.request.size) and read.request.is_answer(status, headers)
        if not is_right or read.got > stop:
            self._give_back(connection, _REFUSED)
            return False
        read.start, read.stop = start, stop
        connection.closes = "close" in headers.get("connection", "").lower()
        return True

    def _complete(self, connection: Connection, read: Read) -> None:
        connection.read = None
        self._busy -= 1
        if connection.closes:
            self._drop(connection)
        else:
            connection.used = True
            connection.kept_since_s = self._clock()
            self._idle.append(connection)
        read.end("")
        self._keep_buffer(read)

    # ---- what does not go well ----

    def _broken(self, connection: Connection, read: Read) -> None:
        """One that had been kept may have been closed meanwhile: that is no failure."""
        again = connection.used and not read.got
        if not again:
            return self._give_back(connection, _CUT)
        self._begun = read
        self._drop(connection)
        self._connect(read)

    def _give_back(self, connection: Connection, code: str) -> None:
        read = connection.read
        self._drop(connection)
        if read is not None:
            self._back(read, code)

    def _back(self, read: Read, code: str) -> None:
        self._keep_buffer(read)
        read.end(code)

    def _drop(self, connection: Connection) -> None:
        if connection.read is not None:
            connection.read = None
            self._busy -= 1
        elif connection in self._idle:
            self._idle.remove(connection)
        del self._connections[connection.sock.fileno()]
        connection.sock.close()  # the poll forgets it

    def _buffer(self, size_bytes: int) -> bytearray:
        if self._buffers:
            buffer = self._buffers.pop()
            self._kept_bytes -= len(buffer)
            if len(buffer) >= size_bytes:
                return buffer
        return bytearray(-(-size_bytes // ROUND_BYTES) * ROUND_BYTES)

    def _keep_buffer(self, read: Read) -> None:
        buffer, read.buffer = read.buffer, bytearray()
        if buffer and self._kept_bytes + len(buffer) <= KEPT_BYTES:
            self._buffers.append(buffer)
            self._kept_bytes += len(buffer)


def parse_head(head: bytes | bytearray) -> tuple[int, dict[str, str]]:
    """The status, and headers by their names in lower case; status 0 for what is not HTTP/1.1, or
    says one thing twice. Raises nothing, whatever it is given."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status, _, _ = rest.partition(" ")
    if version != "HTTP/1.1" or len(status) != 3 or not (status.isascii() and status.isdigit()):
        return 0, {}
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name = name.lower()
        if (name in headers and name in _ONCE) or name != name.strip():
            return 0, {}
        headers[name] = value.strip()
    return int(status), headers


def _is_plain(headers: Mapping[str, str], size_bytes: int) -> bool:
    """Is the body what follows, so many bytes of it?"""
    if "transfer-encoding" in headers or "content-encoding" in headers:
        return False
    return headers.get("content-length") == str(size_bytes)
