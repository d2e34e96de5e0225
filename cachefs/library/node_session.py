"""A process's session with a node's server: connects, attaches a source, reconnects, passes events.

One session serves all threads of a process. A forked child closes its copy of the socket and
opens its own connection. `epoch` counts connections: the server's handles belong to one of them.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import cachefs
from cachefs.client.lost_descriptors import no_descriptor_left
from cachefs.client.published import PublishedDirs
from cachefs.core import messages as m
from cachefs.core.errors import (
    CacheFSError,
    DeadlineExceeded,
    ProtocolError,
    Unreachable,
    lacks_descriptors,
)
from cachefs.core.owned_fd import OwnedFd
from cachefs.library.shared_socket import Exchange, Reply, SharedSocket, SocketLost

CALL_DEADLINE_S: Final = 600.0  # backstop: the server bounds its own waits by its own deadlines
HELLO_DEADLINE_S: Final = 10.0
ATTACH_DEADLINE_S: Final = 120.0
RECONNECT_WAIT_S: Final = 30.0  # for a server that is restarted
ENDING_S: Final = 3.0  # a server that is ending refuses a session within this time
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_MAX_S: Final = 0.5
TRIES: Final = 8  # of a request whose connection breaks

_T = TypeVar("_T", bound=m.Message)
_R = TypeVar("_R")


Take = Callable[[Reply, int], _R]
"""Takes what a request is for out of its reply, on the connection of an epoch."""


class Dialer(Protocol):
    """Finds the server of a source, and starts it if it may."""

    @property
    def attach(self) -> m.Attach: ...
    def check(self) -> None:
        """Raises the typed error of what a first connection does not wait for."""

    def dial(self) -> socket.socket:
        """Returns a connected socket. Raises the typed errors; Unreachable may be retried."""


class EventSink(Protocol):
    """Takes what the server reports without a request. Must not wait."""

    def on_event(self, event: m.Message) -> None: ...
    def on_connecting(self) -> None:
        """Called before each connection, whose events follow."""

    def on_attached(self, attached: m.Attached) -> None:
        """Called after each connection: events may have been missed before it."""


class NodeSession:
    """The session of one source. Nothing is connected before the first use."""

    def __init__(self, dialer: Dialer, sink: EventSink) -> None:
        self.epoch = 0
        self.generation = 0  # of the process: grows at each fork
        self.lock = threading.Lock()  # for short uses; never held during a wait
        self.published = PublishedDirs()
        self._dialer = dialer
        self._sink = sink
        self._attached: m.Attached | None = None
        self._shared: SharedSocket | None = None
        self._connecting = threading.Lock()
        self._failure: tuple[float, CacheFSError] | None = None  # the last, and when (monotonic)

    # ---- requests ----

    def exchange(self) -> Exchange:
        """Returns an exchange on the current connection; connects first if there is none."""
        return Exchange(self._connected())

    def request(self, body: m.Message, take: Take[_R], *, fd: int | None = None) -> _R:
        """Returns what `take` returns of the reply. Repeats the request on the next connection if
        this one breaks. Raises the typed errors."""
        for _ in range(TRIES - 1):
            try:
                return self.request_once(body, take, fd=fd)
            except SocketLost:
                continue
        return self.request_once(body, take, fd=fd)

    def request_once(
        self, body: m.Message, take: Take[_R], *, fd: int | None = None, epoch: int = 0
    ) -> _R:
        """Returns the same as `request`, but raises SocketLost at the first loss, and without the
        connection of `epoch` (0: any): the server's handles have another meaning on the next."""
        with self.exchange() as exchange:
            if epoch not in (0, exchange.shared.epoch):
                raise SocketLost("the connection to the server was lost")
            exchange.send(body, reply_deadline(), fd)
            return take(exchange.next(reply_deadline()), exchange.shared.epoch)

    def ask(self, body: m.Message, answer: type[_T], *, fd: int | None = None) -> _T:
        """Returns the reply without its descriptor. Raises as `request`."""
        return self.request(body, lambda reply, _: checked(reply, answer), fd=fd)

    def post(self, body: m.Message, epoch: int = 0) -> None:
        """Sends a message without a reply. Drops it without a connection, or if `epoch` is not the
        current one (0: any)."""
        shared = self._shared
        if shared is not None and epoch in (0, shared.epoch):
            shared.post(body)

    def catch_up(self) -> None:
        """Handles the events that have arrived. Connects if there is no connection."""
        self._connected().take_events()
        if self._shared is not None and self._shared.lost:
            self._connected()

    @property
    def attached(self) -> m.Attached:
        """The server's reply to Attach of this connection."""
        self._connected()
        assert self._attached is not None
        return self._attached

    def attach_again(self) -> None:
        """Requests the root again: another source may have replaced the one at its path."""
        attached = self.ask(self._dialer.attach, m.Attached)
        if attached.root.ino != self.attached.root.ino:
            self._attached = attached
            self._sink.on_attached(attached)

    # ---- connections ----

    def _connected(self) -> SharedSocket:
        """Returns the connection; connects if there is none. Threads that ask for it meanwhile
        share the result, and its error: one by one they would each wait for the server."""
        shared, since_s = self._shared, time.monotonic()
        if shared is not None and not shared.lost:
            return shared
        with self._connecting:
            if self._failure is not None and self._failure[0] >= since_s:
                raise self._failure[1]
            if self._shared is None or self._shared.lost:
                try:
                    self._shared = self._connect_in_time()
                except CacheFSError as err:
                    self._failure = time.monotonic(), err
                    raise
            return self._shared

    def _connect_in_time(self) -> SharedSocket:
        """Retries while the server may be restarting, or ending. Raises the last error: at once if
        this process may open no more files, and at the first connection also if the master does
        not answer, or if the attempt took long: its origin cannot be reached."""
        is_first = self._attached is None
        if is_first:
            self._dialer.check()
        deadline, pause_s = time.monotonic() + RECONNECT_WAIT_S, BACKOFF_FIRST_S
        while True:
            began_s = time.monotonic()
            try:
                return self._connect()
            except (Unreachable, DeadlineExceeded, OSError) as err:
                now = time.monotonic()
                if lacks_descriptors(err):
                    raise no_descriptor_left() from err
                if now + pause_s > deadline or (is_first and now - began_s > ENDING_S):
                    raise _unreachable(err) from err
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    def _connect(self) -> SharedSocket:
        self.published.close()
        self._sink.on_connecting()
        sock = self._dialer.dial()
        shared = SharedSocket(sock, self.epoch + 1, self._event)
        try:
            attached = self._attach(shared)
            self._sink.on_attached(attached)
        except BaseException:
            shared.lose("it could not be attached")
            self.published.close()
            raise
        self.epoch, self._attached = shared.epoch, attached
        return shared

    def _attach(self, shared: SharedSocket) -> m.Attached:
        hello = m.Hello("library", os.getpid(), version=cachefs.__version__, many_tiers=True)
        with Exchange(shared) as exchange:
            try:
                reply = _reply_to(exchange, hello, HELLO_DEADLINE_S)
                checked(reply, m.Welcome)
                self.published.replace(0, reply.take())  # the other directories arrive as events
                return checked(
                    _reply_to(exchange, self._dialer.attach, ATTACH_DEADLINE_S), m.Attached
                )
            except SocketLost as err:  # which would be repeated without a pause
                raise Unreachable(err.cause) from err

    def _event(self, event: m.Message, owner: OwnedFd | None) -> None:
        if isinstance(event, m.PublishedDirectory):
            return self.published.replace(event.tier, owner)
        self._sink.on_event(event)

    def close(self) -> None:
        """Ends the connection. The next use connects again."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.lose("closed by this side")
        self.published.close()

    def abandon(self) -> None:
        """Makes the session one of this process, after a fork."""
        self._connecting, self.lock = threading.Lock(), threading.Lock()
        self.epoch += 1
        self.generation += 1
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.abandon()
        self.published.close()


def reply_deadline() -> float:
    """Returns the deadline (monotonic) of a wait for the next reply."""
    return time.monotonic() + CALL_DEADLINE_S


def checked(reply: Reply, answer: type[_T]) -> _T:
    """Returns the body of a reply as `answer`. Otherwise raises the typed error of a Failure, or
    ProtocolError."""
    body = reply.body
    if isinstance(body, answer):
        return body
    if isinstance(body, m.Failure):
        raise m.error_of(body)
    raise ProtocolError(f"the server sent an unexpected reply: {type(body).__name__}")


def _reply_to(exchange: Exchange, body: m.Message, limit_s: float) -> Reply:
    deadline = time.monotonic() + limit_s
    exchange.send(body, deadline)
    return exchange.next(deadline)


def _unreachable(err: CacheFSError | OSError) -> CacheFSError:
    if isinstance(err, CacheFSError):
        return err
    return Unreachable(f"the server does not answer: {err.strerror}", remedy="see its log")
