"""A session with the server of a mount, from any path below the mount.

A process without the record of the mount (another user, another mount namespace) has none: it then
lists through the mount, and announces by ioctl.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, TypeVar

from cachefs.client.blocking import BlockingClient
from cachefs.core import config
from cachefs.core import messages as m
from cachefs.core.addresses import is_cluster, parse_cluster
from cachefs.core.errors import (
    CacheFSError,
    NotADirectory,
    NotFound,
    ProtocolError,
    Unreachable,
)
from cachefs.core.model import Inode, Kind, NamespaceId
from cachefs.core.mountinfo import Mount, Mounts, read_mounts
from cachefs.launcher.state import MountRecord, StateHome

CALL_TIMEOUT_S: Final = 120.0  # a cold listing of a big directory is one call
RESTART_S: Final = 5.0  # a server that died is restarted within a second
_PAUSE_S: Final = 0.05

_T = TypeVar("_T", bound=m.Message)


class MountPlace:
    """A path below a mount: the mount's record, and the path in the namespace."""

    def __init__(self, record: MountRecord, inside: bytes) -> None:
        url = record.source.url
        base = os.fsencode(parse_cluster(url).path) if is_cluster(url) else b""
        self.record = record
        self.shown = os.path.join(record.mountpoint, os.fsdecode(inside)).rstrip("/")
        self.path = b"/".join(part for part in (base, inside) if part)


class MountSession:
    """A connection of the role "cli", attached to the mount's source. Belongs to one thread."""

    def __init__(self, client: BlockingClient, place: MountPlace) -> None:
        self.place = place
        self._client = client
        record = place.record
        attach = m.Attach(record.source, record.sync_interval_s, record.read_only)
        self.namespace: NamespaceId = self.call(attach, m.Attached).namespace

    @classmethod
    def connect(cls, place: MountPlace) -> MountSession:
        """Connects to the server of a mount. Raises Unreachable, DeadlineExceeded, AccessDenied."""
        client = BlockingClient.connect(place.record.socket, owner=place.record.owner)
        try:
            return cls(client, place)
        except BaseException:
            client.close()
            raise

    def call(
        self,
        body: m.Message,
        answer: type[_T],
        fd: int | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> _T:
        """Returns the reply, whose type is checked; `fd` is sent with the request. Raises the typed
        errors."""
        return _checked(self._client.call(body, timeout_s, fd), answer)

    def send(self, body: m.Message) -> int:
        """Sends a request and returns its id, for `reply_to`. Raises as `call`."""
        return self._client.send(body, CALL_TIMEOUT_S)

    def reply_to(self, id: int, answer: type[_T]) -> _T:
        """Waits for the reply to a request that was sent. Raises as `call`."""
        return _checked(self._client.reply_to(id, CALL_TIMEOUT_S), answer)

    def resolve(self) -> Inode:
        """Returns the inode of the directory. Raises NotFound, NotADirectory."""
        found = self.call(m.Resolve(self.namespace, self.place.path), m.Found)
        if found.inode is None:
            raise NotFound(f"no such directory: {self.place.shown}")
        if found.inode.kind is not Kind.DIRECTORY:
            raise NotADirectory(f"not a directory: {self.place.shown}")
        return found.inode

    @property
    def is_over(self) -> bool:
        """Whether the server ended the session."""
        return self._client.is_over

    def close(self) -> None:
        """Ends the session; idempotent."""
        self._client.close()


def _checked(reply: m.Message, answer: type[_T]) -> _T:
    if not isinstance(reply, answer):
        raise ProtocolError(f"unexpected reply {type(reply).__name__}")
    return reply


def state_home() -> StateHome:
    """Returns the state home of this process's user, as the commands find it, without the packages
    of the commands."""
    user_home = os.path.expanduser("~")
    files = [
        config.TomlFile(path, Path(path).read_text(encoding="utf-8"))
        for path in config.config_paths(None, os.environ, user_home)
        if os.path.exists(path)
    ]
    chosen = config.load(flags={}, environ=os.environ, files=files)
    return StateHome(config.state_home(chosen, os.environ, user_home))


def find_place(path: str, home: StateHome) -> MountPlace | None:
    """Returns the place of a path below a mount of this user; None for any other path."""
    mounts = read_mounts()
    found = _mount_of(path, mounts)
    if found is None:
        return None
    mount, inside = found
    record = home.find_mount(mounts.original(mount).mountpoint)
    return None if record is None else MountPlace(record, inside)


def is_mounted(path: str) -> bool:
    """Returns whether a path is below a mount of CacheFS, of any user."""
    return _mount_of(path, read_mounts()) is not None


def open_session(path: str, home: StateHome) -> MountSession | None:
    """Returns a session with the server of a path's mount; None if this process cannot have one.
    Waits up to `RESTART_S` for a server that is being restarted."""
    try:
        return connect_session(path, home, RESTART_S)
    except CacheFSError:
        return None


def connect_session(path: str, home: StateHome, wait_s: float) -> MountSession | None:
    """Returns a session with the server of a path's mount; None if this process has no record of
    the mount. Waits up to `wait_s` for a server that is being restarted. Raises Unreachable,
    AccessDenied, DeadlineExceeded."""
    place = find_place(path, home)
    deadline = time.monotonic() + wait_s
    while place is not None:
        try:
            return MountSession.connect(place)
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
    return None


def _mount_of(path: str, mounts: Mounts) -> tuple[Mount, bytes] | None:
    """Returns the mount with a path, and the path in it; None for any other path."""
    real = os.path.realpath(path)
    here = real
    while (mount := mounts.at(here)) is None and here != "/":
        here = os.path.dirname(here)
    return (mount, _inside(mount, here, real)) if mount is not None and mount.is_cachefs else None


def _inside(mount: Mount, here: str, real: str) -> bytes:
    below = os.path.relpath(real, here)
    parts = [mount.root.strip("/"), "" if below == "." else below]
    return os.fsencode("/".join(part for part in parts if part))
