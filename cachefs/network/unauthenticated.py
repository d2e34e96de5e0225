"""Connections that are not authenticated yet: a limit for each address, and a time limit. All
methods belong to one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Hashable
from typing import Final, NamedTuple

UNAUTHENTICATED_TIMEOUT_S: Final = 10.0  # until a valid token arrives


class _Stranger(NamedTuple):
    transport: asyncio.Transport
    group: str
    timer: asyncio.TimerHandle


class UnauthenticatedConnections:
    """The unauthenticated connections of a server. Closes each one after
    `UNAUTHENTICATED_TIMEOUT_S`, and the oldest of an address with more than half of `most`. A
    connection that sends its token at once is never the oldest."""

    def __init__(self, most: int) -> None:
        self._most_of_one = max(1, most // 2)
        self._known: dict[Hashable, _Stranger] = {}  # the oldest first
        self._groups: dict[str, dict[Hashable, None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def came(self, connection: Hashable, transport: asyncio.Transport) -> None:
        """Adds an accepted connection."""
        group = _group(transport.get_extra_info("peername"))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(UNAUTHENTICATED_TIMEOUT_S, self._close, connection)
        self._known[connection] = _Stranger(transport, group, timer)
        of_group = self._groups.setdefault(group, {})
        of_group[connection] = None
        if len(of_group) > self._most_of_one:
            self._close(next(iter(of_group)))

    def forget(self, connection: Hashable) -> None:
        """Removes a connection that is authenticated or closed. Idempotent."""
        stranger = self._known.pop(connection, None)
        if stranger is None:
            return
        stranger.timer.cancel()
        of_group = self._groups[stranger.group]
        del of_group[connection]
        if not of_group:
            del self._groups[stranger.group]

    def close_oldest(self) -> None:
        """Closes the oldest connection, if any."""
        if self._known:
            self._close(next(iter(self._known)))

    def _close(self, connection: Hashable) -> None:
        transport = self._known[connection].transport
        self.forget(connection)
        transport.abort()


def _group(peer: object) -> str:
    """Returns the addresses that one machine may choose from: for IPv6 its network of 64 bits."""
    host = str(peer[0]) if isinstance(peer, tuple) else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback or address.ipv4_mapped:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))
