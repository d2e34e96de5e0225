"""Finds the server of a source and connects to it: of a mount, of a source, of a cluster.

A mount's server is restarted by the mount. A server of the library's own is found or started as
`cachefs mount` does it, under the same locks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from cachefs.client.sockets import connect_socket, listener_uid
from cachefs.core import messages as m
from cachefs.core.errors import AccessDenied, Unreachable
from cachefs.launcher.processes import Server
from cachefs.launcher.state import MountRecord, StateHome

HANG_LIMIT_S: Final = 30.0  # a server of no mount that does not answer for this time is replaced


class MountDialer:
    """Connects to the server of a mount. `record`: as it was when the mount was found, or when it
    was last dialled: a source may be mounted again with other options."""

    def __init__(self, home: StateHome, record: MountRecord) -> None:
        self._home = home
        self._record = record

    @property
    def key(self) -> str:
        """The identity of the mount and its source in this process."""
        return f"mount {self._record.mountpoint} {self._record.source.key}"

    @property
    def attach(self) -> m.Attach:
        record = self._record
        return m.Attach(record.source, record.sync_interval_s, record.read_only)

    def check(self) -> None:
        """Does nothing: the mount restarts its server."""

    def dial(self) -> socket.socket:
        """Connects to the server that the mount uses now."""
        record = self._home.find_mount(self._record.mountpoint)
        if record is None or record.source.key != self._record.source.key:
            raise Unreachable("it is not mounted any more", path=self._record.mountpoint)
        self._record = record
        sock = connect_socket(record.socket)
        try:
            self._check_owner(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def _check_owner(self, sock: socket.socket) -> None:
        """Raises AccessDenied for a process of another user than the one whose record root read:
        that user could point root anywhere."""
        owner, uid = self._record.owner, listener_uid(sock)
        if owner not in (-1, uid):
            cause = f"a process of user {uid} listens on the socket of a mount of user {owner}"
            raise AccessDenied(cause, remedy="check which process that is")


def nothing() -> None:
    """Checks nothing."""


class ServerDialer:
    """Connects to a server that `find` returns, which starts it if none runs. `check` is called
    before the first connection; it raises the typed error of what must not be waited for."""

    def __init__(
        self,
        key: str,
        attach: m.Attach,
        find: Callable[[], Server],
        check: Callable[[], None] = nothing,
    ) -> None:
        self.key = key
        self.attach = attach
        self.check = check
        self._find = find

    def dial(self) -> socket.socket:
        return connect_socket(self._find().socket)
