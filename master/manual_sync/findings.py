"""The reported changes of one directory, derived part by part in the thread that compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from cachefs.core.model import Kind
from cachefs.core.syncs import Change, ChangeKind
from master.manual_sync.report import Found, counted
from master.state.differences import Difference, Differences, Subdirectories, removed_directories
from master.state.records import name_of
from master.store.base import Store
from master.store.comparison import Compared
from master.store.snapshot import Names
from master.tree import join

PAGE: Final = 1000  # names of a removed directory, read per snapshot


class Findings:
    """The findings of one directory; a `master.origins.lister.Watcher`. `subdirectories` is
    complete when the comparison has ended; new names are marked in it."""

    def __init__(
        self,
        store: Store,
        path: bytes,
        tell: Callable[[Found], None],
        over: Callable[[], bool],
        *,
        new: bool,
        passed_over: frozenset[bytes] | None,
    ) -> None:
        """`path` is the path in the namespace. `tell` receives each part. `over` returns whether
        the sync has ended. `new`: the directory and all its names are added. `passed_over` names
        the subdirectories not to collect; None collects no subdirectory."""
        self._store = store
        self._path = path
        self._tell = tell
        self._over = over
        self._new = new
        self._passed_over = passed_over
        self._differences = Differences()
        self.subdirectories = Subdirectories()
        self.names = 0  # compared

    def saw(self, compared: Compared) -> None:
        if self._over():
            return
        differences = self._differences.add(
            compared.changes, compared.upto, was_listed=compared.was_listed
        )
        if self._new:
            differences = _all_added(compared)
        gone = sum(change.entry is None for change in compared.changes)
        names = len(compared.entries) + len(compared.late) + gone
        self.names += names
        self._tell(counted(names, changes_in(self._path, differences)))
        tell_below(self._store, self._path, compared, self._tell, self._over)
        if self._passed_over is not None:
            self._collect(compared, {d.name for d in differences if d.kind is not ChangeKind.GONE})

    def _collect(self, compared: Compared, came: set[bytes]) -> None:
        assert self._passed_over is not None
        for name in directories_in(compared, self._passed_over):
            self.subdirectories.add(name, name in came)


class Glance:
    """Whether a directory differs from its origin; a `master.origins.lister.Watcher`, too."""

    def __init__(self, passed_over: frozenset[bytes]) -> None:
        self._passed_over = passed_over
        self.subdirectories = Subdirectories()
        self.differs = False
        self.names = 0  # compared

    def saw(self, compared: Compared) -> None:
        self.differs = self.differs or bool(compared.changes)
        self.names += len(compared.entries) + len(compared.late)
        for name in directories_in(compared, self._passed_over):
            self.subdirectories.add(name, False)


def directories_in(compared: Compared, passed_over: frozenset[bytes]) -> Iterator[bytes]:
    """Yields the names of the origin's directories in a part."""
    for key, entry in compared.entries:
        if key.endswith(b"/") and entry.name not in passed_over:
            yield entry.name


def _all_added(compared: Compared) -> list[Difference]:
    found = [
        Difference(ChangeKind.ADDED, entry.name, key.endswith(b"/"))
        for key, entry in compared.entries
    ]
    return found + [Difference(ChangeKind.ADDED, entry.name, False) for entry in compared.late]


def changes_in(path: bytes, differences: Sequence[Difference]) -> list[Change]:
    """Returns the differences as changes with paths in the namespace."""
    return [Change(d.kind, join(path, d.name), d.is_directory) for d in differences]


def tell_below(
    store: Store,
    path: bytes,
    compared: Compared,
    tell: Callable[[Found], None],
    over: Callable[[], bool],
) -> None:
    """Reports every stored name below the removed directories as removed. Blocks."""
    for name, ino in removed_directories(compared.changes):
        for page in _below(store, ino, join(path, name)):
            tell(counted(len(page), page))
            if over():
                return


def _below(store: Store, ino: int, path: bytes) -> Iterator[list[Change]]:
    """Yields all stored names below a directory, in pages, as removed."""
    stack = [(ino, path, b"")]
    while stack:
        ino, path, after = stack.pop()
        with store.snapshot() as reader:
            found = Names(reader).children(ino, after, None, PAGE)
        if len(found) == PAGE:
            stack.append((ino, path, found[-1][0]))
        changes = []
        for key, stored in found:
            below, is_directory = join(path, name_of(key)), stored.inode.kind is Kind.DIRECTORY
            changes.append(Change(ChangeKind.GONE, below, is_directory))
            if is_directory:
                stack.append((stored.inode.ino, below, b""))
        if changes:
            yield changes
