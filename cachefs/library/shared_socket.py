"""One connected socket to a node's server that threads share: requests in flight, their replies.

A thread that waits for a reply reads the socket for all of them, unless another thread does so
already. It hands replies over to the threads that wait for them, and events to `on_event`. When it
has its own reply, the next waiting thread reads. So no thread exists only to read.

Invariants: an id is in `_pending` exactly while its exchange expects the reply. A descriptor that
belongs to no exchange is closed, and such an open is released at the server. The socket is closed
once, when no thread reads it.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.client.lost_descriptors import without_descriptor
from cachefs.client.sockets import MAX_IN_FLIGHT, DescriptorLost, close_fd, decode_owned, receive
from cachefs.core import messages as m
from cachefs.core.errors import DeadlineExceeded, ProtocolError, Unreachable

PING_S: Final = 2.0  # silence after which the reader sends a probe
SILENCE_S: Final = 30.0  # silence after which the server counts as hung
FRAMES_PER_TURN: Final = 64
# Descriptors that arrived and that no thread has taken. A process has 1,024 by default, and a frame
# whose descriptor finds no room is lost.
MOST_QUEUED_FDS: Final = 128
DRAIN_S: Final = 0.05  # between looks whether they were taken

OnEvent = Callable[[m.Message, "int | None"], None]
"""Takes an event and its descriptor, which it then owns."""


class SocketLost(Unreachable):
    """The connection to the server broke. A retry on the next connection may succeed."""


class Reply(msgspec.Struct, frozen=True):
    """The reply to request `id`. The receiver owns `fd`."""

    id: int
    body: m.Message
    fd: int | None


class SharedSocket:
    """A connection. After its loss every call raises SocketLost."""

    def __init__(self, sock: socket.socket, epoch: int, on_event: OnEvent) -> None:
        sock.setblocking(False)
        self.epoch = epoch  # of the session; the server's handles belong to it
        self.lost = ""  # the cause
        self._sock = sock
        self._on_event = on_event
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._last_id = 0
        self._pending: dict[int, Exchange] = {}
        self._followers: dict[Exchange, None] = {}
        self._is_read = False  # by a thread
        self._queued_fds = 0
        self._taken = threading.Event()  # a descriptor was taken since the reader looked
        self._heard_at_s = time.monotonic()

    # ---- sending ----

    def send(self, exchange: Exchange, body: m.Message, fd: int | None, deadline: float) -> int:
        """Sends a request of an exchange, with a copy of `fd` if it is one. Returns its id."""
        with self._lock:
            self._check()
            self._last_id += 1
            id = self._last_id
            self._pending[id] = exchange
            exchange.ids.add(id)
        self._send(m.encode(id, body), fd, deadline)
        return id

    def post(self, body: m.Message) -> None:
        """Sends a message without a reply. Drops it after the loss, or if the server does not read:
        the end of the session releases everything."""
        with contextlib.suppress(BlockingIOError, SocketLost):
            self._try_send(m.encode(0, body), None)

    def has_room(self) -> bool:
        """Returns whether another request may be sent beside those in flight."""
        return len(self._pending) < MAX_IN_FLIGHT

    def _send(self, data: bytes, fd: int | None, deadline: float) -> None:
        while True:
            try:
                return self._try_send(data, fd)
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise DeadlineExceeded("the server does not read its requests") from None
                self._wait_writable(min(left_s, PING_S))

    def _wait_writable(self, wait_s: float) -> None:
        poll = select.poll()  # one poll object serves one thread at a time
        with contextlib.suppress(OSError, ValueError):  # it was just closed: the send reports it
            poll.register(self._sock, select.POLLOUT)
            poll.poll(wait_s * 1000)

    def _try_send(self, data: bytes, fd: int | None) -> None:
        with self._lock:
            self._check()
            try:
                if fd is None:
                    self._sock.send(data)
                else:
                    socket.send_fds(self._sock, [data], [fd])
                return
            except BlockingIOError:
                raise
            except OSError as err:
                cause = err.strerror or str(err)
        self.lose(cause)
        raise SocketLost(f"the connection to the server was lost: {cause}")

    def _check(self) -> None:
        if self.lost:
            raise SocketLost(f"the connection to the server was lost: {self.lost}")

    # ---- receiving ----

    def take_events(self) -> None:
        """Handles everything that has arrived. Never waits."""
        with self._lock:
            if self._is_read or self.lost:
                return
            self._is_read = True
        try:
            if self._poll.poll(0):
                while self._read_frames():
                    pass
        finally:
            self._hand_over()

    def next(self, exchange: Exchange, deadline: float) -> Reply:
        """Returns the next reply to an exchange. Raises SocketLost, DeadlineExceeded."""
        try:
            while True:
                with self._lock:
                    if exchange.replies:
                        return self._pop(exchange)
                    self._check()
                    reads = not self._is_read
                    self._is_read = True
                    if not reads:
                        exchange.wake.clear()
                        self._followers[exchange] = None
                if reads:
                    self._read_for(exchange, deadline)
                elif not exchange.wake.wait(max(0.0, deadline - time.monotonic())):
                    raise _late()
        finally:
            self._pass_on(exchange)

    def _pop(self, exchange: Exchange) -> Reply:
        reply = exchange.replies.popleft()
        if reply.fd is not None:
            self._queued_fds -= 1
            self._taken.set()
        return reply

    def _read_for(self, exchange: Exchange, deadline: float) -> None:
        try:
            while not exchange.replies and not self.lost:
                if self._queued_fds >= MOST_QUEUED_FDS:
                    self._wait_taken(deadline)
                elif not self._read_frames():
                    self._wait_readable(deadline)
        finally:
            self._hand_over()

    def _wait_taken(self, deadline: float) -> None:
        """Waits until another thread takes its replies: it has them, and waits for nothing else."""
        self._taken.clear()
        if self._queued_fds >= MOST_QUEUED_FDS:
            self._taken.wait(DRAIN_S)
        if time.monotonic() > deadline:
            raise _late()

    def _read_frames(self) -> bool:
        """Reads what has arrived, a bounded number of frames. Returns whether there was any."""
        count = 0
        try:
            while count < FRAMES_PER_TURN and self._queued_fds < MOST_QUEUED_FDS:
                if not self._read_frame():
                    self.lose("the server ended the connection")
                    break
                count += 1
        except BlockingIOError:
            pass
        except (OSError, ProtocolError) as err:
            self.lose(str(err))
        return count > 0

    def _read_frame(self) -> bool:
        """Reads one frame. Returns False at the end."""
        try:
            data, fd = receive(self._sock)
        except DescriptorLost as lost:
            frame, release = without_descriptor(lost.data)
            if release is not None:
                self.post(release)
            self._frame(frame, None)
            return True
        if not data:
            close_fd(fd)
            return False
        self._frame(decode_owned(data, fd), fd)
        return True

    def _wait_readable(self, deadline: float) -> None:
        if self.lost:
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise _late()
        if self._poll.poll(min(left_s, PING_S) * 1000) or left_s < PING_S:
            return
        if time.monotonic() - self._heard_at_s > SILENCE_S:
            return self.lose(f"the server has been silent for {SILENCE_S:g} s")
        with contextlib.suppress(BlockingIOError, SocketLost):
            self._try_send(m.encode(self._unused_id(), m.Done()), None)

    def _unused_id(self) -> int:
        with self._lock:
            self._last_id += 1
            return self._last_id

    def _frame(self, frame: m.Frame, fd: int | None) -> None:
        self._heard_at_s = time.monotonic()
        with self._lock:
            exchange = self._pending.pop(frame.id, None)
            if exchange is not None:
                exchange.ids.discard(frame.id)
                exchange.replies.append(Reply(frame.id, frame.body, fd))
                self._queued_fds += fd is not None
                exchange.wake.set()
                return
        if frame.id == 0:
            return self._on_event(frame.body, fd)
        close_fd(fd)
        if isinstance(frame.body, m.Opened) and frame.body.handle:
            self.post(m.Release(frame.body.handle))

    def _hand_over(self) -> None:
        """Ends this thread's reading. The next follower reads."""
        with self._lock:
            self._is_read = False
            if self.lost:
                self._sock.close()
            self._wake_follower()

    def _pass_on(self, exchange: Exchange) -> None:
        """Removes a thread that no longer waits. If it was woken to read, another one is."""
        with self._lock:
            self._followers.pop(exchange, None)
            if not self._is_read:
                self._wake_follower()

    def _wake_follower(self) -> None:
        follower = next(iter(self._followers), None)
        if follower is not None:
            follower.wake.set()

    # ---- the end ----

    def forget(self, exchange: Exchange) -> None:
        """Cancels the requests of an abandoned exchange, and closes its descriptors."""
        if not exchange.ids and not exchange.replies:
            return
        with self._lock:
            ids, exchange.ids = exchange.ids, set()
            for id in ids:
                self._pending.pop(id, None)
            replies, exchange.replies = exchange.replies, collections.deque()
            self._queued_fds -= sum(reply.fd is not None for reply in replies)
            self._taken.set()
        for reply in replies:
            close_fd(reply.fd)
            if isinstance(reply.body, m.Opened) and reply.body.handle:
                self.post(m.Release(reply.body.handle))
        for id in ids:
            self.post(m.Cancel(id))

    def lose(self, cause: str) -> None:
        """Ends the connection: every waiting thread gets SocketLost. Idempotent."""
        with self._lock:
            if self.lost:
                return
            self.lost = cause
            if self._is_read:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)  # the reader closes it
            else:
                self._sock.close()
            for exchange in {*self._pending.values(), *self._followers}:
                exchange.wake.set()
            self._pending.clear()

    def abandon(self) -> None:
        """Closes this process's copy after a fork, and nothing of the parent's. Only the thread
        that forked exists, and the locks may have been held by others."""
        self._lock = threading.Lock()
        self.lost = "it belongs to the parent process"
        self._sock.close()
        for exchange in {*self._pending.values(), *self._followers}:
            for reply in exchange.replies:
                close_fd(reply.fd)
        self._pending.clear()
        self._followers.clear()


class Exchange:
    """Requests of one thread, whose replies it takes in the order of their arrival. Leaving the
    context cancels the requests without a reply."""

    def __init__(self, shared: SharedSocket) -> None:
        self.shared = shared
        self.replies: collections.deque[Reply] = collections.deque()
        self.ids: set[int] = set()  # of the requests without a reply
        self.wake = threading.Event()

    def send(self, body: m.Message, deadline: float, fd: int | None = None) -> int:
        """Sends a request and returns its id. Raises SocketLost, DeadlineExceeded."""
        return self.shared.send(self, body, fd, deadline)

    def next(self, deadline: float) -> Reply:
        """Waits for a reply. Raises SocketLost, DeadlineExceeded at `deadline` (monotonic)."""
        return self.shared.next(self, deadline)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.shared.forget(self)


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("no answer from the server in time", remedy="see its log")
