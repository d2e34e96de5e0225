"""Mounts in the node's holder: what is deposited of a mount, and the calls to the holder.

The driver mounts and deposits; a supervisor claims what it serves. A key names one generation of a
mount, so a mount that was made again at the same place has another key.
"""

from __future__ import annotations

import collections
import os
import secrets
from typing import Final

import msgspec

from cachefs.client.sockets import connect_socket
from cachefs.core.errors import CacheFSError, ProtocolError, Unreachable
from cachefs.core.specs import ClientSpec
from cachefs.holder.protocol import MAX_NAME_BYTES, Datagram, receive, send
from cachefs.launcher.state import mount_id
from cachefs.network.unix_sockets import close_all

CALL_S: Final = 2.0  # a holder that does not answer for this time counts as away
_EVENTS: Final = ("PUT", "DROP", "CLAIM", "FREE", "HANDOVER")
_KEY_BYTES: Final = 4


class Deposit(msgspec.Struct, frozen=True):
    """A mount without the process that serves it."""

    client: ClientSpec
    negotiated: bytes  # as `cachefs.fuse.supervisor.wire` encodes it
    device: str  # major:minor


class Event(msgspec.Struct, frozen=True):
    """An event of the holder, see `cachefs.holder.protocol`. `name`: of the claimant, "" for one
    whose clients fail."""

    verb: str
    key: str
    name: str = ""


def new_key(mountpoint: str) -> str:
    """Returns a key for a new mount at this place."""
    return f"{mount_id(mountpoint)}.{secrets.token_hex(_KEY_BYTES)}"


def kept_name(name: str) -> str:
    """Returns what the holder keeps of a claimant's name: its end, where names of pods differ."""
    return name.encode()[-MAX_NAME_BYTES:].decode(errors="replace")


class HolderClient:
    """A blocking connection to the holder. `name` is this claimant's name for other processes.

    Every method raises Unreachable if the holder does not answer within `CALL_S`, and CacheFSError
    if it refuses the request. A claim lasts as long as the connection."""

    def __init__(self, path: str, name: str = "") -> None:
        """Connects. Raises Unreachable."""
        self._path = path
        self._name = name.encode()[-MAX_NAME_BYTES:]
        self._events: collections.deque[Event] = collections.deque()
        try:
            self._sock = connect_socket(path)
        except OSError as err:  # no descriptor is left
            raise self._away(os.strerror(err.errno or 0)) from err
        self._sock.settimeout(CALL_S)

    def __enter__(self) -> HolderClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Closes the connection, and with it gives up its claims. Idempotent."""
        self._sock.close()

    def put(self, key: str, deposit: Deposit, fuse_fd: int, table_fd: int) -> None:
        """Deposits a mount. The caller keeps its descriptors. Does nothing for a known key."""
        body = msgspec.msgpack.encode(deposit)
        self._call(Datagram("PUT", key, body, (fuse_fd, table_fd)))

    def get(self, key: str) -> tuple[Deposit, int, int] | None:
        """Returns a deposit and the descriptors of /dev/fuse and of the table, which the caller
        owns; None for an unknown key. Raises ProtocolError for a deposit of another version."""
        reply = self._call(Datagram("GET", key))
        if reply.verb != "ENTRY":
            return None
        try:
            fuse_fd, table_fd = reply.fds
            return msgspec.msgpack.decode(reply.data, type=Deposit), fuse_fd, table_fd
        except (ValueError, msgspec.DecodeError) as err:
            close_all(reply.fds)
            raise ProtocolError(f"the deposit {key} is of another version: {err}") from err

    def claimants(self, *, watch: bool = False) -> dict[str, str]:
        """Returns the claimant's name ("" for none) of every key. With `watch` the holder reports
        changes from now on, see `events`."""
        data = self._call(Datagram("WATCH" if watch else "LIST")).data
        lines = data.decode(errors="replace").split("\n") if data else []
        return {key: name for key, _, name in (line.partition(" ") for line in lines)}

    def claim(self, key: str, *, is_failing: bool = False) -> bool:
        """Claims a key; its former claimant hands over. A claimant whose clients fail has no name.
        Returns False for an unknown key."""
        name = b"" if is_failing else self._name
        return self._call(Datagram("CLAIM", key, name)).verb == "OK"

    def drop(self, key: str) -> bool:
        """Drops a deposit. Returns False for an unknown key."""
        return self._call(Datagram("DROP", key)).verb == "OK"

    def events(self) -> list[Event]:
        """Returns the events that have arrived, without waiting. Raises Unreachable at the end of
        the holder."""
        self._sock.setblocking(False)
        try:
            while True:
                self._keep(self._receive())
        except BlockingIOError:
            found = list(self._events)
            self._events.clear()
            return found
        finally:
            self._sock.settimeout(CALL_S)

    def _call(self, request: Datagram) -> Datagram:
        try:
            send(self._sock, request)
        except OSError as err:
            raise self._away(os.strerror(err.errno or 0)) from err
        while (reply := self._receive()).verb in _EVENTS:
            self._keep(reply)
        if reply.verb == "ERROR":
            raise CacheFSError(f"the holder refuses {request.verb}: {reply.data.decode()}")
        return reply

    def _receive(self) -> Datagram:
        try:
            return receive(self._sock)
        except BlockingIOError:
            raise
        except (OSError, ValueError) as err:
            raise self._away(str(err)) from err

    def _keep(self, event: Datagram) -> None:
        close_all(event.fds)
        self._events.append(Event(event.verb, event.key, event.data.decode(errors="replace")))

    def _away(self, cause: str) -> Unreachable:
        return Unreachable(
            f"the holder does not answer: {cause}",
            remedy="is the pod cachefs-holder running on this node?",
            path=self._path,
        )
