"""Replies to listings, which have a limit and no size that is known before: complete ones, too
large ones, and those that are cut, over plain HTTP and TLS."""

from __future__ import annotations

import pytest
from msgspec import structs

from cachefs.core.errors import OriginError
from connectors.fetch.connection import CHUNK_BYTES
from connectors.fetch.connection_pool import ConnectionPool
from connectors.fetch.exchange import PIECE_BYTES
from connectors.fetch.request import HttpRequest
from tests.unit.connectors.raw_http import Came, RawServer, content, get, reply
from tests.unit.connectors.test_fetch_lanes import read


def listed(raw: RawServer, limit: int) -> HttpRequest:
    """Asks for a body of at most `limit` bytes."""
    return structs.replace(get(raw, "/list/1000"), size=limit, is_limit=True)


CHUNKED = b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("limit", [1000, 1001, 16 << 20])
def test_a_reply_of_any_size_up_to_a_limit(
    raw: RawServer, source: ConnectionPool, limit: int
) -> None:
    assert read(source, listed(raw, limit)) == (content("/list/1000", 1000), None)
    raw.script = lambda came: came.sock.sendall(CHUNKED + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n") is None
    assert read(source, listed(raw, limit)) == (b"abc", None)


@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("size", [CHUNK_BYTES, CHUNK_BYTES + PIECE_BYTES + 1, (2 << 20) - 1])
def test_a_reply_that_is_larger_than_the_buffer(
    raw: RawServer, source: ConnectionPool, size: int, is_chunked: bool
) -> None:
    target = f"/list/{size}"
    asked = structs.replace(get(raw, target), size=2 << 20, is_limit=True)
    if is_chunked:
        whole = CHUNKED + b"%x\r\n" % size + content(target, size) + b"\r\n0\r\n\r\n"
        raw.script = lambda came: came.sock.sendall(whole) is None
    assert read(source, asked) == (content(target, size), None)


def test_a_reply_beyond_its_limit(raw: RawServer, source: ConnectionPool) -> None:
    _, error = read(source, listed(raw, 999))
    assert isinstance(error, OriginError)
    assert "more than" in error.cause


@pytest.mark.parametrize("kept", [0, 1, -1])
@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_reply_of_any_size_that_is_cut(
    raw: RawServer, source: ConnectionPool, is_chunked: bool, kept: int
) -> None:
    """It is never taken for a shorter one: also where but the last bytes of its end are lost."""
    whole = reply("/list/1000")
    if is_chunked:
        whole = CHUNKED + b"3e8\r\n" + content("/list/1000", 1000) + b"\r\n0\r\n\r\n"
    start = whole.index(b"\r\n\r\n") + 4

    def script(came: Came) -> bool:
        came.sock.sendall(whole[: start + kept if kept >= 0 else kept])
        return False

    raw.script = script
    got, error = read(source, listed(raw, 1 << 20))
    assert content("/list/1000", 1000).startswith(got) or got == b""
    assert error is not None
    assert error.retryable
