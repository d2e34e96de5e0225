"""Watches a mount's server from its client: asks for a sign of life when nothing is heard, and ends
a server that gives none, so that the connection finds, or starts, the next one.

Each client of a server watches for itself, and ends no other process than the one that it is
connected to, so that it does not matter which is the first. A worker that a service manager
watches is not ended: the log says that it hangs.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Final

import trio

from cachefs.client.connection import Connection
from cachefs.launcher import hanging
from cachefs.launcher.watches import Watch

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
PING_S: Final = 2.0  # of silence


class Act(enum.Enum):
    NONE = enum.auto()
    PING = enum.auto()
    END = enum.auto()


class Silence:
    """When to ask a server for a sign of life, and when it hangs. Pure.

    Counts time in which this process ran: a look that comes late counts as two, so that a machine
    that was suspended, or a client that was stopped, takes no server for one that hangs."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._looked_at = now
        self._heard = -1
        self._silent_s = 0.0
        self._has_asked = False

    def look(self, heard: int, now: float) -> Act:
        """`heard`: what has come from the server so far, as a number that grows."""
        passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_S), now
        if heard != self._heard:
            self._heard, self._silent_s, self._has_asked = heard, 0.0, False
            return Act.NONE
        self._silent_s += passed_s
        if not self._has_asked and self._silent_s >= PING_S:
            self._silent_s, self._has_asked = 0.0, True
            return Act.PING
        if self._has_asked and self._silent_s >= self._limit_s:
            self._silent_s, self._has_asked = 0.0, False  # and again, when it does not end
            return Act.END
        return Act.NONE


class ServerWatch:
    """See the module. `run` is the one task. `socket_path` tells where the server listens that is
    used now; `limit_s` without an answer is a hang."""

    def __init__(self, conn: Connection, socket_path: Callable[[], str], limit_s: float) -> None:
        self._conn = conn
        self._socket_path = socket_path
        self._limit_s = limit_s
        self._epoch = 0  # of the connection that is watched
        self._server: Watch | None = None  # where this client may end it
        self._silence: Silence  # of the connection that is watched

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await trio.sleep(LOOK_S)
                await self._look()
        finally:
            self._forget()

    async def _look(self) -> None:
        """Acts on the silence of the connection that there is. A question that no server was sent
        counts for none: each connection has a silence of its own."""
        if not self._conn.is_connected:
            return
        if self._conn.epoch != self._epoch:
            await self._meet()
        match self._silence.look(self._conn.heard, trio.current_time()):
            case Act.PING:
                self._conn.ping()
            case Act.END:
                await self._end()

    async def _meet(self) -> None:
        """Remembers the process of a new connection, while it is sure which one that is."""
        self._forget()
        self._silence = Silence(self._limit_s, trio.current_time())
        self._epoch, pid = self._conn.epoch, self._conn.server_pid
        self._server = await trio.to_thread.run_sync(
            hanging.find_server, self._socket_path(), pid, abandon_on_cancel=True
        )

    async def _end(self) -> None:
        if not self._conn.is_connected or self._conn.epoch != self._epoch:
            return  # it is being looked for
        if self._server is None:
            return log.warning("the server has not answered for %g s", self._limit_s)
        log.warning(
            "the server (pid %d) has not answered for %g s: killing it",
            self._server.pid, self._limit_s,
        )  # fmt: skip
        await trio.to_thread.run_sync(hanging.end, self._server, abandon_on_cancel=True)

    def _forget(self) -> None:
        if self._server is not None:
            self._server.__exit__()
            self._server = None
