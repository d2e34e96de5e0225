"""A sync: the comparison of a path, or of the tree below it, with its origin.

Several directories are compared at a time, the ones found last first. The queue is therefore only
one list of names per level. A real sync uses normal listings (`Syncer.list_anew`): their changes
are written, announced and also counted here. A dry run only reads. A background sync (one with a
`Pace`) reads first, and writes only where it finds a difference. It enters no directory of which
the store has no name: nothing there can be out of date.
All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from cachefs.core.errors import CacheFSError, NotADirectory, NotFound, Stale
from cachefs.core.model import ROOT_INO, Kind
from cachefs.core.syncs import ChangeKind
from connectors.base import Page
from master.manual_sync.findings import Findings, Glance, changes_in, tell_below
from master.manual_sync.preview import Preview, at_once
from master.manual_sync.report import Found, Report, counted
from master.origins.lister import Watcher
from master.origins.syncer import PROGRESS_WAIT_S, Syncer
from master.state.differences import Difference, Differences, Subdirectories
from master.state.health import is_down
from master.store.base import Store
from master.store.comparison import Compared, compare_name
from master.store.snapshot import Names
from master.tree import Mount, Place, Tree

AT_ONCE: Final = 8  # directories of one sync
MAX_DOWN: Final = 3  # failures in a row after which an origin is left alone
MISSING: Final = "no such file or directory"


class Where(NamedTuple):
    """A directory to compare. `ino` is None if the store does not have it (in a dry run). `above`
    is its parent, None for a directory that the mount table holds. `new`: this sync found the
    directory as added."""

    place: Place
    ino: int | None
    above: Where | None = None
    name: bytes = b""
    new: bool = False

    @property
    def path(self) -> bytes:
        return self.place.mount.in_namespace(self.place.path)


class Level(NamedTuple):
    """The subdirectories of one directory that are queued for comparison."""

    where: Where
    names: Subdirectories


class Pace(Protocol):
    """The pace of a background sync."""

    def page(self, page: Page) -> None:
        """Counts a page that was compared and waits, in a thread, until the next may be."""

    def charge(self, names: int) -> None:
        """Counts names that were listed without `page`."""


class Run:
    """A sync in progress. All syncs share `turns`, which limits the directories in flight, and
    `computing`, the lock that lets only one of their threads compute at a time. `pace` makes it a
    background sync, and `left_out` names the paths of the namespace which that does not enter."""

    def __init__(
        self,
        report: Report,
        store: Store,
        tree: Tree,
        syncer: Syncer,
        turns: AbstractAsyncContextManager[None],
        computing: threading.Lock,
        pace: Pace | None = None,
        left_out: frozenset[bytes] = frozenset(),
    ) -> None:
        self._report = report
        self._computing = computing
        self._store = store
        self._tree = tree
        self._syncer = syncer
        self._turns = turns
        self._pace = pace
        self._left_out = left_out
        self._at_once = 1 if pace else AT_ONCE
        self._loop = asyncio.get_running_loop()
        self._levels: list[Level] = []
        self._down: Counter[Mount] = Counter()

    async def run(self) -> None:
        """Compares the whole path or tree; failures are recorded in the report."""
        try:
            first = await self._start()
        except CacheFSError as err:
            return self._report.failed(self._report.path, err)
        if first is not None:
            await self._walk(first)

    async def _start(self) -> Where | None:
        """Returns the directory to start with. If the path is no directory, compares it and returns
        None. A parent on the path is compared only if the store does not have it as a directory."""
        segments = self._report.path.split(b"/") if self._report.path else []
        with self._store.snapshot() as reader:
            where = Where(self._tree.directory(Names(reader), ROOT_INO), ROOT_INO)
        for depth, name in enumerate(segments, 1):
            is_last = depth == len(segments)
            known = self._known(where, name)
            if known is not None and (known.above is None or not is_last):
                where = known
                continue
            if known is None and self._pace is not None:
                return None
            kind, new = await self._compare_name(where, name)
            if kind is Kind.DIRECTORY:
                below = known or self._child(where, name, new=new)
                if below is None:
                    raise Stale("it changes while it is compared")
                where = below
            elif is_last:
                return None
            else:
                raise NotFound(MISSING) if kind is None else NotADirectory("a file is on the way")
        return where

    async def _compare_name(
        self, above: Where, name: bytes, *, found: bool = False
    ) -> tuple[Kind | None, bool]:
        """Compares one name that is not held; returns its origin's kind and whether it is new.
        `found`: the name was already found and reported as a directory. Raises NotFound if the name
        is neither at the origin nor in the store."""
        if self._report.dry_run or self._pace is not None:
            kind, compared = await self._ask(above, name)
            if self._report.dry_run or not compared.changes:
                return await self._judge(above, name, kind, compared, found=found)
        kind, compared = await self._stat(above, name)
        try:
            return await self._judge(above, name, kind, compared, found=found)
        finally:
            self._syncer.release(compared.changes)
            self._syncer.directories_removed()

    async def _stat(self, above: Where, name: bytes) -> tuple[Kind | None, Compared]:
        """Stats a name and writes the result; the caller releases the removed directories."""
        assert above.ino is not None, "only a dry run is where the namespace knows nothing"
        stored, changes, was_listed = await self._syncer.stat_anew(above.ino, name, above.place)
        kind = None if stored is None else stored.inode.kind
        return kind, Compared(changes, was_listed=was_listed)

    async def _ask(self, above: Where, name: bytes) -> tuple[Kind | None, Compared]:
        """Stats a name and compares it with the store without writing."""
        entry = await self._syncer.ask(above.place.mount, above.place.of(name))
        kind = None if entry is None else entry.fingerprint.kind
        if above.ino is None:
            return kind, Compared()
        with self._store.snapshot() as reader:
            names = Names(reader)
            changes = compare_name(names, above.ino, name, entry)
            return kind, Compared(changes, was_listed=names.directory(above.ino) is not None)

    async def _judge(
        self, above: Where, name: bytes, kind: Kind | None, compared: Compared, *, found: bool
    ) -> tuple[Kind | None, bool]:
        """Reports one name's comparison; returns its kind and whether it is new."""
        if kind is None and not compared.changes:
            raise NotFound(MISSING)
        changes = compared.changes
        differences = Differences().add(changes, None, was_listed=compared.was_listed)
        if above.new and kind is not None:
            differences = [Difference(ChangeKind.ADDED, name, kind is Kind.DIRECTORY)]
        is_name = kind is not Kind.DIRECTORY
        if is_name or not found:
            self._report.add(counted(int(is_name), changes_in(above.path, differences)))
        if any(change.entry is None for change in changes):
            await self._syncer.in_thread(
                lambda: tell_below(self._store, above.path, compared, self._tell, self._is_over)
            )
        came = any(d.kind is ChangeKind.ADDED or d.is_directory for d in differences)
        return kind, came and kind is not None

    async def _walk(self, first: Where) -> None:
        running = {self._begin(first)}
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (level := task.result()) is not None:
                    self._levels.append(level)
            while len(running) < self._at_once and (where := self._next()) is not None:
                running.add(self._begin(where))
                await asyncio.sleep(0)

    def _begin(self, where: Where) -> asyncio.Task[Level | None]:
        return self._syncer.spawn(self._look_into(where))

    def _next(self) -> Where | None:
        """Returns the next queued directory; its ino is not yet looked up."""
        while self._levels and not (self._report.ended or self._is_given_up()):
            level = self._levels[-1]
            if (waiting := level.names.pop()) is None:
                self._levels.pop()
                continue
            name, new = waiting
            above = level.where
            place = above.place._replace(path=above.place.of(name))
            where = Where(place, None, above, name, above.new or new)
            if not self._left_out or where.path not in self._left_out:
                return where
        return None

    def _is_given_up(self) -> bool:
        """Returns whether a background sync ends early: its origin, of which there is one, is left
        alone, and every other directory would wait for its turn all the same."""
        return self._pace is not None and max(self._down.values(), default=0) >= MAX_DOWN

    async def _look_into(self, where: Where) -> Level | None:
        """Compares one directory; returns its subdirectories if the sync is recursive."""
        async with self._turns:
            if self._report.ended:
                return None
            try:
                if where.above is not None and where.ino is None:
                    child = self._child(where.above, where.name, new=where.new)
                    if child is None:  # it was removed after it was found
                        return None
                    where = child
                if self._pace is not None and not self._has_names(where):
                    return None
                if self._down[where.place.mount] >= MAX_DOWN:
                    return None
                return await self._compare(where)
            except CacheFSError as err:
                self._failed(where, err)
                return None

    async def _compare(self, where: Where) -> Level | None:
        report = self._report
        held = frozenset[bytes]() if where.ino is None else self._tree.held_names(where.ino)
        findings = Findings(
            self._store,
            where.path,
            self._tell,
            self._is_over,
            new=where.new,
            passed_over=held if report.recursive else None,
        )
        try:
            empty = await self._look_at(where, findings, held)
        except (NotFound, NotADirectory, Stale):
            if where.above is None:
                raise
            if report.ended:
                return None
            empty = True
        self._down[where.place.mount] = 0
        if empty and where.above is not None and not await self._is_there(where):
            return None
        report.looked_into()
        if not report.recursive:
            return None
        for name in sorted(held):
            findings.subdirectories.add(name, False)
        return Level(where, findings.subdirectories)

    async def _look_at(self, where: Where, findings: Findings, held: frozenset[bytes]) -> bool:
        """Compares a directory; returns whether its listing was empty."""
        if self._report.dry_run:
            return await self._preview(where, findings)
        if self._pace is not None:
            empty = await self._glance(where, findings, held)
            if empty is not None:
                return empty
        empty = await self._list(where, findings)
        if self._pace is not None:
            self._pace.charge(findings.names)
        return empty

    async def _glance(
        self, where: Where, findings: Findings, held: frozenset[bytes]
    ) -> bool | None:
        """Compares a directory without writing, up to the first difference. Returns whether its
        listing was empty; None if there is a difference."""
        glance = Glance(held)
        try:
            empty = await self._preview(where, glance, glance)
        except Stale:
            if not glance.differs:
                raise
        if glance.differs:
            return None
        self._report.add(counted(glance.names, ()))
        findings.subdirectories = glance.subdirectories
        return empty

    async def _list(self, where: Where, watcher: Watcher) -> bool:
        """Lists a directory and writes the result; returns whether the listing was empty."""
        assert where.ino is not None, "only a dry run is where the namespace knows nothing"
        listing = await self._syncer.list_anew(where.ino, where.place, watcher)
        while not listing.done:
            await listing.progress(PROGRESS_WAIT_S)
        if listing.error is not None:
            raise listing.error
        return listing.empty

    async def _preview(self, where: Where, watcher: Watcher, glance: Glance | None = None) -> bool:
        """Lists a directory without writing; returns whether the listing was empty."""
        mount = where.place.mount

        def over() -> bool:
            found = glance is not None and glance.differs
            return found or self._is_over() or self._tree.root(mount.root) is not mount

        preview = Preview(
            self._store,
            where.place,
            where.ino,
            watcher,
            lambda: self._syncer.now,
            over,
            self._computing,
            may_be_absent=where.above is None and where.ino != mount.root,
            pace=at_once if self._pace is None else self._pace.page,
        )
        await self._syncer.spawn(self._syncer.in_thread(preview.run), mount)
        return preview.empty

    async def _is_there(self, where: Where) -> bool:
        """Returns whether a directory without names still exists at the origin."""
        assert where.above is not None, "what is held is always there"
        try:
            kind, _ = await self._compare_name(where.above, where.name, found=True)
        except NotFound:  # another request already recorded the removal
            kind = None
        return kind is Kind.DIRECTORY

    def _known(self, above: Where, name: bytes) -> Where | None:
        """Returns a directory of the namespace; None if the store has no such directory."""
        if above.ino is None:
            return None
        with self._store.snapshot() as reader:
            names = Names(reader)
            if (held := self._tree.held_child(above.ino, name)) is not None:
                return Where(self._tree.directory(names, held), held)
            stored = names.child(above.ino, name)
            if stored is None or stored.inode.kind is not Kind.DIRECTORY:
                return None
            ino = stored.inode.ino
            return Where(self._tree.directory(names, ino), ino, above, name)

    def _has_names(self, where: Where) -> bool:
        """Returns whether the store has names of a directory, or the origin listed it as empty."""
        assert where.ino is not None, "only a dry run is where the namespace knows nothing"
        with self._store.snapshot() as reader:
            names = Names(reader)
            if names.directory(where.ino) is not None:
                return True
            return bool(names.raw_children(where.ino, b"", None, 1))

    def _child(self, above: Where, name: bytes, *, new: bool) -> Where | None:
        """Returns a directory that was found at the origin. If the store lacks it: None in a real
        sync, a directory without an ino in a dry run."""
        try:
            known = self._known(above, name)
        except Stale:  # the parent was removed
            known = None
        if known is not None:
            return known if known.above is None else known._replace(new=new)
        if not self._report.dry_run:
            return None
        return Where(above.place._replace(path=above.place.of(name)), None, above, name, new)

    def _failed(self, where: Where, err: CacheFSError) -> None:
        self._report.failed(where.path, err)
        if is_down(err):
            self._down[where.place.mount] += 1

    def _tell(self, found: Found) -> None:
        """Adds to the report; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._report.add, found)

    def _is_over(self) -> bool:
        return self._report.ended
