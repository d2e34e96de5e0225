"""The common parts of the master's HTTP pages: bounded reads of bodies, statuses of errors."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from aiohttp import ClientPayloadError, web

from cachefs.core.errors import CacheFSError, ProtocolError
from cachefs.network.guard import RefusedRequest

BODY_S: Final = 20.0  # the timeout of a request's body
_ARRIVED: Final = contextlib.nullcontext()  # in place of a timeout
STATUS_OF: Final = {
    "protocol": 400,
    "bad-config": 400,
    "access-denied": 403,
    "not-found": 404,
    "not-a-directory": 404,
    "stale": 409,
    "in-use": 409,
    "gone": 409,
    "is-a-directory": 409,
    "unsupported": 422,
    "name-too-long": 422,
    "file-too-large": 422,
    "throttled": 429,
    "credentials-missing": 502,
    "origin-error": 502,
    "archived": 502,
    "deadline": 504,
    "no-space": 507,
}


class Answer(web.Response):
    """A response that drops its sent body: an idle connection keeps its last response."""

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        self.body = None


def status_of(err: CacheFSError) -> int:
    """Returns the HTTP status of a failure."""
    if isinstance(err, RefusedRequest):
        return err.status
    known = STATUS_OF.get(err.code)
    if known is not None:
        return known
    return 503 if err.retryable else 500


async def read_body(request: web.BaseRequest, most_bytes: int) -> bytes:
    """Returns the body, read from the stream: `request.read` would keep a copy. Raises
    ProtocolError for a body that is too large, too slow or incomplete."""
    chunks, size_bytes = [], 0
    try:
        # A small body has arrived with its head, and needs no timer.
        async with asyncio.timeout(BODY_S) if not request.content.is_eof() else _ARRIVED:
            while chunk := await request.content.readany():
                chunks.append(chunk)
                size_bytes += len(chunk)
                if size_bytes > most_bytes:
                    raise ProtocolError(f"a call of more than {most_bytes} bytes")
    except (ClientPayloadError, ConnectionError) as err:
        raise ProtocolError("the call broke off") from err
    except TimeoutError as err:
        raise ProtocolError(f"the call was not sent within {BODY_S:g} s") from err
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
