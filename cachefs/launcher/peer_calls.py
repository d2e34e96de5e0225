"""Calls to workers' control over HTTP, of a node's worker and of a master. Bytes go other ways
(`worker.peers.source`)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from cachefs.core import cluster as c
from cachefs.core.access import HEADER, header_of
from cachefs.core.errors import ProtocolError, Unreachable

CONNECTIONS_OF_ONE: Final = 4
CONNECT_S: Final = 2.0


class PeerCalls:
    """Belongs to one event loop; made in it."""

    def __init__(
        self,
        token: str,
        ssl_context: ssl.SSLContext | None,
        presents_to: Callable[[Any], None] = lambda address: None,
    ) -> None:
        """`presents_to` raises OSError for an address at which the token is not to be presented."""
        headers = {"Content-Type": "application/msgpack"}
        if token:
            headers[HEADER] = header_of(token)
        self._presents_to = presents_to
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit_per_host=CONNECTIONS_OF_ONE,
                ssl=ssl_context if ssl_context is not None else True,
                socket_factory=self._new_socket,
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _new_socket(self, address: Any) -> socket.socket:
        """For one connection. Raises OSError."""
        family, kind, protocol = address[:3]
        self._presents_to(address[4])
        return socket.socket(family, kind, protocol)

    async def ask(self, url: str, call: c.Have | c.Offer | c.Drop) -> c.Answer:
        """One attempt; the caller bounds its time. Raises Unreachable, ProtocolError."""
        try:
            async with self._session.post(
                url + c.CALL_PATH, data=c.encode(call), allow_redirects=False
            ) as reply:
                data = await reply.content.read(c.MAX_ANSWER_BYTES + 1)
                while len(data) <= c.MAX_ANSWER_BYTES and not reply.content.at_eof():
                    data += await reply.content.read(c.MAX_ANSWER_BYTES + 1 - len(data))
        except (aiohttp.ClientError, OSError) as err:
            raise Unreachable(f"the worker at {url} cannot be reached: {err}") from err
        if len(data) > c.MAX_ANSWER_BYTES:
            raise ProtocolError(f"the worker at {url} answers without an end")
        return c.decode_answer(data)

    async def close(self) -> None:
        """Calls under way fail."""
        await self._session.close()
