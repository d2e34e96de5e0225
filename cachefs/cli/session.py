"""Connects from a path to the server of its mount: mount, record, socket, namespace."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cachefs.cli import output
from cachefs.cli.mounts import locate
from cachefs.cli.owners import find_record, shown_user
from cachefs.client.blocking import BlockingClient
from cachefs.core import messages as m
from cachefs.core.addresses import namespace_base
from cachefs.core.errors import CacheFSError, DeadlineExceeded, NotFound, ProtocolError, Unreachable
from cachefs.core.model import Inode, NamespaceId
from cachefs.core.mountinfo import Mount, Mounts, read_mounts
from cachefs.launcher.hung_server import unanswered
from cachefs.launcher.process_watch import is_of_user
from cachefs.launcher.state import MountRecord, Pointer, StateHome, read_pointer

CALL_TIMEOUT_S: Final = 120.0  # a cold listing of a big directory is one call
RESTART_S: Final = 3.0  # a server that died is restarted within half a second
_PAUSE_S: Final = 0.05

_T = TypeVar("_T", bound=m.Message)


class Target(msgspec.Struct, frozen=True):
    """A path under a CacheFS mount: the mount's record, and the path below the mount."""

    record: MountRecord
    path: bytes

    @property
    def in_namespace(self) -> bytes:
        """The path below the namespace root: a mount of a cluster may show a subdirectory."""
        return b"/".join(part for part in (base_of(self.record), self.path) if part)

    def shown(self) -> str:
        """Returns the path as it is seen through the mount, for display."""
        path = os.path.join(os.fsencode(self.record.mountpoint), self.path)
        return output.text_of(path.rstrip(b"/"))


def base_of(record: MountRecord) -> bytes:
    """Returns the path of the namespace that a mount shows at its mount point."""
    return namespace_base(record.source.url)


def path_in_mount(record: MountRecord, path: bytes) -> str:
    """Returns a path of the namespace as a mount shows it, for display. A path that the mount does
    not show is returned as it is in the namespace."""
    base, path = base_of(record), path.strip(b"/")
    if base and path != base and not path.startswith(base + b"/"):
        return "/" + output.text_of(path)
    inside = output.text_of(path[len(base) :].strip(b"/"))
    return os.path.join(record.mountpoint, inside).rstrip("/") or "/"


def find_target(path: str, home: StateHome, mounts: Mounts | None = None) -> Target:
    """Returns the mount of a local path or of the URL of a mounted source. Raises NotFound."""
    if "://" in path:
        return _target_of_url(path, home)
    mounts = read_mounts() if mounts is None else mounts
    place = locate(path, mounts)
    if place.mount is None:
        raise NotFound(
            "not under a CacheFS mount", path=path, remedy="`cachefs status` lists the mounts"
        )
    mount = mounts.original(place.mount)
    record = find_record(mount, home)
    if record is None:
        raise NotFound(
            f"no record of {_whose(mount)} under {home.path}",
            path=path,
            remedy="run this as the user who mounted it, or give the --home of the mount",
        )
    return Target(record, os.fsencode(place.inside))


def _whose(mount: Mount) -> str:
    if mount.owner_uid in (-1, os.geteuid()):
        return f"the mount {mount.mountpoint}"
    return f"the mount {mount.mountpoint} of user {shown_user(mount.owner_uid)}"


def _target_of_url(url: str, home: StateHome) -> Target:
    for record in home.mount_records():
        base = record.source.url.rstrip("/")
        if url.rstrip("/") == base or url.startswith(f"{base}/"):
            return Target(record, os.fsencode(url[len(base) :].strip("/")))
    raise NotFound("no mount of this source", path=url, remedy="mount it first")


class Session:
    """A connection to a mount's server, attached to the mount's source."""

    def __init__(self, client: BlockingClient, record: MountRecord, attached: m.Attached) -> None:
        self.record = record
        self.namespace: NamespaceId = attached.namespace
        self.root: Inode = attached.root
        self.warning = attached.warning
        self.knows_views = client.welcome.covers
        self._client = client

    def call(self, body: m.Message, answer: type[_T]) -> _T:
        """Sends a request and returns its reply, whose type is checked. Raises the typed errors,
        with the requested path as the mount shows it."""
        try:
            return checked(self._client.call(body, CALL_TIMEOUT_S), answer)
        except CacheFSError as err:
            path = getattr(body, "path", None)
            if path is not None and err.path and _is_at(err.path, path):
                err.path = path_in_mount(self.record, path)
            raise

    def resolve(self, target: Target) -> Inode:
        """Returns the inode at the target's path. Raises NotFound."""
        found = self.call(m.Resolve(self.namespace, target.in_namespace), m.Found)
        if found.inode is None:
            raise NotFound("no such file or directory", path=target.shown())
        return found.inode

    def cached_bytes(self, files: Sequence[Inode]) -> list[int]:
        """Returns the bytes of each file that this node has cached."""
        found: list[int] = []
        for first in range(0, len(files), m.LIST_LIMIT):
            inos = [inode.ino for inode in files[first : first + m.LIST_LIMIT]]
            reply = self.call(m.CacheState(self.namespace, inos), m.CacheStateReply)
            found += reply.cached_bytes
        return found

    def warn_of_silent(self) -> int:
        """Returns 0: no other server is involved."""
        return 0


def _is_at(shown: str, path: bytes) -> bool:
    """Returns whether a server's text names this path of the namespace."""
    return shown.strip("/") == output.text_of(path.strip(b"/"))


def checked(reply: m.Message, answer: type[_T]) -> _T:
    """Returns the reply as `answer`. Raises ProtocolError for any other type."""
    if not isinstance(reply, answer):
        raise ProtocolError(f"the server sent an unexpected reply: {type(reply).__name__}")
    return reply


def _connect(record: MountRecord) -> BlockingClient:
    """Connects; waits up to `RESTART_S` for a server that the mount's client restarts."""
    deadline = time.monotonic() + RESTART_S
    while True:
        try:
            return BlockingClient.connect(record.socket, owner=record.owner)
        except (Unreachable, OSError):
            if time.monotonic() > deadline or not record.client_process.lives():
                raise
            time.sleep(_PAUSE_S)


@contextlib.contextmanager
def connected(record: MountRecord) -> Iterator[BlockingClient]:
    """Opens a connection to a mount's server. Raises Unreachable with the remedy."""
    try:
        client = _connect(record)
    except (Unreachable, DeadlineExceeded, OSError) as err:
        raise _unanswered(record, err) from err
    with client:
        yield client


def _unanswered(record: MountRecord, err: CacheFSError | OSError) -> Unreachable:
    """Returns the error of a mount whose server does not answer. The remedy depends on whether the
    server lives."""
    pointer = read_pointer(Path(record.socket).parent)
    if pointer is not None and _is_server(pointer, record):
        return unanswered(pointer.pid, record.mountpoint)
    cause = err.cause if isinstance(err, CacheFSError) else err.strerror
    return Unreachable(
        f"its server does not answer ({cause})",
        path=record.mountpoint,
        remedy=f"unmount and mount again: cachefs umount {shlex.quote(record.mountpoint)}",
    )


def _is_server(pointer: Pointer, record: MountRecord) -> bool:
    """Returns False for a pid in another user's pointer that is not that user's process."""
    is_its = record.owner < 0 or is_of_user(pointer.pid, record.owner)
    return is_its and pointer.process.lives()


@contextlib.contextmanager
def attached(record: MountRecord) -> Iterator[Session]:
    """Opens a session on a mount's source."""
    with connected(record) as client:
        body = m.Attach(record.source, record.sync_interval_s, record.read_only)
        yield Session(client, record, checked(client.call(body, CALL_TIMEOUT_S), m.Attached))
