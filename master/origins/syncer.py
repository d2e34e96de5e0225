"""The synchronization of the store with the origins: lists and stats in threads, and their writes.

Owns the threads, the listings in flight (one per directory) and the stats in flight (one per name).
All methods belong to one event loop. Cancelling a waiter does not cancel the shared work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar, TypeVarTuple

from cachefs.core.errors import (
    CacheFSError,
    DeadlineExceeded,
    InUse,
    NotFound,
    OriginError,
    Stale,
    Unavailable,
)
from cachefs.core.model import Kind
from connectors.base import Connector, Entry
from connectors.deadline import bounded
from master.origins.late_store import is_late, unchanged_name, unchanged_root, written
from master.origins.lister import Lister, Watcher
from master.origins.listing import Listing, StatReply
from master.origins.threads import OriginThreads
from master.state.differences import removed_directories
from master.state.merge import Change
from master.state.negatives import Negatives
from master.state.records import Stored, name_of
from master.state.unchecked import UncheckedNames
from master.store.base import MAX_QUEUED_WRITES, Store
from master.store.snapshot import Names
from master.store.transaction import Transaction, transact
from master.tree import Mount, Place, Tree

T = TypeVar("T")
Asked = TypeVarTuple("Asked")

log = logging.getLogger("cachefs.master")

LISTING_THREADS: Final = (32, 8)  # in all, for one source
STAT_THREADS: Final = (256, 32)
WATCHED_THREADS: Final = 8  # for the listings of manual syncs: lookups never queue behind them
ORPHANS_AT_ONCE: Final = 16
MOST_WAITING: Final = MAX_QUEUED_WRITES // 2
CLOSE_WAIT_S: Final = 5.0
PROGRESS_WAIT_S: Final = 60.0
MOST_STATS: Final = 3  # of one name while listings of its directory begin
ORIGIN_DEADLINE_S: Final = 30.0


class Syncer:
    """The lists and stats of all mounts; concurrent callers share one request per name."""

    def __init__(
        self,
        store: Store,
        tree: Tree,
        clock: Callable[[], float],
        wake: Callable[[], None],
        deadline_s: float = ORIGIN_DEADLINE_S,
    ) -> None:
        """`wake` is called in the event loop after commits that may hold events. `deadline_s`
        limits how long a caller waits for a reply from an origin."""
        self.deadline_s = deadline_s
        self.store = store
        self._tree = tree
        self._clock = clock
        self.wake = wake
        self.negatives = Negatives()
        self.unchecked = UncheckedNames()
        self.stats_done = 0
        self.listings_done = 0
        self._listings: dict[int, Listing] = {}
        self._stats: dict[tuple[int, bytes], asyncio.Task[Stored | None]] = {}
        self._outdated: set[tuple[int, bytes]] = set()  # of these: older than a listing
        self._tasks: dict[asyncio.Task[Any], Mount | None] = {}
        self._waiting: set[asyncio.Task[Any]] = set()
        self._kept: set[int] = set()  # removed directories whose names a sync still counts
        self._listers = OriginThreads("master-list", *LISTING_THREADS)
        self._watched = OriginThreads("master-sync", WATCHED_THREADS, WATCHED_THREADS)
        self._askers = OriginThreads("master-stat", *STAT_THREADS)
        self.stopping = False
        self._gardening = False

    def listing(self, directory: int) -> Listing | None:
        """Returns the listing of this directory that is in flight."""
        return self._listings.get(directory)

    def list_directory(self, directory: int, place: Place) -> Listing:
        """Starts a listing, or joins the one in flight."""
        listing = self._listings.get(directory)
        if listing is None or listing.mount is not place.mount:
            listing = self._begin(directory, place)
        return listing

    async def list_anew(
        self, directory: int, place: Place, watcher: Watcher | None = None
    ) -> Listing:
        """Starts a listing after all earlier requests for the directory have ended, so that no
        older reply is written after it. With a watcher, an empty listing triggers no stat of the
        directory."""
        if asked := [task for (parent, _), task in self._stats.items() if parent == directory]:
            await asyncio.wait(asked)
        while (running := self._listings.get(directory)) is not None:
            await running.progress(PROGRESS_WAIT_S)
        return self._begin(directory, place, watcher)

    def _begin(self, directory: int, place: Place, watcher: Watcher | None = None) -> Listing:
        if self.stopping:
            raise InUse("the master is stopping")
        listing = Listing(directory, place.mount, self._clock())
        self._listings[directory] = listing
        self._outdated.update(key for key in self._stats if key[0] == directory)
        self.spawn(self._drive(listing, place, watcher), place.mount)
        return listing

    async def _drive(self, listing: Listing, place: Place, watcher: Watcher | None) -> None:
        """Runs a listing in a thread and reports its result to the waiters."""
        loop = asyncio.get_running_loop()
        watched, marks = self.negatives.names(listing.directory), self.unchecked.marks
        lister = Lister(self, loop, listing, place, watched, watcher)
        error: CacheFSError | None = OriginError("the listing ended unexpectedly")
        try:
            threads = self._watched if watcher else self._listers
            await threads.run(place.mount, lister.run)
            error = None
            self.listings_done += 1
            self.negatives.forget(listing.directory)
            self.unchecked.listed(listing.directory, marks)
            place.mount.health.succeeded()
            listing.empty = lister.empty
            if lister.empty and watcher is None:
                await self._look_at_directory(listing.directory)
        except CacheFSError as err:
            error = err
            if not self.stopping:
                if isinstance(err, NotFound) and watcher is None:
                    await self._look_at_directory(listing.directory)
                elif lister.has_origin_failed and not isinstance(err, Stale):
                    place.mount.health.failed(err, self._clock())
                    self.warn(place, b"", err)
                await self._distrust(listing.directory)
        finally:
            if self._listings.get(listing.directory) is listing:
                del self._listings[listing.directory]
            listing.finish(error)

    def distrust_running(self, directory: int) -> None:
        """Detaches the directory's listing in flight, which started too early to be trusted; marks
        the directory as not listed when the listing ends."""
        listing = self._listings.pop(directory, None)
        if listing is not None:
            self.spawn(self._distrust_after(listing))

    async def _distrust_after(self, listing: Listing) -> None:
        while not listing.done:
            await listing.progress(CLOSE_WAIT_S)
        await self._distrust(listing.directory)

    async def _look_at_directory(self, directory: int) -> None:
        """Checks with a stat whether a directory without names still exists at its origin. If not,
        checks those above it that may have ended with it. One that fails is unchecked."""
        while (at := self._above(directory)) is not None:
            directory, name, place = at
            try:
                stored = await self.stat(directory, name, place)
            except Stale:  # the one above it was removed
                return
            except CacheFSError as err:
                self.unchecked.mark(directory, name)
                return self.warn(place, name, err)
            if stored is not None or not self.may_have_ended(directory, place):
                return

    def _above(self, directory: int) -> tuple[int, bytes, Place] | None:
        """Returns the parent of a directory, its name there, and the parent's place; None if the
        directory was removed, or is held. Raises Stale if the parent was removed."""
        with self.store.snapshot() as reader:
            names = Names(reader)
            at = names.place(directory)
            if at is None or self._tree.is_held(directory):
                return None
            return at[0], name_of(at[1]), self._tree.directory(names, at[0])

    def may_have_ended(self, directory: int, place: Place) -> bool:
        """Returns whether a directory, of which a name was removed, ended with it: it has no other
        name, and the directories of its store are only parts of keys."""
        if place.mount.connector.capabilities.directories:
            return False
        with self.store.snapshot() as reader:
            return not Names(reader).children(directory, b"", None, 1)

    async def _distrust(self, directory: int) -> None:
        await self.write(lambda txn: txn.distrust_directory(directory))

    def is_asked(self, parent: int, name: bytes) -> bool:
        """Returns whether a request in flight will report a name."""
        return parent in self._listings or (parent, name) in self._stats

    async def stat(
        self, parent: int, name: bytes, place: Place, *, has_changed: bool = False
    ) -> Stored | None:
        """Stats a name at its origin; returns None if it is absent. Raises connector errors. After
        a report that the name `has_changed`, joins no request that is in flight already."""
        asked = self._stats.get((parent, name))
        if asked is not None and (has_changed or self.unchecked.covers(parent, name)):
            await asyncio.wait([asked])  # it may have begun before the name was reported
        return await self._shared((parent, name), place.mount, self._stat, parent, name, place)

    async def stat_anew(
        self, parent: int, name: bytes, place: Place
    ) -> tuple[Stored | None, Sequence[Change], bool]:
        """Stats a name as `stat` does, but never joins a request in flight. Also returns the
        changes in the store and whether the parent had been listed. The names below removed
        directories are kept until `release`."""
        while (asked := self._stats.get((parent, name))) is not None:
            await asyncio.wait([asked])
        seen: list[tuple[Sequence[Change], bool]] = []
        key = (parent, name)
        stored = await self._shared(key, place.mount, self._stat, parent, name, place, seen)
        return stored, *seen[-1]

    async def stat_root(self, mount: Mount) -> Stored | None:
        """Stats a mount's root at its origin. Raises the connector's errors."""
        return await self._shared((mount.root, b""), mount, self._stat_root, mount)

    async def _shared(
        self,
        key: tuple[int, bytes],
        mount: Mount,
        ask: Callable[[*Asked], Coroutine[Any, Any, Stored | None]],
        *about: *Asked,
    ) -> Stored | None:
        """Returns the result of the request for `key`; concurrent callers share one request."""
        task = self._stats.get(key)
        if task is None:
            if self.stopping:
                raise InUse("the master is stopping")
            task = self.spawn(ask(*about), mount)
            self._stats[key] = task
            task.add_done_callback(lambda _: self._forget_stat(key))
        return await asyncio.shield(task)

    def _forget_stat(self, key: tuple[int, bytes]) -> None:
        self._stats.pop(key, None)
        self._outdated.discard(key)

    async def _stat_root(self, mount: Mount) -> Stored | None:
        asked_at = self._clock()
        entry = await self.ask(mount, b"")
        self.stats_done += 1
        if entry is None or entry.fingerprint.kind is not Kind.DIRECTORY:
            raise NotFound("the root of the source is no directory now")
        seen = entry
        checked_at = asked_at if mount.interval_s else 0.0

        def apply(txn: Transaction) -> Stored:
            txn.check_source(mount.root, mount.root, mount.key)
            stored = txn.inode(mount.root)
            assert stored is not None, "the root of a mount is held"
            return txn.update(stored, seen, checked_at)

        async def write() -> Stored | None:
            stored = await self.write(apply)
            self.wake()
            return stored

        def confirm(names: Names) -> Stored | None:
            return unchanged_root(names, mount.root, seen, checked_at)

        return await written(self.store, lambda: self.spawn(write(), mount), confirm)

    async def _reply(self, parent: int, name: bytes, place: Place) -> StatReply:
        """Stats one name. If a listing began in between, which may be newer than the reply, stats
        the name again, `MOST_STATS` times at most."""
        for _ in range(MOST_STATS):
            self._outdated.discard((parent, name))
            asked_at, marks = self._clock(), self.unchecked.marks
            older = self._listings.get(parent)
            entry = await self.ask(place.mount, place.of(name))
            self.stats_done += 1
            is_outdated = (parent, name) in self._outdated
            if not (is_outdated and place.interval_s):
                break
        return StatReply(entry, asked_at, marks, older, is_outdated)

    async def _stat(
        self,
        parent: int,
        name: bytes,
        place: Place,
        seen: list[tuple[Sequence[Change], bool]] | None = None,
    ) -> Stored | None:
        """Stats one name and writes the reply; appends the changes to `seen` if given. No later
        reader gets a reply that is outdated, or with an interval of 0."""
        reply = await self._reply(parent, name, place)
        entry, asked_at, _, older, is_outdated = reply
        checked_at = asked_at if place.interval_s and not is_outdated else 0.0
        expected_none = self.negatives.checked_at(parent, name) > 0
        was_overtaken = older is not None and name in older.overtaken

        def apply(txn: Transaction) -> tuple[Stored | None, int]:
            txn.check_source(parent, place.mount.root, place.mount.key)
            known = txn.directory(parent)
            announce = expected_none or (known is not None and known.complete)
            stored = txn.apply_stat(parent, name, entry, checked_at, announce_new=announce)
            if place.interval_s and is_outdated:
                txn.distrust_directory(parent)
            if older is not None:
                older.overtake(name, stored, txn.stat_changes)
            if seen is not None:
                seen.append((txn.stat_changes, known is not None))
                self.keep(txn.stat_changes)
            return stored, txn.removed_directories

        def undo() -> None:
            if older is not None and not was_overtaken:
                older.overtaken.discard(name)
            for changes, _ in seen or ():
                self.release(changes)

        async def write() -> Stored | None:
            stored, removed = await self.write(apply, undo)
            if removed:
                self.directories_removed()
            self.wake()
            self._written(parent, name, place, reply, is_absent=stored is None)
            return stored

        def confirm(names: Names) -> Stored | None:
            if seen is not None:  # the caller needs the changes
                return None
            return unchanged_name(names, parent, name, entry, checked_at)

        return await written(self.store, lambda: self.spawn(write(), place.mount), confirm)

    def _written(
        self, parent: int, name: bytes, place: Place, reply: StatReply, *, is_absent: bool
    ) -> None:
        """Notes that a name was checked, once its reply is written."""
        is_reported = self.unchecked.covers(parent, name)
        if is_absent and is_reported and self.may_have_ended(parent, place):
            self.spawn(self._look_at_directory(parent), place.mount)
        self.unchecked.checked(parent, name, reply.marks)
        if is_absent and not reply.is_outdated:
            self.negatives.add(parent, name, reply.asked_at)
        else:
            self.negatives.discard(parent, name)

    async def in_thread(self, work: Callable[[], None]) -> None:
        """Runs a sync's work in the thread pool of the syncs."""
        await self._watched.run(None, work)

    async def ask(self, mount: Mount, path: bytes) -> Entry | None:
        """Stats a path at the origin and writes nothing; returns None if the path is absent. Raises
        the connector's errors and DeadlineExceeded."""
        try:
            entry = await self._within_deadline(mount, lambda: mount.connector.stat(path))
        except NotFound:
            entry = None
        except CacheFSError as err:
            mount.health.failed(err, self._clock())
            raise
        mount.health.succeeded()
        return entry

    async def check(self, mount: Mount) -> None:
        """Runs the check of the mount's connector in a thread."""
        await self._within_deadline(mount, mount.connector.check)

    async def check_connector(self, connector: Connector) -> None:
        """Runs the check of a connector that may not belong to a mount yet."""
        await self._within_deadline(None, connector.check)

    async def _within_deadline(self, mount: Mount | None, question: Callable[[], T]) -> T:
        """Runs a request to an origin in a thread. Raises DeadlineExceeded at the deadline. The
        thread ends later, through the timeouts of its connector."""
        until_s = time.monotonic() + self.deadline_s

        def ask() -> T:
            with bounded(until_s):
                return question()

        try:
            async with asyncio.timeout(self.deadline_s):
                return await self._askers.run(mount, ask)
        except TimeoutError as err:
            cause = f"no answer from the origin within {self.deadline_s:g} s"
            raise DeadlineExceeded(cause) from err

    def warn(self, place: Place, name: bytes, err: CacheFSError) -> None:
        """Logs an origin's error, at the limited rate of the mount's health."""
        text = f"{place.mount.shown(place.of(name))}: {err.code}: {err.one_line()}"
        if line := place.mount.health.warning(text, self._clock()):
            log.warning("%s", line)

    def directories_removed(self) -> None:
        """Drops cached paths and deletes the orphaned names in the background."""
        self._tree.forget_paths()
        if not self._gardening and not self.stopping:
            self._gardening = True
            self.spawn(self._collect_orphans())

    async def _collect_orphans(self) -> None:
        try:
            while orphans := self._orphans():
                for ino in orphans:
                    await self._collect(ino)
        finally:
            self._gardening = False

    async def _collect(self, ino: int) -> None:
        await self.write(lambda txn: txn.collect_orphan(ino))

    def _orphans(self) -> list[int]:
        if self.stopping:
            return []
        with self.store.snapshot() as reader:
            found = Names(reader).orphans(ORPHANS_AT_ONCE + len(self._kept))
        return [ino for ino in found if ino not in self._kept]

    def keep(self, changes: Iterable[Change]) -> None:
        """Keeps the names below the directories that `changes` remove until `release`. Called in
        the writer's thread."""
        self._kept.update(ino for _, ino in removed_directories(changes))

    def release(self, changes: Iterable[Change]) -> None:
        """Ends `keep`. The caller, in any thread, then schedules `directories_removed`."""
        self._kept.difference_update(ino for _, ino in removed_directories(changes))

    async def write(
        self, function: Callable[[Transaction], T], undo: Callable[[], None] | None = None
    ) -> T:
        """Runs `function` in a write transaction, which is durable when this returns. If it is not
        committed, the writer's thread calls `undo` before the next write. Raises Unavailable if
        many writes wait for a store that is late (a full queue stops the loop), or if its present
        commit has taken longer than any caller waits."""
        is_full = self.store.waiting > MOST_WAITING and is_late(self.store)
        if is_full or self.store.waits_s > self.deadline_s:
            raise Unavailable("the disk of the metadata store does not answer")
        future = transact(self.store, function)
        if undo is not None:
            future.add_done_callback(lambda done: undo() if done.exception() else None)
        return await asyncio.wrap_future(future)

    def spawn(
        self, work: Coroutine[Any, Any, T], mount: Mount | None = None, *, waits: bool = False
    ) -> asyncio.Task[T]:
        """Starts a task that this object owns; its unexpected errors are logged. `mount` is the
        mount to whose origin the task sends requests. `close` does not wait for one that
        `waits`, which may sleep for long."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = mount
        if waits:
            self._waiting.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        self._waiting.discard(task)
        if task.cancelled():
            return
        err = task.exception()
        if err is not None and not isinstance(err, CacheFSError):
            log.error("unexpected failure in the master", exc_info=err)

    async def finish_with(self, mount: Mount) -> None:
        """Waits, up to CLOSE_WAIT_S, until no task uses the origin of a removed mount."""
        if asking := [task for task, of in self._tasks.items() if of is mount]:
            await asyncio.wait(asking, timeout=CLOSE_WAIT_S)

    def is_held(self, directory: int) -> bool:
        """Returns whether the mount table holds the directory, even if its origin lacks it."""
        return self._tree.is_held(directory)

    @property
    def now(self) -> float:
        return self._clock()

    async def close(self) -> None:
        """Refuses new requests, waits up to CLOSE_WAIT_S for tasks, then cancels them. A thread
        that hangs in a connector is abandoned: the closed store refuses its writes."""
        self.stopping = True
        for task in self._waiting:
            task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_WAIT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._listers.close()
        self._watched.close()
        self._askers.close()
