"""Watches a mount's server from its client: pings a silent server and kills one that does not
answer, so that the connection finds or starts the next one.

Each client watches its server independently and kills only the process that it is connected to, so
their order does not matter. A worker under a service manager is not killed, only logged as hung.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Final

import trio

from cachefs.client.connection import Connection
from cachefs.launcher import hung_server
from cachefs.launcher.process_watch import Watch

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
PING_S: Final = 2.0  # of silence


class Act(enum.Enum):
    NONE = enum.auto()
    PING = enum.auto()
    END = enum.auto()


class HangDetector:
    """Decides when to ping a server and when it counts as hung. Pure.

    Counts only time in which this process ran: a late look counts as at most two intervals, so a
    suspended machine or a stopped client does not make the server look hung."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._looked_at = now
        self._heard = -1
        self._silent_s = 0.0
        self._has_pinged = False

    def look(self, heard: int, now: float) -> Act:
        """Returns what to do. `heard`: a number that grows with each message of the server."""
        passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_S), now
        if heard != self._heard:
            self._heard, self._silent_s, self._has_pinged = heard, 0.0, False
            return Act.NONE
        self._silent_s += passed_s
        if not self._has_pinged and self._silent_s >= PING_S:
            self._silent_s, self._has_pinged = 0.0, True
            return Act.PING
        if self._has_pinged and self._silent_s >= self._limit_s:
            self._silent_s, self._has_pinged = 0.0, False  # repeats if the server does not end
            return Act.END
        return Act.NONE


class ServerWatch:
    """The watch of one connection. `run` is its only task. `socket_path` returns the path of the
    current server's socket; a server that does not answer for `limit_s` counts as hung."""

    def __init__(self, conn: Connection, socket_path: Callable[[], str], limit_s: float) -> None:
        self._conn = conn
        self._socket_path = socket_path
        self._limit_s = limit_s
        self._epoch = 0  # of the connection that is watched
        self._server: Watch | None = None  # None if this client must not end it
        self._silence: HangDetector  # of the connection that is watched

    async def run(self) -> None:
        """Watches until cancelled."""
        try:
            while True:
                await trio.sleep(LOOK_S)
                await self._look()
        finally:
            self._forget()

    async def _look(self) -> None:
        """Acts on the silence of the current connection. Each connection has a separate silence: a
        ping on one does not count for the next."""
        if not self._conn.is_connected:
            return
        if self._conn.epoch != self._epoch:
            await self._watch_new()
        match self._silence.look(self._conn.heard, trio.current_time()):
            case Act.PING:
                self._conn.ping()
            case Act.END:
                await self._end()

    async def _watch_new(self) -> None:
        """Finds the server process of a new connection, while its pid is certain."""
        self._forget()
        self._silence = HangDetector(self._limit_s, trio.current_time())
        self._epoch, pid = self._conn.epoch, self._conn.server_pid
        try:
            self._server = await trio.to_thread.run_sync(
                hung_server.find_server, self._socket_path(), pid, abandon_on_cancel=True
            )
        except OSError as err:  # this process may open no more files
            log.warning("the server (pid %d) is not killed if it hangs: %s", pid, err)

    async def _end(self) -> None:
        if not self._conn.is_connected or self._conn.epoch != self._epoch:
            return  # a reconnect is in progress
        if self._server is None:
            return log.warning("the server has not answered for %g s", self._limit_s)
        log.warning(
            "the server (pid %d) has not answered for %g s: killing it",
            self._server.pid, self._limit_s,
        )  # fmt: skip
        await trio.to_thread.run_sync(hung_server.end, self._server, abandon_on_cancel=True)

    def _forget(self) -> None:
        if self._server is not None:
            self._server.__exit__()
            self._server = None
