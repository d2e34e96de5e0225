"""Connections that have not shown yet that they may ask anything: few of one address, and not for
long. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Hashable
from typing import Final, NamedTuple

STRANGER_S: Final = 10.0  # for showing a token


class _Stranger(NamedTuple):
    transport: asyncio.Transport
    group: str
    timer: asyncio.TimerHandle


class Strangers:
    """Closes the oldest stranger of an address when that has more than half of `most`, and each one
    after `STRANGER_S`. A caller that shows its token at once is never the oldest."""

    def __init__(self, most: int) -> None:
        self._most_of_one = max(1, most // 2)
        self._known: dict[Hashable, _Stranger] = {}  # the oldest first
        self._groups: dict[str, dict[Hashable, None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def came(self, connection: Hashable, transport: asyncio.Transport) -> None:
        """A connection was accepted."""
        group = _group(transport.get_extra_info("peername"))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(STRANGER_S, self._close, connection)
        self._known[connection] = _Stranger(transport, group, timer)
        of_group = self._groups.setdefault(group, {})
        of_group[connection] = None
        if len(of_group) > self._most_of_one:
            self._close(next(iter(of_group)))

    def forget(self, connection: Hashable) -> None:
        """The connection has shown that it may ask, or has ended. Idempotent."""
        stranger = self._known.pop(connection, None)
        if stranger is None:
            return
        stranger.timer.cancel()
        of_group = self._groups[stranger.group]
        del of_group[connection]
        if not of_group:
            del self._groups[stranger.group]

    def close_oldest(self) -> None:
        """Makes room, where there is a stranger."""
        if self._known:
            self._close(next(iter(self._known)))

    def _close(self, connection: Hashable) -> None:
        transport = self._known[connection].transport
        self.forget(connection)
        transport.abort()


def _group(peer: object) -> str:
    """The addresses that one machine may choose from: all of an IPv6 network of 64 bits."""
    host = str(peer[0]) if isinstance(peer, tuple) else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback or address.ipv4_mapped:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))
