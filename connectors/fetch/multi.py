"""The requests in flight on handles of libcurl, driven by one thread: CurlMulti on epoll.

libcurl sets by call-backs the sockets to watch and the time of its next call. That time must be
met, since OpenSSL may hold decrypted bytes that no socket reports. `CurlMulti.select` would do the
same for descriptors below 1024 only.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import pycurl

from cachefs.core.errors import OriginError, Unreachable
from connectors.fetch.exchange import Exchange
from connectors.fetch.request import HttpRequest

_EVENTS: Final = {
    pycurl.POLL_IN: select.EPOLLIN,
    pycurl.POLL_OUT: select.EPOLLOUT,
    pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
}
_LONGEST_S: Final = 60.0  # the longest wait, even if libcurl allows more


class Ended(msgspec.Struct, frozen=True):
    """A request that has ended. `code` is libcurl's; 0: the reply is complete."""

    exchange: Exchange
    code: int
    text: str

    def error_of(self, get: HttpRequest) -> str:
        """Returns "" if the reply is the expected one and complete, else the code of an error."""
        exchange = self.exchange
        if self.code not in (0, pycurl.E_WRITE_ERROR):
            return Unreachable.code
        is_right = self.code == 0 and get.is_answer(exchange.head) and exchange.left == 0
        return "" if is_right else OriginError.code


class Multi:
    """A CurlMulti and its epoll. Owned by one thread at a time; any thread may call `wake`."""

    def __init__(self, connections: int) -> None:
        """Keeps up to `connections` of them for later requests."""
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._lock = threading.Lock()  # guards the close of `_wake_fd`
        self._is_closed = False
        self._watched: set[int] = set()  # sockets of requests; idle ones may be in the epoll, too
        self.due_s: float | None = None  # monotonic; when libcurl wants to be called
        self._running: dict[Any, Exchange] = {}
        self._curl: Any = pycurl.CurlMulti()
        self._curl.setopt(pycurl.M_MAXCONNECTS, connections)
        self._curl.setopt(pycurl.M_SOCKETFUNCTION, self._on_socket)
        self._curl.setopt(pycurl.M_TIMERFUNCTION, self._on_timer)

    def add(self, exchange: Exchange) -> None:
        """Starts a request after `Exchange.begin`; `turn` drives it."""
        self._running[exchange.curl] = exchange
        self._curl.add_handle(exchange.curl)

    def remove(self, exchange: Exchange) -> None:
        """Ends a request; closes its connection unless the reply was read to its end."""
        if self._running.pop(exchange.curl, None) is not None:
            self._curl.remove_handle(exchange.curl)

    def due_in_s(self) -> float:
        """Returns the time until `turn` is to be called at the latest, in seconds."""
        if self.due_s is None:
            return _LONGEST_S
        return max(0.0, min(_LONGEST_S, self.due_s - time.monotonic()))

    def fileno(self) -> int:
        """Returns the descriptor that is readable while `turn` has something to do."""
        return self._epoll.fileno()

    def turn(self, limit_s: float, events_at_once: int = -1) -> list[Ended]:
        """Waits for at most `limit_s` seconds, or until something happens; moves requests on, those
        of up to `events_at_once` sockets (-1: all). Returns those that have ended, which are
        removed."""
        wait_s = min(limit_s, self.due_in_s()) if limit_s else 0.0
        for fd, events in self._epoll.poll(wait_s, events_at_once):
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)
            elif fd in self._watched:
                self._curl.socket_action(fd, _action(events))
            else:  # an idle connection, which its server has closed
                self._unregister(fd)
        if self.due_s is not None and self.due_s <= time.monotonic():
            self.due_s = None
            self._curl.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        return self._ended()

    def _ended(self) -> list[Ended]:
        found: list[tuple[Any, int, str]] = []
        left = 1
        while left:
            left, succeeded, failed = self._curl.info_read()
            found += [(curl, 0, "") for curl in succeeded]
            found += failed
        ended = [Ended(self._running[curl], code, text) for curl, code, text in found]
        for one in ended:
            self.remove(one.exchange)
        return ended

    def wake(self) -> None:
        """Makes the current `turn`, or else the next one, return soon. From any thread."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Ends all requests and closes all connections. Idempotent."""
        for exchange in [*self._running.values()]:
            self.remove(exchange)
        self._curl.close()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._wake_fd)
        self._epoll.close()

    def _on_socket(self, what: int, fd: int, multi: Any, data: Any) -> None:
        if what not in _EVENTS:  # stays in the epoll, as the next request probably watches it again
            return self._watched.discard(fd)
        self._watched.add(fd)
        try:
            self._epoll.modify(fd, _EVENTS[what])
        except FileNotFoundError:  # a new socket
            self._epoll.register(fd, _EVENTS[what])

    def _unregister(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # a closed socket is no longer in the epoll
            self._epoll.unregister(fd)

    def _on_timer(self, timeout_ms: int) -> None:
        self.due_s = time.monotonic() + timeout_ms / 1000 if timeout_ms >= 0 else None


def _action(events: int) -> int:
    action: int = pycurl.CSELECT_IN if events & (select.EPOLLIN | select.EPOLLHUP) else 0
    action |= pycurl.CSELECT_OUT if events & select.EPOLLOUT else 0
    action |= pycurl.CSELECT_ERR if events & select.EPOLLERR else 0
    return action


def close_handles(multi: Multi, exchanges: Iterable[Exchange]) -> None:
    """Ends all requests and closes their connections. Waits for nothing, see `close_apart`."""
    exchanges = [*exchanges]

    def close() -> None:
        multi.close()
        for exchange in exchanges:
            exchange.close()

    close_apart(close, any(exchange.may_resolve for exchange in exchanges))


def close_apart(close: Callable[[], None], may_resolve: bool) -> None:
    """Calls `close`. If a name may be in lookup, another thread does: libcurl would wait for the
    lookup, which may hang for as long as the resolver's limit (10 s and more). A finalizer calls
    this also at the end of the interpreter, where the start of a thread never returns: the end of
    the process then closes the connections."""
    if not may_resolve:
        close()
    elif not sys.is_finalizing():
        threading.Thread(target=close, name="name-lookup", daemon=True).start()
