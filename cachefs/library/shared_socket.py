"""One connected socket to a node's server that threads share: requests in flight, their replies.

A thread that waits for a reply reads the socket for all of them, unless another thread does so
already. It hands replies over to the threads that wait for them, and events to `on_event`. When it
has its own reply, the next waiting thread reads. So no thread exists only to read.

Invariants: an id is in `_pending` exactly while its exchange expects the reply. A descriptor that
belongs to no exchange is closed, and such an open is released at the server. The socket is closed
once, when no thread reads it.

Signal handlers may raise in any thread's call (see `owned_fd`). What arrives is in `_inbox`, and
leaves it when it is handled: the next reader continues where one was interrupted. A statement
without a call is not interrupted. Locks are those of C, because a `Condition` may stay locked.
A thread that was not woken looks again after `LOOK_S`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cachefs.client.lost_descriptors import without_descriptor
from cachefs.client.sockets import (
    MAX_IN_FLIGHT,
    DescriptorLost,
    Received,
    descriptors_of,
    receive_all,
)
from cachefs.core import messages as m
from cachefs.core.errors import DeadlineExceeded, ProtocolError, Unreachable
from cachefs.core.owned_fd import OwnedFd, take_fd, try_lock
from cachefs.library import calls
from cachefs.network.unix_sockets import fds_in

PING_S: Final = 2.0  # silence after which the reader sends a probe
SILENCE_S: Final = 30.0  # silence after which the server counts as hung
LOOK_S: Final = 1.0
FRAMES_PER_TURN: Final = 64
# Descriptors that arrived and that no thread has taken. A process has 1,024 by default, and a frame
# whose descriptor finds no room is lost.
MOST_QUEUED_FDS: Final = 128
DRAIN_S: Final = 0.05  # between looks whether they were taken
MOST_POSTS: Final = 4096  # that wait for another thread, or for the server

OnEvent = Callable[[m.Message, "OwnedFd | None"], None]
"""Takes an event and its descriptor."""


class SocketLost(Unreachable):
    """The connection to the server broke. A retry on the next connection may succeed."""


class Reply(msgspec.Struct):
    """The reply to request `id`, and what the receiver has not taken of it: a descriptor, a handle
    of the server. These end with its exchange."""

    id: int
    body: m.Message
    fds: list[int]
    handle: int = 0
    is_begun: bool = False  # of an event: it is being handled

    def take(self) -> OwnedFd | None:
        """Takes the descriptor, if there is one."""
        return take_fd(self.fds) if self.fds else None


class SharedSocket:
    """A connection. After its loss every call raises SocketLost."""

    def __init__(self, sock: socket.socket, epoch: int, on_event: OnEvent) -> None:
        sock.setblocking(False)
        self.epoch = epoch  # of the session; the server's handles belong to it
        self.lost = ""  # the cause
        self._sock = sock
        self._on_event = on_event
        self._lock = threading.Lock()  # for short uses; no wait
        self._reading = threading.Lock()  # of the thread that reads
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._last_id = 0
        self._pending: dict[int, Exchange] = {}
        self._followers: dict[Exchange, None] = {}
        self._ended: collections.deque[Exchange] = collections.deque()  # that nobody has
        self._inbox: collections.deque[Received | Reply | None] = collections.deque()
        self._outbox: collections.deque[bytes] = collections.deque(maxlen=MOST_POSTS)
        self._queued_fds = 0
        self._taken = _Token()  # a descriptor was taken since the reader looked
        self._heard_at_s = time.monotonic()

    # ---- sending ----

    def send(self, exchange: Exchange, body: m.Message, fd: int | None, deadline: float) -> int:
        """Sends a request of an exchange, with a copy of `fd` if it is one. Returns its id."""
        with self._lock:
            self._check()
            self._last_id += 1
            id = self._last_id
            exchange.ids.add(id)
            self._pending[id] = exchange
        self._send(m.encode(id, body), fd, deadline)
        return id

    def post(self, body: m.Message) -> None:
        """Sends a message without a reply, with the next call if the socket is full. Drops it after
        the loss: the end of the session releases everything. Takes no lock that this thread may
        have: the finaliser of a file calls it at any time."""
        self._outbox.append(m.encode(0, body))
        calls.own_work(self._send_posts)

    def _send_posts(self) -> None:
        held: list[bool] = []
        try:
            try_lock(held, self._lock)
            while held[0] and self._outbox and not self.lost:
                self._sock.send(self._outbox[0])
                self._outbox.popleft()
        except OSError:
            pass  # it is full; or who reads or sends next loses the connection
        finally:
            if True in held:
                self._lock.release()

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
        """Handles everything that has arrived, and what calls left that were interrupted. Never
        waits."""
        while self._ended:
            self.forget(self._ended[0])
            self._ended.popleft()
        if self._outbox:
            self._send_posts()
        self._as_reader(self._read_arrived)

    def next(self, exchange: Exchange, deadline: float) -> Reply:
        """Returns the next reply to an exchange. Raises SocketLost, DeadlineExceeded."""
        while not exchange.replies:
            self._check()
            self._wait(exchange, deadline)
        return self._pop(exchange)

    def _wait(self, exchange: Exchange, deadline: float) -> None:
        """Reads until a reply to an exchange has arrived, or waits while another thread reads."""
        self._followers[exchange] = None
        try:
            read = functools.partial(self._read_for, exchange, deadline)
            if not self._as_reader(read) and not exchange.wake.wait(_until(deadline, LOOK_S)):
                _check_time(deadline)
        finally:
            self._followers.pop(exchange, None)
            self._wake_follower()

    def _pop(self, exchange: Exchange) -> Reply:
        """Moves the first reply of an exchange to `exchange.current`."""
        if exchange.current is not None:
            self._drop(exchange.current)
        with self._lock:
            id = next(iter(exchange.replies))
            reply = exchange.replies[id]
            count = len(reply.fds)
            exchange.current = reply
            del exchange.replies[id]
            exchange.queued_fds -= count
            self._queued_fds -= count
        if count:
            self._taken.give()
        return reply

    def _as_reader(self, read: Callable[[], None]) -> bool:
        """Reads, unless another thread does, or the connection is lost. Returns whether it did."""
        held: list[bool] = []
        try:
            try_lock(held, self._reading)
            if held[0] and not self.lost:
                read()
            return held[0]
        finally:
            if True in held:
                self._reading.release()
                self._end_if_lost()

    def _end_if_lost(self) -> None:
        """Closes the socket after the loss, and what it brought, unless another thread reads."""
        with self._lock:
            if self.lost and not self._reading.locked():
                self._sock.close()
                self._empty_inbox()

    def _empty_inbox(self) -> None:
        while self._inbox:
            first = self._inbox[0]
            if type(first) is tuple:
                first = self._inbox[0] = Reply(0, m.Done(), fds_in(first[1]))
            if isinstance(first, Reply):
                self._drop(first)
            self._inbox.popleft()

    def _wake_follower(self) -> None:
        """Wakes a thread that waits, so that it reads."""
        if self._followers and not self._reading.locked():
            with contextlib.suppress(KeyError):  # another thread has just removed the last one
                self._followers.popitem()[0].wake.give()

    def _read_for(self, exchange: Exchange, deadline: float) -> None:
        while not exchange.replies and not self.lost:
            if self._queued_fds >= MOST_QUEUED_FDS:
                self._taken.wait(DRAIN_S)  # other threads have them, and wait for nothing else
                _check_time(deadline)
            elif not self._read_frames():
                self._wait_readable(deadline)

    def _read_arrived(self) -> None:
        if self._inbox or self._poll.poll(0):
            while self._read_frames():
                pass

    def _read_frames(self) -> bool:
        """Reads what has arrived, a bounded number of frames. Returns whether there was any."""
        count = 0
        try:
            if not self._inbox:
                most = min(FRAMES_PER_TURN, MOST_QUEUED_FDS - self._queued_fds)
                with contextlib.suppress(BlockingIOError):
                    receive_all(self._sock, self._inbox, most)
            while self._inbox:
                self._handle(self._inbox[0])
                self._inbox.popleft()
                count += 1
        except (OSError, ProtocolError) as err:
            self.lose(str(err))
        return count > 0 and not self.lost

    def _handle(self, first: Received | Reply | None) -> None:
        """Handles the first frame of the inbox. May be called again for a frame."""
        if type(first) is tuple:
            if not first[0]:
                raise ProtocolError("the server ended the connection")
            first = self._inbox[0] = self._decoded(first)
        if not isinstance(first, Reply):
            return  # its exchange has it
        self._heard_at_s = time.monotonic()
        if first.id == 0:
            if first.is_begun:
                raise ProtocolError("a call was interrupted while it handled an event")
            first.is_begun = True
            return self._on_event(first.body, first.take())
        count = len(first.fds)
        with self._lock:
            exchange = self._pending.get(first.id)
            if exchange is not None:
                exchange.replies[first.id] = first
                self._inbox[0] = None
                del self._pending[first.id]
                exchange.queued_fds += count
                self._queued_fds += count
                exchange.ids.discard(first.id)
        if exchange is None:
            self._drop(first)
        else:
            exchange.wake.give()

    def _decoded(self, received: Received) -> Reply:
        try:
            fds = descriptors_of(received)
            frame = m.decode(received[0])
        except DescriptorLost as lost:
            frame, release = without_descriptor(lost.data)
            if release is not None:
                self.post(release)
            fds = []
        body = frame.body
        return Reply(frame.id, body, fds, body.handle if isinstance(body, m.Opened) else 0)

    def _drop(self, reply: Reply) -> None:
        """Closes and releases what nobody takes of a reply."""
        while reply.fds:
            take_fd(reply.fds)
        if reply.handle:
            self.post(m.Release(reply.handle))
            reply.handle = 0

    def _wait_readable(self, deadline: float) -> None:
        if self.lost:
            return
        _check_time(deadline)
        left_s = deadline - time.monotonic()
        if self._poll.poll(_until(deadline, PING_S) * 1000) or left_s < PING_S:
            return
        if time.monotonic() - self._heard_at_s > SILENCE_S:
            return self.lose(f"the server has been silent for {SILENCE_S:g} s")
        with contextlib.suppress(BlockingIOError, SocketLost):
            self._try_send(m.encode(self._unused_id(), m.Done()), None)

    def _unused_id(self) -> int:
        with self._lock:
            self._last_id += 1
            return self._last_id

    # ---- the end ----

    def forget(self, exchange: Exchange) -> None:
        """Cancels the requests of an abandoned exchange, and closes what it did not take.
        Idempotent."""
        if exchange.ids or exchange.replies:
            with self._lock:
                for id in exchange.ids:
                    self._pending.pop(id, None)  # so no reply is added from now on
                self._queued_fds -= exchange.queued_fds
                exchange.queued_fds = 0
            for reply in exchange.replies.values():
                self._drop(reply)
            exchange.replies.clear()
            self._taken.give()
            while exchange.ids:
                self.post(m.Cancel(exchange.ids.pop()))
        if exchange.current is not None:
            self._drop(exchange.current)

    def leave(self, exchange: Exchange) -> None:
        """Has the next call forget an exchange. Takes no lock: finalisers call it at any time."""
        self._ended.append(exchange)

    def lose(self, cause: str) -> None:
        """Ends the connection: every waiting thread gets SocketLost. Idempotent."""
        with self._lock:
            if self.lost:
                return
            self.lost = cause
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # a thread that reads it wakes
            for exchange in {*self._pending.values(), *self._followers}:
                exchange.wake.give()
            self._pending.clear()
        self._end_if_lost()

    def abandon(self) -> None:
        """Closes this process's copy after a fork, and nothing of the parent's. Only the thread
        that forked exists, and the locks may have been held by others."""
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.lost = "it belongs to the parent process"
        self._sock.close()
        self._empty_inbox()
        for exchange in {*self._pending.values(), *self._followers}:
            self.forget(exchange)
        self._pending.clear()
        self._followers.clear()


class Exchange:
    """Requests of one thread, whose replies it takes in the order of their arrival. Leaving the
    context cancels the requests without a reply. `current`: the last reply that was returned."""

    is_whole = False  # if `__init__` was interrupted

    def __init__(self, shared: SharedSocket) -> None:
        self.ids: set[int] = set()  # of the requests without a reply
        self.replies: dict[int, Reply] = {}
        self.current: Reply | None = None
        self.queued_fds = 0  # of `replies`
        self.wake = _Token()
        self.shared = shared
        self.is_whole = True

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

    def __del__(self) -> None:
        """Leaves what an interrupted `__exit__` has not done to the next call."""
        last = self.current if self.is_whole else None
        has_left = last is not None and (last.fds or last.handle)
        if has_left or (self.is_whole and (self.ids or self.replies)):
            self.shared.leave(self)


class _Token:
    """Wakes the thread that waits for it, now or when it waits next."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        if self._lock.locked():  # else it was given, and nobody has waited
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._lock.release()

    def wait(self, wait_s: float) -> bool:
        """Waits for the token and takes it. Returns False if it was not given in time."""
        return self._lock.acquire(timeout=wait_s)


def _until(deadline: float, most_s: float) -> float:
    return max(0.0, min(deadline - time.monotonic(), most_s))


def _check_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise DeadlineExceeded("no answer from the server in time", remedy="see its log")
