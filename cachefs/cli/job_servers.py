"""The servers of load jobs and syncs: resolves arguments to them, and reconnects to them."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from cachefs.cli import clusters, output, settings
from cachefs.cli.mounts import locate
from cachefs.cli.owners import all_records
from cachefs.cli.paths import InCluster, find
from cachefs.cli.session import Target, attached, base_of, path_in_mount
from cachefs.client.admin import AdminClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.addresses import SCHEME, address_of, is_cluster
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError, DeadlineExceeded, Unreachable
from cachefs.core.model import NamespaceId
from cachefs.core.mountinfo import read_mounts
from cachefs.launcher.state import MountRecord, StateHome

PATIENCE_S: Final = 60.0  # for a server that does not answer: it may be restarting
START_S: Final = 2.0  # the same, before anything was started there
PAUSE_S: Final = 0.5

_T = TypeVar("_T", bound=m.Message)
_R = TypeVar("_R")


class Link(Protocol):
    """A session of a mount's server, or a client of a master's admin API."""

    def call(self, body: m.Message, answer: type[_T]) -> _T: ...


class Place:
    """One namespace and its server. `where` names it. Close it (a context manager)."""

    where: str

    def __init__(self) -> None:
        self.flags: list[str] = []  # of the connection, as given
        self._stack = contextlib.ExitStack()
        self._link: Link | None = None
        self._namespace = NamespaceId(b"")

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; the next call opens another one."""
        self._link = None
        self._stack.close()

    @property
    def named(self) -> str:
        """The argument and flags by which a suggested command reaches this place."""
        return " ".join([shlex.quote(self.where), *self.flags])

    @property
    def namespace(self) -> NamespaceId:
        """The id of the namespace. Connects if necessary."""
        self._connected()
        return self._namespace

    def call(self, body: m.Message, answer: type[_T]) -> _T:
        """Sends a request and returns its reply. Raises the typed errors."""
        try:
            return self._connected().call(body, answer)
        except (Unreachable, DeadlineExceeded):
            self.close()
            raise

    def shown(self, path: bytes) -> str:
        """Returns a path of the namespace as a user of this place writes it."""
        raise NotImplementedError

    def _connected(self) -> Link:
        if self._link is None:
            self._link, self._namespace = self._connect(self._stack)
        return self._link

    def _connect(self, stack: contextlib.ExitStack) -> tuple[Link, NamespaceId]:
        raise NotImplementedError


class MountPlace(Place):
    """The server of a mount."""

    def __init__(self, record: MountRecord) -> None:
        super().__init__()
        self.record = record
        self.where = record.mountpoint

    def shown(self, path: bytes) -> str:
        return path_in_mount(self.record, path)

    def _connect(self, stack: contextlib.ExitStack) -> tuple[Link, NamespaceId]:
        session = stack.enter_context(attached(self.record))
        return session, session.namespace


class MasterPlace(Place):
    """The master of a cluster."""

    def __init__(self, url: str, chosen: Config) -> None:
        super().__init__()
        self.where = f"{SCHEME}{address_of(url)}"
        self._url = url
        self._chosen = chosen

    def shown(self, path: bytes) -> str:
        return "/" + output.text_of(path.strip(b"/"))

    def _connect(self, stack: contextlib.ExitStack) -> tuple[Link, NamespaceId]:
        security = clusters.security(self._chosen, self._url)
        master = stack.enter_context(AdminClient(self._url, security))
        return master, master.call(c.Greeting(), c.Greeted).namespace


class Finder:
    """Resolves arguments to places, each of which is opened once. Close it (a context manager)."""

    def __init__(self, chosen: Config) -> None:
        self._chosen = chosen
        self._home: StateHome = settings.state_home(self._chosen)
        self._mounts = read_mounts()
        self._places: dict[object, Place] = {}
        self._last: MountPlace | None = None
        self.silent: list[str] = []  # places that `everywhere` left out

    def __enter__(self) -> Finder:
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._places.values():
            place.close()

    def find(self, path: str) -> tuple[Place, bytes]:
        """Returns the place of a path, and the path in the namespace. A path is below a mount
        point, the URL of a mounted source, `cachefs://…`, or a path of the configured cluster.
        Raises NotFound, BadConfig."""
        if self._last is not None and (inside := _inside(path, self._last.record)) is not None:
            return self._last, inside
        place = find(path, self._chosen, self._mounts)
        if isinstance(place, InCluster):
            return self._master(place.url), place.path
        return self._mount(place), place.in_namespace

    def is_local(self, path: str) -> bool:
        """Returns whether the path leads through the file system."""
        return "://" not in path and not self._is_outside(path)

    def everywhere(self) -> list[Place]:
        """Returns every namespace that is mounted here and that of the configured cluster, each
        once; with --master only that of this master. Prints a warning for a server that does not
        answer, and leaves it out."""
        found: dict[NamespaceId, Place] = {}
        for place in self._candidates():
            try:
                found.setdefault(place.namespace, place)
            except CacheFSError as err:
                output.warn(f"{place.where}: {err.cause}")
                self.silent.append(place.where)
        return [*found.values()]

    def _candidates(self) -> list[Place]:
        named = self._chosen.is_flag("master")
        records = [] if named else all_records(self._mounts.ours(), self._home)
        places: list[Place] = [MountPlace(record) for record in records]
        if clusters.is_cluster_configured(self._chosen):
            places.append(self._master(clusters.master_of(self._chosen)))
        return [self._kept(id(place), place) for place in places]

    def _mount(self, target: Target) -> Place:
        record = target.record
        source = record.source
        key = (record.socket, "" if is_cluster(source.url) else source.key)
        place = self._kept(key, MountPlace(record))
        self._last = place if isinstance(place, MountPlace) else None
        return place

    def _master(self, url: str) -> Place:
        return self._kept(url, MasterPlace(url, self._chosen))

    def _kept(self, key: object, place: Place) -> Place:
        place.flags = settings.connection_flags(self._chosen)
        return self._places.setdefault(key, place)

    def _is_outside(self, path: str) -> bool:
        return "://" not in path and locate(path, self._mounts).mount is None


def _inside(path: str, record: MountRecord) -> bytes | None:
    """Returns the path of the namespace; None if `path` must be resolved through links and `..`."""
    below = record.mountpoint.rstrip("/") + "/"
    if not path.startswith(below) or "/../" in path or path.endswith("/.."):
        return None
    parts = [
        part for part in os.fsencode(path[len(below) :]).split(b"/") if part not in (b"", b".")
    ]
    base = base_of(record)
    return b"/".join([base, *parts] if base else parts)


def insist(
    ask: Callable[[], _R],
    on_silence: Callable[[CacheFSError], None],
    within_s: float = PATIENCE_S,
) -> _R:
    """Calls `ask`, which must be idempotent. Retries for a time on Unreachable and
    DeadlineExceeded: its server may be restarting. Calls `on_silence` when the cause changes.
    Raises what `ask` raises."""
    until, reported = time.monotonic() + within_s, ""
    while True:
        try:
            return ask()
        except (Unreachable, DeadlineExceeded) as err:
            if time.monotonic() >= until:
                raise
            if err.cause != reported:
                on_silence(err)
            reported = err.cause
        time.sleep(PAUSE_S)
