"""Replies of a server, byte by byte, to a request for /f/100: wrong ones, and right ones that are
written otherwise than `raw_http.reply` writes them."""

from __future__ import annotations

import random

from tests.unit.connectors.raw_http import content, reply

RIGHT = reply("/f/100")
_BODY = content("/f/100", 100)


def instead(old: bytes, new: bytes) -> bytes:
    assert RIGHT.count(old) == 1
    return RIGHT.replace(old, new)


def with_any_head(seed: int) -> bytes:
    """The right reply with some bytes of its head replaced, removed or inserted."""
    rng, data = random.Random(seed), bytearray(RIGHT[:-100])
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(data) + RIGHT[-100:]


WRONG = {
    "403": instead(b"206 Partial Content", b"403 Forbidden"),
    "404": instead(b"206 Partial Content", b"404 Not Found"),
    "412": instead(b"206 Partial Content", b"412 Precondition Failed"),
    "304-without-body": b'HTTP/1.1 304 Not Modified\r\nETag: "/f/100"\r\n\r\n',
    "301": b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
    "200": instead(b"206 Partial Content", b"200 OK"),
    "200-another-length": b'HTTP/1.1 200 OK\r\nETag: "/f/100"\r\nContent-Length: 3\r\n\r\nabc',
    "another-etag": instead(b'ETag: "/f/100"', b'ETag: "/g/100"'),
    "no-etag": instead(b'ETag: "/f/100"\r\n', b""),
    "another-range": instead(b"bytes 0-99/100", b"bytes 1-100/101"),
    "no-range": instead(b"Content-Range: bytes 0-99/100\r\n", b""),
    "shorter": instead(b"Content-Length: 100", b"Content-Length: 99"),
    "longer": instead(b"Content-Length: 100", b"Content-Length: 101") + b"x",
    "length-of-no-number": instead(b"Content-Length: 100", b"Content-Length: 0x64"),
    "two-lengths": instead(b"Content-Length: 100", b"Content-Length: 100\r\ncontent-length: 7"),
    "two-etags": instead(b'ETag: "/f/100"', b'ETag: "x"\r\nETag: "/f/100"'),
    "no-chunks": instead(b"Content-Length: 100", b"Transfer-Encoding: chunked"),
    "gzip-of-the-transfer": instead(b"ETag", b"Transfer-Encoding: gzip\r\nETag"),
    "long-head": instead(b"ETag", b"X: " + b"x" * (1 << 20) + b"\r\nETag"),
    "head-without-end": b"HTTP/1.1 206 Partial Content\r\nX: " + b"x" * 9000,
    "http-9": instead(b"HTTP/1.1", b"HTTP/9.1"),
    "short-status": instead(b"206 ", b"20 "),
    "superscript-status": instead(b"206 ", "²06 ".encode("latin-1")),
    "no-status": b"HTTP/1.1\r\n\r\n",
    "no-head": b"\r\n\r\n",
    "garbage": bytes(range(256)) * 2 + b"\r\n\r\n",
    "nothing": b"",
    "cut": RIGHT[:-1],
    "endless": b"HTTP/1.1 403 Forbidden\r\n\r\n" + b"x" * (8 << 20),
}

OTHERWISE = {
    "http-1.0": instead(b"HTTP/1.1", b"HTTP/1.0"),
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + RIGHT,
    "chunks": RIGHT[:-100].replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
    + b"32\r\n%s\r\n32\r\n%s\r\n0\r\n\r\n" % (_BODY[:50], _BODY[50:]),
    "encoded": instead(b"ETag", b"Content-Encoding: gzip\r\nETag"),
}
