"""The requests of peers for pages, as they arrive: decoded and validated."""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from cachefs.core import cluster as c
from cachefs.core.errors import ProtocolError
from cachefs.core.model import PAGE_BYTES, ContentId, Origin
from cachefs.core.placement import BLOCK_BYTES

DATA_PREFIX: Final = c.DATA_PATH + "/"
_origins: Final = msgspec.msgpack.Decoder(Origin)


class Asked(NamedTuple):
    """A peer's request for pages of one block."""

    content: ContentId
    origin: Origin | None  # None with `have`
    first: int
    end: int
    epoch: int
    have: bool
    next: bool
    worker: str  # the intended receiver; "": not sent

    @property
    def block(self) -> int:
        return self.first * PAGE_BYTES // BLOCK_BYTES


def parse_asked(request: web.BaseRequest) -> Asked:
    """Parses a request for pages. Raises ProtocolError."""
    query = request.query
    try:
        content = ContentId.parse(request.path.removeprefix(DATA_PREFIX))
        first, end = int(query["first"]), int(query["end"])
        epoch = int(query.get("epoch", "-1"))
    except (KeyError, ValueError) as err:
        raise ProtocolError(f"not a request for pages: {err}") from err
    have, stands_in = query.get("have") == "1", query.get("next") == "1"
    origin = _origin(request, content, first)
    worker = query.get("worker", "")
    asked = Asked(content, origin, first, end, epoch, have, stands_in, worker)
    check_pages(first, end)
    if epoch < -1:
        raise ProtocolError(f"no view has the epoch {epoch}")
    if (end - 1) * PAGE_BYTES // BLOCK_BYTES != asked.block:
        raise ProtocolError(f"pages {first} to {end} are not of one block")
    return asked


def _origin(request: web.BaseRequest, content: ContentId, first: int) -> Origin | None:
    """Parses the header with the origin. Raises ProtocolError."""
    header = request.headers.get(c.ORIGIN_HEADER)
    if header is None:
        return None
    try:
        origin = _origins.decode(base64.b64decode(header, validate=True))
    except (ValueError, msgspec.DecodeError, RecursionError) as err:
        raise ProtocolError(f"{c.ORIGIN_HEADER}: {err}") from err
    if first * PAGE_BYTES >= origin.size:
        raise ProtocolError(f"page {first} is beyond the file")
    if origin.content != content:
        raise ProtocolError(f"{c.ORIGIN_HEADER} is of another content")
    return origin


def check_pages(first: int, end: int) -> None:
    """Validates a range of pages. Raises ProtocolError."""
    if not 0 <= first < end <= first + c.MAX_DATA_PAGES:
        raise ProtocolError(f"pages {first} to {end} are not a valid range for one request")
