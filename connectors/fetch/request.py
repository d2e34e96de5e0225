"""What is asked of a server, and the head of its reply. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from connectors.base import clean_etag

AT_ONCE: Final = 256  # small files that are on their way together, of all sources
NOT_SENT: Final = "not-sent"
# A head that says one of these twice says nothing.
_ONCE: Final = frozenset({"content-length", "content-range", "etag", "transfer-encoding"})
_NAMES: Final = {
    name.encode(): name
    for name in (*_ONCE, "last-modified", "x-amz-bucket-region", "x-amz-request-id")
}


class Get(NamedTuple):
    """A GET request, or a HEAD. `options` are libcurl's, by their numbers: certificates, proxy,
    signature."""

    url: str
    headers: Sequence[str]  # lines without their ends
    size: int  # of the body that is expected, in bytes
    options: Mapping[int, Any]
    answer: Sequence[tuple[str, str]] = ()  # headers of the right reply; names in lower case
    is_limit: bool = False  # fewer bytes than `size` may come, too

    def is_answer(self, head: Head | None) -> bool:
        """Returns whether a reply with this head is the one that was asked for."""
        return (
            head is not None
            and head.status == 206
            and head.is_plain
            and head.headers.get("content-length", str(self.size)) == str(self.size)
            and all(_value(head.headers, name) == value for name, value in self.answer)
        )

    def __repr__(self) -> str:
        return "Get(...)"  # its options hold credentials


class Made(NamedTuple):
    """New connections of requests. libcurl tells by its handles how many there were and whether TLS
    shook hands, and not whether that resumed a session."""

    connections: int
    handshakes: int


NOTHING_MADE: Final = Made(0, 0)
TellMade = Callable[[Made], None]


def tell_nobody(made: Made) -> None:
    """Is a `TellMade` where nobody counts."""


class Ask(NamedTuple):
    """A request for all of a small file, and what is called once with its outcome: how many bytes
    of the body came; "", an error's code or `NOT_SENT`. `made` is told of new connections."""

    get: Get
    ended: Callable[[int, str], None]
    made: TellMade = tell_nobody

    def also(self, ended: Callable[[int, str], None]) -> Ask:
        """Returns the same request, of whose outcome `ended` is told, too, and first."""
        before = self.ended

        def both(size: int, error: str) -> None:
            ended(size, error)
            before(size, error)

        return self._replace(ended=both)


class Head:
    """The status and the headers of a reply, names in lower case. Status 0: it makes no sense."""

    __slots__ = ("headers", "is_success", "status")

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.is_success = 200 <= status < 300

    @property
    def is_plain(self) -> bool:
        """Returns whether the bytes that come are those that the store has. A Content-Encoding says
        how the store got them, and is none of the transfer's."""
        return self.headers.get("transfer-encoding", "chunked").lower() == "chunked"


def parse_head(lines: Sequence[bytes]) -> Head:
    """Returns the head that these lines are; the first one is the status line. Of the headers only
    those are kept that somebody looks at. Raises nothing."""
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


def _value(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    return clean_etag(value) if name == "etag" else value
