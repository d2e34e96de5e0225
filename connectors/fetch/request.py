"""HTTP requests and the heads of replies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from connectors.base import clean_etag

AT_ONCE: Final = 256  # small-file reads in flight, of all sources together
NOT_SENT: Final = "not-sent"
# A head with two of one of these is invalid.
_ONCE: Final = frozenset({"content-length", "content-range", "etag", "transfer-encoding"})
_NAMES: Final = {
    name.encode(): name
    for name in (
        *_ONCE,
        "last-modified",
        "x-amz-bucket-region",
        "x-amz-request-id",
        "x-amzn-requestid",
        "x-goog-generation",
        "x-guploader-uploadid",
        "x-ms-error-code",
        "x-ms-meta-hdi_isfolder",
        "x-ms-request-id",
    )
}


def content_range(offset: int, size: int, total: int) -> str:
    """Returns the Content-Range of these bytes of an object of `total` bytes."""
    return f"bytes {offset}-{offset + size - 1}/{total}"


class HttpRequest(msgspec.Struct, frozen=True):
    """A request. `options` are libcurl's, by number: method, certificates, proxy, signature."""

    url: str
    headers: Sequence[str]  # lines without their ends
    size: int  # of the expected body, in bytes
    options: Mapping[int, Any]
    answer: Sequence[tuple[str, str]] = ()  # required headers of the reply; names in lower case
    is_limit: bool = False  # True: `size` is a maximum
    sent_bytes: int = 0  # of the request's own body, for the time-out of the reply

    def is_answer(self, head: Head | None) -> bool:
        """Returns whether this is the head of the expected reply."""
        if head is None or head.status != 206 or not head.is_plain:
            return False
        headers, length = head.headers, str(self.size)
        if headers.get("content-length", length) != length:
            return False
        for name, value in self.answer:
            found = headers.get(name, "")
            if (clean_etag(found) if name == "etag" else found) != value:
                return False
        return True

    def __repr__(self) -> str:
        return "HttpRequest(...)"  # its options hold credentials


class NewConnections(NamedTuple):
    """The counts of new connections and of their TLS handshakes, resumed sessions included."""

    connections: int
    handshakes: int


NO_NEW_CONNECTIONS: Final = NewConnections(0, 0)
OnConnected = Callable[[NewConnections], None]
OnReadEnd = Callable[[int, str], None]


def ignore_connections(made: NewConnections) -> None:
    """Discards the count: a `OnConnected` for callers without a meter."""


class RangeRequest:
    """A request for a range of a file, and its call-backs. `made` receives new connections."""

    __slots__ = ("_on_end", "get", "made")

    def __init__(
        self, get: HttpRequest, ended: OnReadEnd, made: OnConnected = ignore_connections
    ) -> None:
        self.get = get
        self.made = made
        self._on_end = [ended]

    def also(self, ended: OnReadEnd) -> None:
        """Adds a call-back, which is called before those added earlier."""
        self._on_end.append(ended)

    def ended(self, size_bytes: int, error: str) -> None:
        """Reports the end, once: the bytes received, and "", the code of an error or `NOT_SENT`."""
        for ended in reversed(self._on_end):
            ended(size_bytes, error)


class Head:
    """The status and the headers of a reply, names in lower case. Status 0: an invalid head."""

    __slots__ = ("headers", "is_success", "status")

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.is_success = 200 <= status < 300

    @property
    def is_plain(self) -> bool:
        """True if the body is the object's stored bytes. A Content-Encoding does not matter: it is
        metadata of the object and does not change the transfer."""
        coding = self.headers.get("transfer-encoding")
        return coding is None or coding.lower() == "chunked"


def parse_head(lines: Sequence[bytes]) -> Head:
    """Returns the head that these lines form; the first is the status line. Keeps only the headers
    in `_NAMES`. Never raises."""
    version, _, rest = lines[0].strip().partition(b" ")
    status = rest.partition(b" ")[0]
    if not version.startswith(b"HTTP/1.") or not (len(status) == 3 and status.isdigit()):
        return Head(0, {})
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        known = _NAMES.get(name.lower())
        if known is None:
            continue
        if known in headers and known in _ONCE:
            return Head(0, {})
        headers[known] = value.decode("latin-1").strip()
    return Head(int(status), headers)
