"""The parts of a namespace that its load jobs use, and the conversion of files to origins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.messages import Found, Listing
from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, NamespaceId, Origin
from cachefs.core.policies import Rule
from master.jobs.walk import Entries
from master.state.policies import PolicyTable
from master.store.base import Store
from master.store.snapshot import Names
from master.tree import Tree, join


class JobContext(NamedTuple):
    """The parts of one namespace, passed by its master."""

    store: Store
    tree: Tree
    namespace: NamespaceId
    policies: PolicyTable
    resolve: Callable[[bytes], Awaitable[Found]]
    list_dir: Callable[[int, bytes, int], Awaitable[Listing]]
    list_ahead: Callable[[int], None]
    report_changed: Callable[[int], Awaitable[None]]
    locate: Callable[[int], Origin]

    def known(self, path: bytes) -> tuple[int, Inode] | None:
        """Returns the stored (ino of its directory, inode) of a path, or None."""
        with self.store.snapshot() as reader:
            names = Names(reader)
            above, inode = ROOT_INO, names.root()
            for segment in path.split(b"/") if path else []:
                stored = names.child(inode.ino, segment)
                if stored is None:
                    return None
                above, inode = inode.ino, stored.inode
        return above, inode

    def down_below(self, paths: Iterable[bytes]) -> tuple[str, str] | None:
        """Returns (URL, cause) of a source at, above or below one of the paths that cannot be read
        now; None if all can."""
        paths = [*paths]
        for mount in self.tree.mounts():
            error, above = mount.health.error, mount.record.path
            if error is not None and any(_meet(path, above) for path in paths):
                return mount.record.source.url, error.cause
        return None

    def replicas(self, directory: bytes, name: bytes) -> int:
        if not len(self.policies):
            return 1
        return max(1, self.policies.rule(join(directory, name)).replicas)

    def origins(self, directory: int, path: bytes, files: Entries) -> list[tuple[bytes, Origin]]:
        """Returns (path, origin) of a directory's files; [] if the directory was removed."""
        try:
            with self.store.snapshot() as reader:
                place = self.tree.directory(Names(reader), directory)
        except CacheFSError:
            return []
        rule_of = self._rules(path)
        alone, key = self.policies.differs_in(path), place.mount.key
        head = place.path + b"/" if place.path else b""
        above = path + b"/" if path else b""
        namespace = self.namespace
        return [
            (
                above + name,
                Origin(
                    ContentId(namespace, inode.ino, inode.version, inode.nonce),
                    key,
                    head + name,
                    inode.etag,
                    inode.size,
                    inode.mtime_ns,
                    rule_of(name),
                    alone,
                ),
            )
            for name, inode in files
            if inode.kind is Kind.FILE
        ]

    def _rules(self, directory: bytes) -> Callable[[bytes], Rule]:
        """Returns a function from a name to its rule, constant if no name has its own policy."""
        if self.policies.differs_in(directory):
            return lambda name: self.policies.rule(join(directory, name))
        rule = self.policies.rule(directory)
        return lambda name: rule


def _meet(one: bytes, other: bytes) -> bool:
    """Returns whether one of two paths is at or below the other."""
    short, long = sorted((one, other), key=len)
    return not short or long == short or long.startswith(short + b"/")
