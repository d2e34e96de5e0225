"""Where the bytes of files are: their sources, paths and versions, from the store alone."""

from __future__ import annotations

from collections.abc import Sequence

from cachefs.core.cluster import Place as Placed
from cachefs.core.errors import CacheFSError, IsADirectory, Stale, Unsupported
from cachefs.core.messages import failure_of
from cachefs.core.model import ContentId, Kind, NamespaceId, Origin
from master.policies import Policies
from master.state.records import name_of
from master.store.base import Store
from master.store.snapshot import Names
from master.tree import Tree, join


class Locations:
    """The locations of one namespace's files."""

    def __init__(
        self, store: Store, tree: Tree, namespace: NamespaceId, policies: Policies
    ) -> None:
        self._store = store
        self._tree = tree
        self._namespace = namespace
        self._policies = policies

    def of(self, ino: int) -> Origin:
        """Returns the origin of a file. Raises Stale, IsADirectory, Unsupported (a symlink)."""
        with self._store.snapshot() as reader:
            return self._locate(Names(reader), ino)

    def of_many(self, inos: Sequence[int]) -> list[Placed]:
        """Returns each file's origin or failure, in order."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            return [self._located(names, ino) for ino in inos]

    def _located(self, names: Names, ino: int) -> Placed:
        try:
            return Placed(origin=self._locate(names, ino))
        except CacheFSError as err:
            return Placed(failure=failure_of(err))

    def _locate(self, names: Names, ino: int) -> Origin:
        at = names.place(ino)
        stored = None if at is None else names.dentry(*at)
        if at is None or stored is None or stored.inode.ino != ino:
            raise Stale(f"inode {ino} is gone")
        inode = stored.inode
        if inode.kind is Kind.DIRECTORY:
            raise IsADirectory(f"inode {ino} is a directory")
        place = self._tree.directory(names, at[0])
        if inode.kind is Kind.SYMLINK:
            raise Unsupported("a symbolic link has no bytes")
        directory, name = place.mount.in_namespace(place.path), name_of(at[1])
        table = self._policies.table
        return Origin(
            ContentId.of(self._namespace, inode),
            place.mount.key,
            place.of(name),
            inode.etag,
            inode.size,
            inode.mtime_ns,
            table.rule(join(directory, name)),
            table.differs_in(directory),
        )
