"""What a test scripts into the proxy: which requests are hit, and by what. Pure, but for `Hang`.

proxy.script(status(503, code="SlowDown"), method="GET", key=r"train/", times=2)
proxy.script(cut_body(100_000), key=r"big\\.bin$", nth=3)
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import msgspec

from tests.services.http_wire import Head

MESSAGES = {
    "SlowDown": "Please reduce your request rate.",
    "InternalError": "We encountered an internal error. Please try again.",
    "ExpiredToken": "The provided token has expired.",
}
CONDITIONS = (b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since")


class Request:
    """One request as rules see it. `key` is "" for a listing; `range_bytes` is half open."""

    def __init__(self, head: Head) -> None:
        method, target, _ = head.start.split(b" ", 2)
        path, _, query = target.decode("latin-1").partition("?")
        bucket, _, key = path.lstrip("/").partition("/")
        self.method = method.decode("ascii")
        self.bucket = unquote(bucket)
        self.key = unquote(key)
        self.query = query
        self.range_bytes = _range(head.get(b"range"))


def _range(header: bytes | None) -> tuple[int, float] | None:
    found = re.fullmatch(rb"bytes=(\d+)-(\d*)", header or b"")
    if found is None:
        return None
    return int(found[1]), int(found[2]) + 1 if found[2] else float("inf")


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Base of all faults."""


class Status(Fault, frozen=True, tag="status"):
    status: int
    code: str = "InternalError"
    message: str = ""

    def body(self, request: Request) -> bytes:
        text = self.message or MESSAGES.get(self.code, self.code)
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{self.code}</Code>'
            f"<Message>{text}</Message><Resource>/{request.bucket}</Resource>"
            f"<RequestId>PROXY{self.status}</RequestId></Error>"
        ).encode()


class CutBody(Fault, frozen=True, tag="cut_body"):
    after_bytes: int


class DripBody(Fault, frozen=True, tag="drip_body"):
    after_bytes: int
    bytes_per_s: int


class ShortBody(Fault, frozen=True, tag="short_body"):
    missing_bytes: int = 1


class WrongEtag(Fault, frozen=True, tag="wrong_etag"):
    etag: str = '"00000000000000000000000000000bad"'


class IgnoreIfMatch(Fault, frozen=True, tag="ignore_if_match"):
    pass


class AlteredLength(Fault, frozen=True, tag="altered_length"):
    delta_bytes: int = 1


class Refuse(Fault, frozen=True, tag="refuse"):
    pass


class Hang(Fault, frozen=True, tag="hang"):
    event: Any


WireFault = (
    Status | CutBody | DripBody | ShortBody | WrongEtag | IgnoreIfMatch | AlteredLength | Refuse
)


def status(code_number: int, *, code: str = "InternalError", message: str = "") -> Status:
    """An S3 error in place of the response; the request does not reach the server."""
    return Status(code_number, code, message)


def expired_credentials() -> Status:
    return Status(403, "ExpiredToken")


def cut_body(after_bytes: int) -> CutBody:
    """The connection is closed after so many bytes of the body (never after the whole of it)."""
    return CutBody(after_bytes)


def stall_body(after_bytes: int = 0) -> DripBody:
    """After so many bytes of the body nothing more comes, and the connection stays open."""
    return DripBody(after_bytes, 0)


def drip_body(bytes_per_s: int, after_bytes: int = 0) -> DripBody:
    """After so many bytes of the body the rest comes at this rate, in ten pieces a second."""
    return DripBody(after_bytes, bytes_per_s)


def short_body(missing_bytes: int = 1) -> ShortBody:
    """A well-framed response whose body and Content-Length lack the last bytes asked for."""
    return ShortBody(missing_bytes)


def wrong_etag(etag: str = WrongEtag().etag) -> WrongEtag:
    return WrongEtag(etag)


def ignore_if_match() -> IgnoreIfMatch:
    """Conditional headers do not reach the server, as at a server that does not know them."""
    return IgnoreIfMatch()


def altered_length(delta_bytes: int = 1) -> AlteredLength:
    """The object claims another length: Content-Range's total where there is one; else (HEAD, or a
    GET of the whole) Content-Length, with the body trimmed or filled with zeros to fit."""
    return AlteredLength(delta_bytes)


def refuse() -> Refuse:
    """The connection is closed without an answer."""
    return Refuse()


def hang(event: threading.Event) -> Hang:
    """No answer until `event` is set (or the proxy stops); then the request goes its way."""
    return Hang(event)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`fault` hits matching requests from the `nth` on, `times` times (None: for ever).
    `key` and `query` are regular expressions to search for; a request matches `range_bytes`
    (half open) when it asks for any byte of it, and one without Range asks for all."""

    fault: Any
    method: str | None = None
    key: str | None = None
    query: str | None = None
    range_bytes: tuple[int, int] | None = None
    nth: int = 1
    times: int | None = 1

    def matches(self, request: Request) -> bool:
        if self.method is not None and self.method != request.method:
            return False
        if self.key is not None and not re.search(self.key, request.key):
            return False
        if self.query is not None and not re.search(self.query, request.query):
            return False
        return self._overlaps(request.range_bytes)

    def _overlaps(self, asked: tuple[int, float] | None) -> bool:
        if self.range_bytes is None or asked is None:
            return True
        return asked[0] < self.range_bytes[1] and asked[1] > self.range_bytes[0]


class Armed:
    """A rule in force. `seen` counts the requests that matched, `hits` those that were hit."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.seen = 0
        self.hits = 0

    @property
    def spent(self) -> bool:
        return self.rule.times is not None and self.hits >= self.rule.times

    def take(self, request: Request) -> bool:
        if self.spent or not self.rule.matches(request):
            return False
        self.seen += 1
        hit = self.seen >= self.rule.nth
        self.hits += hit
        return hit


def choose(rules: Iterable[Armed], request: Request) -> Fault | None:
    """The fault of the first rule that hits; later rules do not see such a request."""
    return next((armed.rule.fault for armed in rules if armed.take(request)), None)
