"""The manifest of a data set: paths, inode numbers, sizes and classes of all files below a folder.

It is built from listings once, kept in the state home, and refreshed by what changed since. All
processes of a machine map the same two files, so a manifest of 10 million files costs a loader
process no memory. The numbers of the files are those of a walk by name, and so the same
on every machine that sees the same names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cachefs.core import messages as m
from cachefs.core.errors import BadConfig, NotFound, Unreachable
from cachefs.core.manifest_format import NO_NAMESPACE, NO_POSITION
from cachefs.core.owned_fd import OwnedFd
from cachefs.launcher.state import StateHome
from cachefs.trainers.listings import MountListings, ServerListings
from cachefs.trainers.manifest_build import ManifestBuild
from cachefs.trainers.manifest_store import ManifestStore, mapped
from cachefs.trainers.manifest_tables import TableMap
from cachefs.trainers.mount_session import MountSession, is_mounted, open_session, state_home
from cachefs.trainers.name_checks import MOST_S, compare_names, is_due

log = logging.getLogger(__name__)

TRIES: Final = 4  # of listings whose server ends


class Manifest:
    """The files below `path`, numbered from 0. Immutable except for `refresh`."""

    def __init__(self, path: str | os.PathLike[str], *, home: str | None = None) -> None:
        """Maps the kept manifest of `path` after a refresh, or builds it. `home`: the state home of
        the mount, if it is not this user's own. Raises BadConfig for a URL, NotFound, NotADirectory
        and the errors of listings."""
        self.path = _folder(os.fspath(path))
        self.order_names: set[str] = set()  # of the live samplers
        self._home = StateHome(home) if home else state_home()
        self._root = os.fsencode(self.path)
        self._use(self._fresh())
        if not len(self) and not is_mounted(self.path):
            log.warning(
                "%s has no files, and no mount is there: mount its source first "
                "(`cachefs status` lists the mounts)", self.path
            )  # fmt: skip

    @classmethod
    def of_tables(cls, path: str, home: str, stem: str) -> Manifest:
        """Returns the manifest whose tables another process of this machine uses (after spawn)."""
        manifest = cls.__new__(cls)
        manifest.order_names = set()
        manifest.path, manifest._home, manifest._root = path, StateHome(home), os.fsencode(path)
        try:
            manifest._use(mapped(Path(stem)))
        except FileNotFoundError as err:
            raise NotFound("the manifest was removed", path=path, remedy="build it again") from err
        return manifest

    def __repr__(self) -> str:
        return f"Manifest({self.path!r}, {len(self)} files)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Manifest.of_tables, (self.path, str(self._home.path), str(self._tables.stem))

    # ---- the files ----

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[bytes]:
        return map(self.file, range(len(self)))

    def file(self, index: int) -> bytes:
        """Returns the whole path of a file. Raises IndexError."""
        return self._root + b"/" + self.relative(index)

    def relative(self, index: int) -> bytes:
        """Returns the path of a file below the manifest's folder. Raises IndexError."""
        self._check(index)
        folder = self._tables.folder_path(self._tables.folder_of(index))
        name = self._tables.name(index)
        return folder + b"/" + name if folder else name

    def size(self, index: int) -> int:
        """Returns the size of a file in bytes, as listed. Raises IndexError."""
        return self._tables.sizes[self._check(index)]

    def ino(self, index: int) -> int:
        """Returns the inode number of a file. Raises IndexError."""
        return self._tables.inos[self._check(index)]

    def label(self, index: int) -> int:
        """Returns the class of a file: the number of its first folder in `classes`; -1 for a file
        directly in the manifest's folder. Raises IndexError."""
        folder = self._tables.folder_path(self._tables.folder_of(self._check(index)))
        return self._numbers[folder.partition(b"/")[0]] if folder else -1

    @property
    def classes(self) -> list[str]:
        """The folders directly in the manifest's folder, by name: a class each."""
        return [os.fsdecode(name) for name in self._numbers]

    # ---- the whole ----

    @property
    def identity(self) -> int:
        """A number that is equal for manifests with the same paths and sizes."""
        return self._tables.identity

    @property
    def former_identity(self) -> int:
        """The identity as earlier versions had it, without the folder of each file."""
        return self._tables.header.identity

    @property
    def namespace(self) -> bytes:
        """The namespace of the inode numbers; zeros if it is unknown."""
        return self._tables.header.namespace

    @property
    def home(self) -> StateHome:
        """The state home that has the manifest."""
        return self._home

    @property
    def ino_file(self) -> OwnedFd:
        """The open ino table."""
        return self._tables.ino_file

    @property
    def inos(self) -> memoryview:
        """The inode numbers of all files."""
        return self._tables.inos

    def refresh(self) -> bool:
        """Takes in what changed since the manifest was built. Returns whether it has other files
        now. Samplers of the earlier one must not be used further."""
        before = self._tables
        self._use(self._fresh())
        return self._tables.identity != before.identity

    def _use(self, tables: TableMap) -> None:
        tops = (tables.folder_path(n) for n in range(len(tables.folder_inos)))
        names = dict.fromkeys(path.partition(b"/")[0] for path in tops if path)
        numbers = {name: number for number, name in enumerate(sorted(names))}
        self._tables, self._numbers = tables, numbers

    def _check(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"file {index} of {self.path}, whose manifest has {len(self)} files")
        return index

    def _fresh(self) -> TableMap:
        store = ManifestStore(self._home, self._root)
        with store.building():
            for _ in range(TRIES - 1):
                with contextlib.suppress(Unreachable):  # a server that ended is restarted
                    return self._listed(store)
            return self._listed(store)

    def _listed(self, store: ManifestStore) -> TableMap:
        session = open_session(self.path, self._home)
        try:
            return _refreshed(store, self._root, session)
        finally:
            if session is not None:
                session.close()


def _folder(path: str) -> str:
    if "://" in path:
        raise BadConfig(f"not a folder below a mount, but a URL: {path!r}; mount its source")
    return os.path.abspath(path)


def _refreshed(store: ManifestStore, root: bytes, session: MountSession | None) -> TableMap:
    """Returns the current tables, after they were built as far as necessary."""
    if session is None:
        tables = ManifestBuild(MountListings(root)).run()
        return store.keep(tables, NO_NAMESPACE, NO_POSITION, 0, 0.0)
    kept = store.current()
    old, run, due_at_s = kept if kept is not None else (None, 0, 0.0)
    if old is not None and old.header.namespace != session.namespace:
        old = None
    due_at_s = _compared(store, session, old, due_at_s)
    after = old.header.position if old is not None else NO_POSITION
    listings = ServerListings(session)
    changes = session.call(m.GetChangedFolders(session.namespace, after), m.ChangedFolders)
    if old is None or after < 0 or changes.everything or changes.run != run:
        build, due_at_s = ManifestBuild(listings), time.time() + MOST_S
    elif not set(old.folder_inos).intersection(changes.folders):
        return old
    else:
        build = ManifestBuild(listings, old, frozenset(changes.folders))
    now_s, tables = time.time(), build.run()
    due_at_s = min(due_at_s, now_s + listings.valid_for_s)
    return store.keep(tables, session.namespace, changes.position, changes.run, due_at_s)


def _compared(
    store: ManifestStore, session: MountSession, old: TableMap | None, due_at_s: float
) -> float:
    """Has the names of an earlier manifest compared with the origin, if that is due. Returns when
    it is due next."""
    now_s = time.time()
    if old is not None and is_due(due_at_s, now_s):
        valid_for_s = compare_names(session, iter(old.folder_inos))
        due_at_s = now_s + valid_for_s
        if valid_for_s:
            store.note_check(due_at_s)
    return due_at_s
