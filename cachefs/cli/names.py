"""The names of `cachefs ls` and `stat`: from a mount's server, or from the master of a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

from cachefs.cli import clusters, output
from cachefs.cli.cluster_files import Cluster, File
from cachefs.cli.paths import InCluster, find
from cachefs.cli.session import Target, attached
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.addresses import SCHEME, address_of
from cachefs.core.config import Config
from cachefs.core.errors import AccessDenied, NotFound
from cachefs.core.model import ContentId, Inode, NamespaceId, UfsSpec
from cachefs.core.pages import cached_bytes
from cachefs.launcher.state import MountRecord

CALL_TIMEOUT_S: Final = 120.0  # a cold listing of a big directory is one call
UNKNOWN: Final = -1
_T = TypeVar("_T", bound=m.Message)


class Names(Protocol):
    """A session of a mount's server, or the master of a cluster."""

    @property
    def namespace(self) -> NamespaceId: ...

    def call(self, body: m.Message, answer: type[_T]) -> _T: ...

    def resolve(self, target: Target) -> Inode:
        """Returns the inode at the target's path. Raises NotFound."""
        ...

    def cached_bytes(self, files: Sequence[Inode]) -> list[int]:
        """Returns the cached bytes of each file; UNKNOWN if the caller may not see them."""
        ...

    def warn_of_silent(self) -> int:
        """Prints which workers did not answer; returns the command's exit code."""
        ...


class ClusterNames:
    """The names of a cluster. A page counts as cached if any worker has it. Close it; the caller
    closes the master's client."""

    def __init__(self, master: HttpClient, chosen: Config) -> None:
        self._master = master
        self._chosen = chosen
        self._workers: Cluster | None = None
        self._may_not_know: AccessDenied | None = None
        self.namespace: NamespaceId = master.call(c.Greeting(), c.Greeted).namespace

    def call(self, body: m.Message, answer: type[_T]) -> _T:
        return self._master.call(body, answer, CALL_TIMEOUT_S)

    def resolve(self, target: Target) -> Inode:
        found = self.call(m.Resolve(self.namespace, target.in_namespace), m.Found)
        if found.inode is None:
            raise NotFound("no such file or directory", path=target.shown() or "/")
        return found.inode

    def cached_bytes(self, files: Sequence[Inode]) -> list[int]:
        if not files:
            return []
        try:
            self._workers = self._workers or Cluster(self._master, self._chosen)
        except AccessDenied as err:
            self._may_not_know = err
            return [UNKNOWN] * len(files)
        found = [File(b"", one, ContentId.of(self.namespace, one)) for one in files]
        had = zip(files, self._workers.have(found), strict=True)
        return [cached_bytes(inode.size, bitmaps.values()) for inode, bitmaps in had]

    def close(self) -> None:
        """Closes the connections to workers."""
        if self._workers is not None:
            self._workers.close()

    def warn_of_silent(self) -> int:
        if self._may_not_know is not None:
            why = self._may_not_know.one_line()
            output.warn(f"how much of each file is cached is not known: {why}")
        return self._workers.warn_of_silent() if self._workers is not None else 0


@contextlib.contextmanager
def opened(path: str, chosen: Config) -> Iterator[tuple[Names, Target]]:
    """Opens the server of the names of a path. Raises as `paths.find` and connecting."""
    place = find(path, chosen)
    if isinstance(place, InCluster):
        with HttpClient(place.url, clusters.security(chosen, place.url)) as master:
            names = ClusterNames(master, chosen)
            try:
                yield names, _target(place)
            finally:
                names.close()
    else:
        with attached(place.record) as session:
            yield session, place


def _target(place: InCluster) -> Target:
    """Returns a path of a cluster as the caller's mount of its root would show it."""
    source = UfsSpec(f"{SCHEME}{address_of(place.url)}")
    record = MountRecord("/", source, 0, "", uid=os.geteuid(), gid=os.getegid())
    return Target(record, place.path.strip(b"/"))
