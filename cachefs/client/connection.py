"""A trio connection to the node's server: pipelined calls, posts, events, reconnects.

Invariants: a call is in `_callers` exactly while a task waits for it. A descriptor without a
waiting task is closed, and an open without one is released at the server. At most `MAX_OUTBOX`
frames are queued. Everything runs in one trio loop.

Usage:  conn = await Connection.connect(path, hello);  nursery.start_soon(conn.run)
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from cachefs.client.call_waits import Wait, Waits
from cachefs.client.lost_descriptors import no_descriptor_left, without_descriptor
from cachefs.client.published import PublishedDirs
from cachefs.client.sockets import (
    MAX_IN_FLIGHT,
    DescriptorLost,
    close_fd,
    connect_socket,
    decode_owned,
    listener_pid,
    receive,
)
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, DeadlineExceeded, ProtocolError, Unreachable
from cachefs.core.owned_fd import own

log = logging.getLogger(__name__)

CALL_DEADLINE_S: Final = 600.0  # backstop: the server bounds its own waits by its own deadlines
DEADLINE_CHECK_S: Final = 0.25  # interval between checks of the calls' deadlines
HELLO_DEADLINE_S: Final = 10.0
ATTACH_DEADLINE_S: Final = 120.0
RECONNECT_WAIT_S: Final = 30.0  # of a caller, by default; `run` retries for ever
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 2.0
MAX_OUTBOX: Final = 65536
FRAMES_PER_WAKEUP: Final = 64  # then other tasks run

Dial = Callable[[], Awaitable[socket.socket]]
Answer = tuple[m.Message, int | None]


class ConnectionLost(Unreachable):
    """The connection to the server broke during a request. A retry waits for the next one."""


class _PendingCall(NamedTuple):
    """A call whose reply has not arrived, and its deadline."""

    wait: Wait
    deadline: float


class Connection:
    """A connection made by `connect`. Calls are answered only while `run` is running."""

    def __init__(
        self,
        sock: socket.socket,
        hello: m.Hello,
        reconnect: Dial,
        waits: Waits | None = None,
        reconnect_wait_s: float = RECONNECT_WAIT_S,
    ) -> None:
        # Incremented at each loss, as the server's handles belong to an epoch, and before callers
        # are notified: a retry must not use its old handle.
        self.epoch = 1
        self.heard = 0  # received frames
        self.server_pid = listener_pid(sock)  # of the current server process
        self.published = PublishedDirs()  # empty if the server does not trust this client
        self.attached: m.Attached | None = None
        self.on_event: Callable[[m.Message], None] = lambda _: None
        self.on_cover: Callable[[m.Cover, int | None], None] = _close_tree  # owns the descriptor
        self.knows_covers = False  # the server does
        self.on_reconnected: Callable[[m.Attached], None] = lambda _: None
        self.on_greeted: Callable[[], None] = lambda: None  # before Attach: `report` is possible
        self._greeted: socket.socket | None = None  # of a server whose Attached has not arrived
        self._hello = hello
        self._waits = waits or Waits()
        self._reconnect_wait_s = reconnect_wait_s
        self._attach: m.Attach | None = None
        self._reconnect = reconnect
        self._sock: socket.socket | None = sock
        self._connected = trio.Event()
        self._connected.set()
        self._failed: CacheFSError | None = None
        self._last_id = 0
        self._callers: dict[int, _PendingCall] = {}
        self._room = trio.lowlevel.ParkingLot()
        self._outbox: collections.deque[bytes] = collections.deque()
        self._outbox_filled = trio.Event()
        self._lacked_descriptors = False  # and this was logged

    @classmethod
    async def connect(
        cls,
        path: str,
        hello: m.Hello,
        *,
        reconnect: Dial | None = None,
        waits: Waits | None = None,
        reconnect_wait_s: float = RECONNECT_WAIT_S,
    ) -> Connection:
        """Connects and sends Hello. `reconnect` returns a connected socket or raises a typed error;
        the default connects to `path` again. `waits` makes the waits of calls. A call waits up to
        `reconnect_wait_s` for a reconnect. Raises Unreachable, DeadlineExceeded, ProtocolError.
        Cancellation leaves nothing open."""

        async def dial() -> socket.socket:
            return connect_socket(path)

        conn = cls(connect_socket(path), hello, reconnect or dial, waits, reconnect_wait_s)
        assert conn._sock is not None
        try:
            await conn._greet(conn._sock)
        except BaseException:
            conn.close()
            raise
        return conn

    async def attach(self, body: m.Attach) -> m.Attached:
        """Attaches the source, now and after every reconnect, while `run` is running. Raises the
        server's typed error."""
        reply, _ = await self.call(body, deadline_s=ATTACH_DEADLINE_S)
        if not isinstance(reply, m.Attached):
            raise ProtocolError(f"unexpected reply {type(reply).__name__} to Attach")
        self._attach, self.attached = body, reply
        return reply

    async def call(self, body: m.Message, *, deadline_s: float = CALL_DEADLINE_S) -> Answer:
        """Returns the reply and its descriptor, which the caller owns. Waits for a reconnect. The
        exchange happens in the epoch of this call, otherwise ConnectionLost is raised. Raises the
        typed error of a Failure, ConnectionLost if the connection broke, Unreachable if it did not
        recover, DeadlineExceeded `deadline_s` after the request was sent (checked every
        `DEADLINE_CHECK_S`). Cancellation sends Cancel and leaves nothing behind."""
        epoch = self.epoch
        while True:
            if self._failed is not None:
                raise Unreachable(self._failed.cause) from self._failed
            if self.epoch != epoch:
                raise ConnectionLost("the connection to the server was lost")
            if not self._connected.is_set():
                await self._waits.in_task(self._wait_connected)
            elif len(self._callers) >= MAX_IN_FLIGHT:
                await self._waits.in_task(self._room.park)
            else:
                return await self._exchange(body, deadline_s)

    def post(self, body: m.Message) -> None:
        """Sends a message without a reply (Release, Used). Drops it while there is no connection:
        the end of a session released everything."""
        if self._sock is not None:
            self._send(m.encode(0, body))

    def report(self, body: m.Message) -> None:
        """Sends a message without a reply, also to a server that has not answered Attach yet. Drops
        it while there is no connection."""
        if self._sock is not None:
            self._send(m.encode(0, body))
        elif self._greeted is not None:
            with contextlib.suppress(OSError):  # its reader notices
                self._greeted.send(m.encode(0, body))

    @property
    def is_connected(self) -> bool:
        return self._sock is not None

    def ping(self) -> None:
        """Requests a reply. Any reply counts in `heard`: servers of earlier versions return an
        error."""
        if self._sock is not None:
            self._last_id += 1
            self._send(m.encode(self._last_id, m.Done()))

    def close(self) -> None:
        """Closes everything; waiting callers get ConnectionLost. Idempotent."""
        self._failed = self._failed or Unreachable("the connection was closed")
        self._lose("closed by this side")
        self._connected.set()
        self.published.close()

    async def run(self) -> None:
        """Reads, writes and reconnects until cancelled or closed, then closes the connection."""
        try:
            while self._failed is None:
                await self._serve()
                await self._connect_again()
        finally:
            self.close()

    # ---- one exchange ----

    async def _exchange(self, body: m.Message, deadline_s: float) -> Answer:
        self._last_id += 1
        id = self._last_id
        wait = self._waits.new(functools.partial(self._abandon, id))
        self._callers[id] = _PendingCall(wait, trio.current_time() + deadline_s)
        self._send(m.encode(id, body))
        answer: Answer = await wait
        if isinstance(answer[0], m.Failure):
            close_fd(answer[1])
            raise m.error_of(answer[0])
        return answer

    def _abandon(self, id: int) -> None:
        """Drops a call whose caller no longer waits."""
        if self._callers.pop(id, None) is not None:
            self.post(m.Cancel(id))
            self._room.unpark()

    async def _end_overdue(self) -> None:
        while True:
            await trio.sleep(DEADLINE_CHECK_S)
            now = trio.current_time()
            for id, caller in list(self._callers.items()):
                if caller.deadline <= now and id in self._callers:
                    self._abandon(id)
                    caller.wait.fail(DeadlineExceeded("no answer from the server in time"))

    def _frame(self, frame: m.Frame, fd: int | None) -> None:
        caller = self._callers.pop(frame.id, None)
        if caller is not None:
            if self._room:
                self._room.unpark()
            return caller.wait.resume((frame.body, fd))
        if isinstance(frame.body, m.PublishedDirectory):
            return self.published.replace(frame.body.tier, own(fd) if fd is not None else None)
        if isinstance(frame.body, m.Cover):
            return self.on_cover(frame.body, fd)
        close_fd(fd)
        if frame.id == 0:
            self.on_event(frame.body)
        elif isinstance(frame.body, m.Opened) and frame.body.handle:
            self.post(m.Release(frame.body.handle))

    # ---- the socket ----

    async def _serve(self) -> None:
        """Reads and writes until the connection is lost."""
        if self._sock is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._end_overdue)
            await self._read(self._sock)
            nursery.cancel_scope.cancel()

    async def _read(self, sock: socket.socket) -> None:
        try:
            while self._sock is sock:
                await trio.lowlevel.wait_readable(sock)
                self._drain(sock)
        except ProtocolError as err:
            self._lose(err.cause)
        except (OSError, trio.ClosedResourceError) as err:
            self._lose(str(err))

    def _drain(self, sock: socket.socket) -> None:
        for _ in range(FRAMES_PER_WAKEUP):
            if self._sock is not sock:
                return
            try:
                data, fd = receive(sock)
            except BlockingIOError:
                return
            except DescriptorLost as lost:
                self._take_without_descriptor(lost.data)
                continue
            if not data:
                close_fd(fd)
                return self._lose("the server ended the connection")
            self.heard += 1
            self._frame(decode_owned(data, fd), fd)

    def _take_without_descriptor(self, data: bytes) -> None:
        self.heard += 1
        frame, release = without_descriptor(data)
        if release is not None:
            self.post(release)
        if not self._lacked_descriptors:  # a mount would fill its log
            self._lacked_descriptors = True
            log.warning("%s", no_descriptor_left().one_line())
        self._frame(frame, None)

    def _send(self, data: bytes) -> None:
        """Sends or queues. Never blocks, never raises, and leaves a broken socket to the reader:
        losing the connection here would wake callers that do not wait yet."""
        assert self._sock is not None
        with contextlib.suppress(OSError):
            if not self._outbox:
                with contextlib.suppress(BlockingIOError):
                    self._sock.send(data)
                    return
            if len(self._outbox) >= MAX_OUTBOX:  # the server does not read
                return self._sock.shutdown(socket.SHUT_RDWR)
            self._outbox.append(data)
            self._outbox_filled.set()

    async def _write(self) -> None:
        while True:
            await self._outbox_filled.wait()
            sock = self._sock
            if sock is None:
                return
            try:
                await trio.lowlevel.wait_writable(sock)
                while self._outbox and self._sock is sock:
                    sock.send(self._outbox[0])
                    self._outbox.popleft()
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError) as err:
                return self._lose(str(err))
            self._outbox_filled = trio.Event()

    def _lose(self, cause: str) -> None:
        """Closes the socket: every pending call raises ConnectionLost, later ones wait for a
        reconnect."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if self._failed is None:
            log.warning("the connection to the server is lost: %s", cause)
        trio.lowlevel.notify_closing(sock)
        sock.close()
        self.epoch += 1
        self._connected = trio.Event()
        self._outbox.clear()
        self._outbox_filled.set()  # ends the writer
        callers, self._callers = self._callers, {}
        self._room.unpark_all()
        for caller in callers.values():
            caller.wait.fail(ConnectionLost(f"the connection to the server was lost: {cause}"))

    # ---- the next connection ----

    async def _wait_connected(self) -> None:
        with trio.move_on_after(self._reconnect_wait_s):
            return await self._connected.wait()
        raise Unreachable("the server ended and was not restarted in time", remedy="see its log")

    async def _connect_again(self) -> None:
        """Retries until connected or closed by this side. Logs the first failure as a warning."""
        pause_s, level = BACKOFF_FIRST_S, logging.WARNING
        while self._failed is None:
            try:
                return await self._try_connect()
            except (CacheFSError, OSError) as err:
                cause = err.one_line() if isinstance(err, CacheFSError) else str(err)
                log.log(level, "cannot connect to the server, retrying: %s", cause)
            level = logging.DEBUG
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    async def _try_connect(self) -> None:
        sock = await self._reconnect()
        try:
            await self._greet(sock)
            self._greeted = sock
            self.on_greeted()
            attached = await self._attach_again(sock)
        except BaseException:
            sock.close()
            raise
        finally:
            self._greeted = None
        self._sock, self.server_pid = sock, listener_pid(sock)
        self._outbox_filled = trio.Event()
        if attached is not None:
            self.attached = attached
            self.on_reconnected(attached)
        log.info("connected to the server again")
        self._connected.set()

    async def _greet(self, sock: socket.socket) -> None:
        try:
            reply, fd = await self._direct(sock, self._hello, HELLO_DEADLINE_S)
        except OSError as err:  # a server that ends resets connections that it has not accepted
            raise Unreachable(f"the server cut the connection: {err.strerror}") from err
        if not isinstance(reply, m.Welcome):
            close_fd(fd)
            raise ProtocolError(f"unexpected reply {type(reply).__name__} to Hello")
        self.knows_covers = reply.covers
        self.published.close()  # the other tiers' directories arrive as events
        self.published.replace(0, own(fd) if fd is not None else None)

    async def _attach_again(self, sock: socket.socket) -> m.Attached | None:
        if self._attach is None:
            return None
        reply, fd = await self._direct(sock, self._attach, ATTACH_DEADLINE_S)
        close_fd(fd)
        if not isinstance(reply, m.Attached):
            raise ProtocolError(f"unexpected answer {type(reply).__name__} to Attach")
        return reply

    async def _direct(self, sock: socket.socket, body: m.Message, deadline_s: float) -> Answer:
        """Exchanges one request on a socket that has no other reader yet. Drops events that arrive
        before the reply, as the caller drops all its cached names afterwards, but not Uncover."""
        sock.setblocking(False)
        self._last_id += 1
        with trio.move_on_after(deadline_s):
            sock.send(m.encode(self._last_id, body))
            while True:
                with contextlib.suppress(BlockingIOError):
                    data, fd = receive(sock)
                    if not data:
                        raise Unreachable("the server ended the connection")
                    frame = m.decode(data)
                    if isinstance(frame.body, m.Failure) and frame.id == self._last_id:
                        raise m.error_of(frame.body)
                    if frame.id == self._last_id:
                        return frame.body, fd
                    close_fd(fd)
                    if isinstance(frame.body, m.Uncover):
                        self.on_event(frame.body)
                await trio.lowlevel.wait_readable(sock)
        raise DeadlineExceeded(f"no answer from the server within {deadline_s:g} s")


def _close_tree(_: m.Cover, fd: int | None) -> None:
    close_fd(fd)
