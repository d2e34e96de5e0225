"""Checks of names that may have changed at their origin. All methods belong to one event loop.

A few names are compared at once. Of many, and while their origin is down, each is recorded as
unchecked and announced: from then on the store does not answer for it without its origin. They are
compared at a limited rate. Many of one directory gather for a moment first: one listing compares
them all.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Final

from cachefs.core.errors import CacheFSError, Stale, Throttled
from connectors.base import order_key
from master.origins.syncer import Syncer
from master.push.recent_reports import RecentReports
from master.push.work_budget import STAT_S, WorkBudget, listing_cost_s, most_worth_listing
from master.state.health import is_down
from master.state.unchecked import ALL, MAX_NAMES
from master.store.base import Store
from master.store.snapshot import Names
from master.store.transaction import Transaction
from master.tree import Mount, Place, Tree

AT_ONCE: Final = 16  # requests to origins
STEP: Final = 100  # names of a directory that are compared one by one in each turn
PAGE: Final = 4000  # names
MOST_RECORDS: Final = 4 * MAX_NAMES
CROWD: Final = 8  # names of one directory within a second: a listing is expected to compare them
GATHER_S: Final = 0.25  # before all directories have a turn; twice as long each time, while
LONGEST_GATHER_S: Final = 2.0  # further names are recorded
LOOK_S: Final = 20e-6  # of work, for a directory that has a turn
RETRY_S: Final = 5.0  # after an origin's error

Known = tuple[int, bytes, Place]


class LookAgain:
    """The checks of one namespace."""

    def __init__(self, store: Store, tree: Tree, sync: Syncer) -> None:
        self._store = store
        self._tree = tree
        self._sync = sync
        self._unchecked = sync.unchecked
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._budget = WorkBudget(0.0)
        self._reports = RecentReports()
        self._records = 0  # written since the last `_clean`
        self._rest: asyncio.Task[None] | None = None

    def load(self) -> bool:
        """Reads the names that an earlier process left unchecked, and continues with them. Returns
        False if they are too many: the records of names that were compared are among them."""
        with self._store.snapshot() as reader:
            found = Names(reader).unchecked(MOST_RECORDS)
        marks = [self._unchecked.mark(*one) for one in found]
        self._records = len(found)
        self._start()
        return len(found) < MOST_RECORDS and None not in marks

    async def names(self, mount: Mount, paths: Sequence[bytes]) -> None:
        """Compares the names at these paths below a source with the origin, or records that the
        store does not answer for them. Returns when that, and each change, is durable and
        announced. Names of which nothing is known cost nothing, but their directories may have
        ended with them. Raises Throttled if too many names are unchecked."""
        found, emptied = dict[bytes, list[Known]](), dict[tuple[int, bytes], Known]()
        with self._store.snapshot() as reader:
            names = Names(reader)
            for path in paths:
                steps = self._steps(names, mount, path)
                if doubtful := self._doubtful(names, steps):
                    found[path] = doubtful
                elif (directory := self._emptied(names, steps)) is not None:
                    emptied[directory[:2]] = directory
            crowded = self._crowded(names, [doubtful[-1][0] for doubtful in found.values()])
        now, is_up = self._now(), not mount.health.down
        soon, later = dict[bytes, list[Known]](), list[Known]()
        for path, doubtful in found.items():
            is_alone = doubtful[-1][0] not in crowded
            if is_up and is_alone and self._budget.take(STAT_S * len(doubtful), now):
                soon[path] = doubtful
            else:
                later += doubtful
        later += [one for one in emptied.values() if not self._mark_again(*one[:2])]
        if later:
            await self._mark(later)
        if soon:
            await self._compare_all(mount, soon)
        if len(self._unchecked):  # also those that only a failed request has marked
            self._start()

    async def directories(self, inos: Sequence[int]) -> None:
        """Records that the store does not answer for the names of these directories, which are then
        listed. Returns when that is durable. Raises Throttled as `names` does."""
        if inos:
            await self._record([(ino, ALL) for ino in inos], [])

    def _crowded(self, names: Names, directories: Sequence[int]) -> set[int]:
        """Returns the directories of many reported names, if they were listed before: the size of
        others is not known."""
        self._reports.add(directories, self._now())
        crowded = self._reports.crowded(directories, CROWD)
        return {one for one in crowded if names.directory(one) is not None}

    async def _mark(self, later: Sequence[Known]) -> None:
        reported = [(directory, name) for directory, name, _ in later]
        await self._record(reported, reported)

    async def _record(
        self, reported: Sequence[tuple[int, bytes]], announced: Sequence[tuple[int, bytes]]
    ) -> None:
        marks = [(directory, self._unchecked.mark(directory, name)) for directory, name in reported]
        recorded = [(directory, name) for directory, name in marks if name is not None]

        def write(txn: Transaction) -> None:
            txn.mark_unchecked(recorded)
            for directory, name in announced:
                txn.announce(directory, name)

        await self._sync.write(write)
        self._sync.wake()
        self._records += len(recorded)
        self._start()
        if len(recorded) < len(marks):
            raise Throttled(f"more than {MAX_NAMES} names are to be compared with their origins")

    async def _compare_all(self, mount: Mount, names: Mapping[bytes, Sequence[Known]]) -> None:
        """Compares the names at these paths, each after the names on its path. Raises the store's
        first error after all have ended."""
        works = [self._name(mount, path, doubtful) for path, doubtful in names.items()]
        for error in await asyncio.gather(*works, return_exceptions=True):
            if error is not None:
                raise error

    async def _name(self, mount: Mount, path: bytes, doubtful: Sequence[Known]) -> None:
        """Compares a name, then the directories above that may have ended with it."""
        for directory, name, place in doubtful:
            if place.of(name) != path:
                async with self._turns:
                    await self._compare(directory, name, place)
        while path:
            async with self._turns:
                with self._store.snapshot() as reader:
                    found = self._known(Names(reader), mount, path)
                if found is None or not await self._compare(*found):
                    return
            path = path.rpartition(b"/")[0]

    async def _compare(self, parent: int, name: bytes, place: Place) -> bool:
        """Compares one name; returns whether its directory may have ended with it. A name that the
        origin does not tell is not trusted from then on: its next access checks it. It is recorded
        instead while the origin is down, since it may have been the last of a directory, and while
        an older listing may write it."""
        try:
            stored, changes, _ = await self._sync.stat_anew(parent, name, place)
        except Stale:  # a later reply removed the directory
            return False
        except CacheFSError as err:
            self._sync.warn(place, name, err)
            if not is_down(err) and self._sync.listing(parent) is None:
                await self._distrust(parent, name)
            elif not self._mark_again(parent, name):
                await self._mark([(parent, name, place)])
            return False
        self._sync.release(changes)
        self._sync.directories_removed()
        # Also if another request has removed the name.
        return stored is None and self._sync.may_have_ended(parent, place)

    async def _distrust(self, parent: int, name: bytes) -> None:
        """Makes what the store has of a name stale."""
        self._unchecked.mark(parent, name)
        self._sync.negatives.discard(parent, name)
        await self._sync.write(lambda txn: _distrust(txn, parent, name))
        self._sync.wake()
        self._unchecked.checked(parent, name, self._unchecked.marks)

    def _known(self, names: Names, mount: Mount, path: bytes) -> Known | None:
        """Returns the first name on the path that is not known as a directory, or the last one;
        None if nothing is known of that name."""
        return self._last(names, self._steps(names, mount, path))

    def _last(self, names: Names, steps: Sequence[tuple[int, bytes]]) -> Known | None:
        if not steps:
            return None
        at, name = steps[-1]
        if not (self._sync.is_asked(at, name) or self._is_known(names, at, name)):
            return None
        return at, name, self._tree.directory(names, at)

    def _doubtful(self, names: Names, steps: Sequence[tuple[int, bytes]]) -> list[Known]:
        """Returns the directories on the path about which a request is in flight, as its reply
        may be older than a change that was reported now, and the name of `_known`."""
        above = [
            (at, name, self._tree.directory(names, at))
            for at, name in steps[:-1]
            if self._sync.is_asked(at, name)
        ]
        last = self._last(names, steps)
        return above if last is None else [*above, last]

    def _emptied(self, names: Names, steps: Sequence[tuple[int, bytes]]) -> Known | None:
        """Returns the directory of a name of which nothing is known, if the store has no name in
        it: in a store of keys it may have ended with that one."""
        if len(steps) < 2 or names.raw_children(steps[-1][0], b"", None, 1):
            return None
        at, name = steps[-2]
        place = self._tree.directory(names, at)
        if place.mount.connector.capabilities.directories:
            return None
        return at, name, place

    def _mark_again(self, directory: int, name: bytes) -> bool:
        """Returns whether a name is recorded already; then a request in flight counts no more. So
        each object that is added to a directory costs no record of its own."""
        is_marked = self._unchecked.covers(directory, name)
        if is_marked:
            self._unchecked.mark(directory, name)
        return is_marked

    def _steps(self, names: Names, mount: Mount, path: bytes) -> list[tuple[int, bytes]]:
        """Returns (directory, name) of the names on the path, to the first that is not known as a
        directory. Nothing if another source has the path; a directory above its root is a part of
        this source."""
        steps: list[tuple[int, bytes]] = []
        at = mount.root
        for name in path.split(b"/"):
            held = self._tree.held_child(at, name)
            if held is not None and self._tree.root(held) is not None:
                return []
            steps.append((at, name))
            stored = names.dentry(at, order_key(name, True))
            if stored is None:
                break
            at = stored.inode.ino
        return steps

    def _is_known(self, names: Names, directory: int, name: bytes) -> bool:
        """Returns whether the store answers for a name."""
        if names.directory(directory) is not None:
            return True
        was_asked = self._sync.negatives.checked_at(directory, name) > 0
        return was_asked or names.child(directory, name) is not None

    def _start(self) -> None:
        if self._rest is None or self._rest.done():
            self._rest = self._sync.spawn(self._work(), waits=True)

    async def _work(self) -> None:
        """Compares the unchecked names until there are none, also those that are recorded while the
        records of others are deleted."""
        while len(self._unchecked):
            await self._compare_recorded()
            await self._clean()

    async def _compare_recorded(self) -> None:
        gather_s, resting = GATHER_S, dict[Mount, float]()
        while directories := await self._gathered(gather_s):
            gather_s = min(2 * gather_s, LONGEST_GATHER_S)
            for directory in directories:
                self._budget.spend(LOOK_S, self._now())
                await asyncio.sleep(self._budget.wait_s(self._now()))
                await self._turn(directory, resting)
                if self._records > 2 * MAX_NAMES:
                    await self._clean()

    async def _gathered(self, gather_s: float) -> list[int]:
        """Returns the directories with names to compare, after a pause in which further names of
        them are recorded; nothing if there are none."""
        if len(self._unchecked):
            await asyncio.sleep(gather_s)
        return self._unchecked.directories()

    async def _turn(self, directory: int, resting: dict[Mount, float]) -> None:
        """Compares names of a directory. After an error, those of its source rest for `RETRY_S`."""
        place, names = self._place(directory), self._unchecked.names(directory)
        if place is None or not names or self._now() < resting.get(place.mount, 0.0):
            return
        has_failed = False
        try:
            await self._directory(directory, place, names)
        except CacheFSError:  # a reader of a name there gets the error, and logs it
            has_failed = True
        if has_failed or place.mount.health.down:
            resting[place.mount] = self._now() + RETRY_S

    def _place(self, directory: int) -> Place | None:
        """Returns the place of a directory. If it was removed, returns None and forgets its
        names."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            try:
                if names.inode(directory) is not None:
                    return self._tree.directory(names, directory)
            except Stale:  # one above it was removed
                pass
        self._unchecked.forget(directory)
        return None

    async def _directory(self, directory: int, place: Place, names: Sequence[bytes]) -> None:
        most = None if ALL in names else most_worth_listing(len(names))
        size = await self._size(directory, most)
        if most is None or size <= most:
            self._budget.spend(listing_cost_s(size), self._now())
            await self._list(directory, place)
            return
        step, marks = names[:STEP], self._unchecked.marks
        self._budget.spend(STAT_S * len(step), self._now())
        await self._compare_all(place.mount, {place.of(name): () for name in step})
        for name in step:  # what is left is not known any more, or not trusted
            self._unchecked.checked(directory, name, marks)

    async def _list(self, directory: int, place: Place) -> None:
        listing = await self._sync.list_anew(directory, place)
        while not listing.done:
            await listing.progress(RETRY_S)
        if listing.error is not None:
            raise listing.error

    async def _size(self, directory: int, most: int | None) -> int:
        """Returns how many names the store has there; stops above `most`."""
        size, after = 0, b""
        while most is None or size <= most:
            with self._store.snapshot() as reader:
                found = Names(reader).raw_children(directory, after, None, PAGE)
            size += len(found)
            if len(found) < PAGE:
                break
            after = found[-1][0][8:]
            await asyncio.sleep(0)
        return size

    async def _clean(self) -> None:
        """Deletes the records of names that were compared."""
        with self._store.snapshot() as reader:
            found = Names(reader).unchecked(MOST_RECORDS)
        ended = [mark for mark in found if not self._unchecked.covers(*mark)]
        for first in range(0, len(ended), PAGE):
            part = ended[first : first + PAGE]
            part = [mark for mark in part if not self._unchecked.covers(*mark)]  # recorded again
            await self._sync.write(functools.partial(Transaction.end_unchecked, marks=part))
        self._records = len(found) - len(ended)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _distrust(txn: Transaction, parent: int, name: bytes) -> None:
    for is_directory in (False, True):
        txn.distrust(parent, order_key(name, is_directory))
    txn.distrust_directory(parent)
    txn.announce(parent, name)
