"""An aiohttp connector that checks the listening process before a token is sent to it."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Iterable
from typing import Any

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from cachefs.network.checked_connect import ListenerCheck, resolve_localhost


class CheckedConnector(aiohttp.TCPConnector):
    """A connector that calls `judge` for each address before it connects, and once for each
    connection before its first request. A refused address leads to the next address of the name.
    `socket_options`: (level, option, value) of each socket."""

    def __init__(
        self,
        judge: ListenerCheck,
        socket_options: Iterable[tuple[int, int, int]] = (),
        **options: Any,
    ) -> None:
        super().__init__(resolver=_Resolver(), socket_factory=self._new_socket, **options)
        self._judge = judge
        self._socket_options = tuple(socket_options)
        self._judged: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """Raises OSError for a connection that `judge` refuses."""
        connection = await super().connect(req, traces, timeout)
        try:
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: Connection) -> None:
        """Raises OSError."""
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None:
            raise ConnectionResetError("the connection was closed")
        if protocol not in self._judged:
            self._judge(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
            self._judged.add(protocol)

    def _new_socket(self, address: Any) -> socket.socket:
        """Returns the socket of one connection. Raises OSError."""
        family, kind, protocol = address[:3]
        self._judge(address[4], None)
        sock = socket.socket(family, kind, protocol)
        for level, option, value in self._socket_options:
            sock.setsockopt(level, option, value)
        return sock


class _Resolver(aiohttp.ThreadedResolver):
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await super().resolve(resolve_localhost(host), port, family)
        return [{**one, "hostname": host} for one in found]
