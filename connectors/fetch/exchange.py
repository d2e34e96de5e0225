"""A handle of libcurl, which serves one request at a time.

libcurl writes a body into the caller's buffer. If the buffer is full, the transfer is paused and
the server waits. A request ends when its body exceeds the expected size, or will by its
Content-Length, or when the body of an error reply exceeds `ERROR_BYTES`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pycurl

from connectors.bounds import parse_size
from connectors.fetch.request import (
    NO_NEW_CONNECTIONS,
    Head,
    HttpRequest,
    NewConnections,
    parse_head,
)

CONNECT_LIMIT_S: Final = 5.0
ERROR_BYTES: Final = 64 << 10  # the most kept of the body of an error reply
READ_BYTES: Final = 512 << 10  # per read of a socket
PIECE_BYTES: Final = 16 << 10  # the most in one call-back
KEPT_S: Final = 10.0  # an idle connection is kept; servers keep it for longer
_STOP: Final = 0  # bytes accepted, fewer than given: libcurl ends the request
_ENDS: Final = (b"\r\n", b"\n")  # the empty line that ends a head
_SUPPRESS_CONNECT_HEADERS: Final = 265  # pycurl has no names for these two options
_CA_CACHE_TIMEOUT: Final = 321
CERTIFICATES_S: Final = 60  # the parsed file of trusted certificates is reused

_ALWAYS: Final[tuple[tuple[int, Any], ...]] = (
    (pycurl.NOSIGNAL, 1),
    (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
    (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
    (pycurl.FOLLOWLOCATION, 0),
    (pycurl.BUFFERSIZE, READ_BYTES),
    (pycurl.CONNECTTIMEOUT_MS, int(CONNECT_LIMIT_S * 1000)),
    (pycurl.MAXAGE_CONN, int(KEPT_S)),
    (pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
    (_CA_CACHE_TIMEOUT, CERTIFICATES_S),
    (_SUPPRESS_CONNECT_HEADERS, 1),  # as on a reused tunnel, which has none
    (pycurl.NOPROXY, ""),  # PROXY decides, not `no_proxy` of the environment
)


def make_share() -> Any:
    """Returns a `CurlShare` for the handles of several threads: they share resolved addresses and
    TLS sessions, which new connections resume."""
    share = pycurl.CurlShare()
    share.setopt(pycurl.SH_SHARE, pycurl.LOCK_DATA_SSL_SESSION)
    share.setopt(pycurl.SH_SHARE, pycurl.LOCK_DATA_DNS)
    return share


class Exchange:
    """A handle of libcurl and the request that it serves. Used by one thread at a time."""

    def __init__(self, limits: Iterable[tuple[int, Any]] = (), share: Any = None) -> None:
        """`limits`: options of libcurl for all requests. `share`: see `make_share`."""
        self.refusal = bytearray()  # the body of an error reply
        self.room = memoryview(b"")  # the buffer of the body
        self.got = 0  # bytes in `room`
        self.left = 0  # bytes of the body still expected
        self._room_bytes = 0
        self._is_success = False  # the head was received, with a status of 2xx
        self.is_over = False  # the body exceeds the expected size
        self.is_paused = False
        self._limits = tuple(limits)
        self._options: Mapping[int, Any] | None = None  # of the last request
        self._lines: list[bytes] = []
        self._head: Head | None = None
        self.curl: Any = pycurl.Curl()
        if share is not None:
            self.curl.setopt(pycurl.SHARE, share)

    def begin(self, get: HttpRequest, room: memoryview) -> None:
        """Prepares a request; clears the state of the former one."""
        self._lines.clear()
        self._head = None
        self.refusal.clear()
        self.room, self.got, self.left = room, 0, get.size
        self._room_bytes, self._is_success = len(room), False
        self.is_over = self.is_paused = False
        if get.options != self._options:
            self._set_up(get.options)
        self.curl.setopt(pycurl.URL, get.url)
        self.curl.unsetopt(pycurl.HTTPHEADER)  # an empty list would keep the former headers
        self.curl.setopt(pycurl.HTTPHEADER, get.headers)

    def _set_up(self, options: Mapping[int, Any]) -> None:
        self.curl.reset()
        self.curl.unsetopt(pycurl.CAPATH)  # trust only CAINFO, not libcurl's built-in path
        self.curl.unsetopt(pycurl.PROXY_CAPATH)
        for option, value in (*_ALWAYS, *self._limits, *options.items()):
            self.curl.setopt(option, value)
        self.curl.setopt(pycurl.HEADERFUNCTION, self._lines.append)  # runs no Python per line
        self.curl.setopt(pycurl.WRITEFUNCTION, self._on_body)
        self._options = options

    def forget_sent(self) -> None:
        """Drops the body of the last request, which libcurl and the options would keep."""
        if self._options is not None and pycurl.POSTFIELDS in self._options:
            self.curl.reset()
            self._options = None

    @property
    def head(self) -> Head | None:
        """The head of the reply, or None before it is received."""
        if self._head is None and self._lines and self._lines[-1] in _ENDS:
            self._head = self._last_head()
        return self._head

    def _last_head(self) -> Head | None:
        """Returns the last head; None if it is an interim one (1xx)."""
        lines = self._lines
        if sum(map(lines.count, _ENDS)) > 1:
            lines = lines[1 + max(at for at, line in enumerate(lines[:-1]) if line in _ENDS) :]
        head = parse_head(lines)
        return None if 100 <= head.status < 200 else head

    def drop(self, size: int) -> None:
        """Drops the first `size` bytes, moves the rest to the start, and resumes the transfer."""
        rest = self.got - size
        self.room[:rest] = self.room[size : self.got]
        self.got = rest
        if self.is_paused:
            self.is_paused = False
            with contextlib.suppress(pycurl.error):  # `_on_body` refused a byte, see `is_over`
                self.curl.pause(pycurl.PAUSE_CONT)

    @property
    def has_stopped(self) -> bool:
        """True if the room is full, or the body exceeds the expected size."""
        return self.is_paused or self.is_over

    @property
    def proxy_status(self) -> int:
        """The status with which a proxy refused the tunnel or the request; 0: no refusal."""
        if self.head is not None and self.head.status == 407:  # no origin sends this status
            return 407
        status: int = self.curl.getinfo(pycurl.HTTP_CONNECTCODE)
        return status if status >= 300 else 0

    @property
    def made(self) -> NewConnections:
        """The connections that the last request made."""
        connections: int = self.curl.getinfo(pycurl.NUM_CONNECTS)
        if not connections:
            return NO_NEW_CONNECTIONS
        has_shaken_hands = self.curl.getinfo(pycurl.APPCONNECT_TIME) > 0
        return NewConnections(connections, connections if has_shaken_hands else 0)

    @property
    def may_resolve(self) -> bool:
        """True if a lookup of the host name may still run, although the request has ended."""
        return not self.curl.getinfo(pycurl.NAMELOOKUP_TIME)

    def close(self) -> None:
        self.room = memoryview(b"")
        self.curl.close()

    def _on_body(self, data: bytes) -> int | None:
        start, size = self.got, len(data)
        stop = start + size
        if self._is_success and size <= self.left and stop <= self._room_bytes:
            self.room[start:stop] = data
            self.got = stop
            self.left -= size
            return None
        return self._on_other_body(data)

    def _on_other_body(self, data: bytes) -> int | None:
        """Takes the first bytes of a body, bytes that find no room, and the body of an error."""
        head = self._head or self.head
        if head is None or not head.is_success:
            self.refusal += data[: ERROR_BYTES - len(self.refusal)]
            return None if len(self.refusal) < ERROR_BYTES else _STOP
        if not self._is_success and _declared_bytes(head) > self.left:
            self.is_over = True  # now: a server that is wrong about the length may never send it
            return _STOP
        self._is_success = True
        size, start = min(len(data), self.left), self.got
        if size > self._room_bytes - start:
            self.is_paused = True
            paused: int = pycurl.WRITEFUNC_PAUSE
            return paused
        self.room[start : start + size] = data if size == len(data) else data[:size]
        self.got += size
        self.left -= size
        if size == len(data):
            return None
        self.is_over = True
        return _STOP


def _declared_bytes(head: Head) -> int:
    """Returns the length of the body by the head; 0 if the head has none that can be."""
    return parse_size(head.headers.get("content-length", "")) or 0
