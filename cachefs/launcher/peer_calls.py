"""Control calls to workers over HTTP, from a worker or a master. File bytes use another path
(`worker.peers.source`)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp

from cachefs.core import cluster as c
from cachefs.core.errors import ProtocolError, Unreachable
from cachefs.network.checked_connect import ListenerCheck, accept_any_listener
from cachefs.network.connector import CheckedConnector
from cachefs.network.error_causes import cause_of

CONNECTIONS_OF_ONE: Final = 4
CONNECT_S: Final = 2.0


class PeerCalls:
    """A client of workers' control. Belongs to the event loop in which it is created."""

    def __init__(
        self,
        token: Mapping[str, str],
        ssl_context: ssl.SSLContext | None,
        presents_to: ListenerCheck = accept_any_listener,
    ) -> None:
        """Creates the HTTP session. `token`: the headers with the token, read at each call."""
        self._token = token
        self._session = aiohttp.ClientSession(
            connector=CheckedConnector(
                presents_to,
                limit_per_host=CONNECTIONS_OF_ONE,
                ssl=ssl_context if ssl_context is not None else True,
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            headers={"Content-Type": "application/msgpack"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def ask(self, url: str, call: c.Have | c.Offer | c.Drop) -> c.Answer:
        """Sends a call once; the caller sets the timeout. Raises Unreachable, ProtocolError."""
        try:
            async with self._session.post(
                url + c.CALL_PATH,
                data=c.encode(call),
                headers=self._token,
                allow_redirects=False,
            ) as reply:
                data = await reply.content.read(c.MAX_ANSWER_BYTES + 1)
                while len(data) <= c.MAX_ANSWER_BYTES and not reply.content.at_eof():
                    data += await reply.content.read(c.MAX_ANSWER_BYTES + 1 - len(data))
        except (aiohttp.ClientError, OSError) as err:
            cause = f"the worker at {url} cannot be reached: {cause_of(err)}"
            raise Unreachable(cause) from err
        if len(data) > c.MAX_ANSWER_BYTES:
            raise ProtocolError(f"the reply of the worker at {url} is too long")
        return c.decode_answer(data)

    async def close(self) -> None:
        """Closes the session. Calls in flight fail."""
        await self._session.close()
