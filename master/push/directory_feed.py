"""The rounds over the directories of one source whose store has the times of their last changes.

Each round requests from the store the time of each directory of which a name is known. A
directory that changed is marked as unchecked: its names are listed again. A change of a file that
leaves the names as they are, as an append, changes no directory.

Several requests are in progress at a time; together they use at most a share of a core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from cachefs.core.errors import CacheFSError, NotADirectory, Stale, Throttled
from master.origins.syncer import Syncer
from master.push.look_again import LookAgain
from master.push.work_budget import WorkBudget
from master.state.directory_times import DirectoryTimes
from master.store.base import Store
from master.store.snapshot import Names
from master.tree import Mount, Place, Tree

AT_ONCE: Final = 8  # requests
PAGE: Final = 256  # directories
MAX_DIRECTORIES: Final = 200_000
STAT_S: Final = 0.0005  # of work
PASS_S: Final = 5e-6  # of work, for a directory that may be another source's

Asked = tuple[int, float, Place]  # ino, when it was listed, its place


class DirectoryFeed:
    """The rounds of one source. All methods belong to one event loop."""

    def __init__(
        self, mount: Mount, store: Store, tree: Tree, sync: Syncer, look_again: LookAgain
    ) -> None:
        self._mount = mount
        self._store = store
        self._tree = tree
        self._sync = sync
        self._look_again = look_again
        self._times = DirectoryTimes()
        self._budget = WorkBudget(0.0)

    async def round(self, trusted_from: float) -> int:
        """Requests the time of each directory, and returns how many changed. Names that were
        compared at `trusted_from` or later are trusted. Raises the store's errors, and Throttled
        for more than `MAX_DIRECTORIES`: the next round continues then, or begins again."""
        changed, after, count = 0, 0, 0
        found: list[int] = []  # and not marked yet
        try:
            while page := self._page(after):
                asked = list(self._asked(page))
                count += len(asked)
                if count > MAX_DIRECTORIES:
                    raise Throttled(
                        f"more than {MAX_DIRECTORIES:,} directories of the source are known",
                        remedy="end the poll: cachefs ufs set PATH --push none",
                    )
                await self._pause(STAT_S * len(asked) + PASS_S * len(page))
                found = await self._changed(asked, trusted_from)
                await self._look_again.directories(found)
                changed, after, found = changed + len(found), page[-1], []
        except CacheFSError:
            self._times.abandon_round(found)
            raise
        self._times.end_round()
        return changed

    def _page(self, after: int) -> list[int]:
        """Returns the next directories of which a name is known."""
        with self._store.snapshot() as reader:
            known = Names(reader).known_directories(after, PAGE)
        absent = [ino for ino in self._sync.negatives.directories() if ino > after]
        return sorted({*known, *absent})[:PAGE]

    async def _pause(self, work_s: float) -> None:
        """Waits until some work is free, and takes this much."""
        await asyncio.sleep(self._budget.wait_s(self._now()))
        self._budget.take(work_s, self._now())

    async def _changed(self, asked: Sequence[Asked], trusted_from: float) -> list[int]:
        """Returns the directories whose names have to be compared."""
        times: list[int | None] = []
        for first in range(0, len(asked), AT_ONCE):
            part = asked[first : first + AT_ONCE]
            times += await asyncio.gather(*(self._time(place) for _, _, place in part))
        return [
            ino
            for (ino, listed_at, _), time_ns in zip(asked, times, strict=True)
            if time_ns is not None
            and self._times.changed(ino, time_ns, max(listed_at, trusted_from))
        ]

    def _asked(self, inos: Sequence[int]) -> Iterator[Asked]:
        """Yields the directories of the source."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            for ino in inos:
                try:
                    place = self._tree.directory(names, ino)
                except (Stale, NotADirectory):  # it was removed
                    continue
                if place.mount is self._mount:
                    state = names.directory(ino)
                    yield ino, state.listed_at if state is not None else 0.0, place

    async def _time(self, place: Place) -> int | None:
        """Returns the time of a directory, ns; None if it was removed: then the time of the
        directory above it changed."""
        entry = await self._sync.ask(place.mount, place.path)
        return None if entry is None else entry.names_changed_ns

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
