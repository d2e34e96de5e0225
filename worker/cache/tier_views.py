"""The trees of views in one tier: made and changed by threads of its disk, their contents held.
Owned by the loop.

A content of a page is held before its record and its link are made, and fenced in between: nothing
evicts or drops it. It is released after both are removed.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from worker.cache.tree_removals import TreeRemovals
from worker.store import tree_removal, trees
from worker.store.changes import PutView
from worker.store.holds import Hold
from worker.store.records import HELD_READ
from worker.store.tree_removal import RemovedNames
from worker.store.trees import Place
from worker.store.view_page import ViewPage
from worker.store.view_records import NameRecord, ViewRecord
from worker.tier.catalog import Catalog
from worker.tier.contents import Contents, ViewGuard
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk, no_answer

TREE_LIMIT_S: Final = 600.0  # for reading all records
RELEASE_AT_ONCE: Final = 2000

P = ParamSpec("P")
T = TypeVar("T")
_Change = Callable[Concatenate["TierViews", P], Coroutine[Any, Any, T]]


def _continued(change: _Change[P, T]) -> _Change[P, T]:
    """Makes a change that continues if its caller is cancelled."""

    @functools.wraps(change)
    async def begin(self: TierViews, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.until_left(change(self, *args, **kwargs))

    return begin


class TierViews:
    """See the module. All methods raise OSError; a view whose operation failed is applied again."""

    def __init__(
        self, context: TierContext, disk: TierDisk, contents: Contents, catalog: Catalog
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._catalog = catalog
        self._one_change = contents.trees_change
        self._one_record = asyncio.Lock()  # one view is made, or thawed, at a time
        self.removals = TreeRemovals(context.tasks, self)

    @property
    def in_service(self) -> bool:
        """True if the disk of the tier answers."""
        return self._disk.health.in_service

    @property
    def is_ready(self) -> bool:
        """True if the tier knows all its contents, and holds those of views."""
        return self._contents.order_known and self.in_service

    @property
    def losses(self) -> int:
        """A number that changes when records of the tier become doubtful."""
        distrusted = self._disk.directory.header.distrusted
        return distrusted[-1][1] if distrusted else 0

    def guard(self, guard: ViewGuard) -> None:
        """Calls `guard` from now on before contents of views are dropped."""
        self._contents.guard = guard

    async def records(self) -> dict[int, ViewRecord]:
        """Returns the records of all views of the tier."""
        return await self._disk.call(self._disk.directory.index.views)

    async def directories(self, view: int) -> list[int]:
        """Returns the inos of the directories below the top of a tree."""
        index = self._disk.directory.index
        return await self._disk.call(trees.directories, index, view, limit_s=TREE_LIMIT_S)

    @_continued
    async def make(self, view: int, record: ViewRecord) -> None:
        """Records a view and makes its tree, if it has none. A thaw that follows a call without a
        result takes effect after it."""
        directory, writer = self._disk.directory, self._disk.writer
        async with self._one_record:
            await self._disk.threads.run(trees.make, directory, writer, view, record)

    @_continued
    async def replace(
        self, former: int, former_record: ViewRecord, view: int, record: ViewRecord
    ) -> None:
        """Begins another tree, in place of one that is removed from now on."""
        directory, writer = self._disk.directory, self._disk.writer
        thawed = former, msgspec.structs.replace(former_record, thawed=True)
        async with self._one_change:
            await self._disk.threads.run(trees.replace, directory, writer, thawed, view, record)
            self.removals.start(*thawed, self._context.wall_s())

    @_continued
    async def thaw(self, view: int, record: ViewRecord, last_use_s: float | None) -> None:
        """Records that a view is thawed, and begins the removal of its tree."""
        change = PutView(view, record)
        async with self._one_record, self._one_change:
            await self._disk.threads.run(self._disk.writer.write, [change])
            self.removals.start(view, record, self._context.wall_s(), last_use_s)

    async def until_removed(self, concerns: Callable[[ViewRecord], bool]) -> None:
        """Waits until the trees of such views are removed, also that of a thaw for which nobody
        waits any more."""
        await self._until_thawed()
        await self.removals.until_over(concerns)

    @_continued
    async def _until_thawed(self) -> None:
        """Waits for the thaws that have begun."""
        async with self._one_record:
            pass

    async def put(self, view: int, record: ViewRecord) -> None:
        """Replaces the record of a view; returns once that is committed."""
        await self._disk.call(self._disk.writer.write, [PutView(view, record)])

    async def open_top(self, view: int, path: Sequence[bytes] = ()) -> int:
        """Returns a descriptor (O_PATH) of a directory in a tree, which the caller closes."""
        directory = self._disk.directory
        return await self._disk.call(trees.open_top, directory, view, path, discard=os.close)

    async def differs(self, page: ViewPage) -> bool:
        """Returns whether the tree differs from the page."""
        return await self._disk.call(trees.differs, self._disk.directory, page)

    @_continued
    async def apply(self, page: ViewPage) -> list[bytes]:
        """Changes the tree to match the page; returns the order keys of the files that are
        not complete in this tier, which it does not show. No cover shows the tree in between."""
        keys = [record.content for record in page.names.values() if record.content]
        directory, writer = self._disk.directory, self._disk.writer
        # The fences first: who drops a content fences it, then waits for this lock.
        async with self._catalog.fenced(keys), self._one_change:
            new = self._contents.hold_for_view(keys)
            # One that gets its first record in between is not held, so it is not shown either.
            not_held = frozenset(key for key in keys if key not in self._contents.order)
            try:
                applied = await self._disk.threads.run(
                    trees.apply, directory, writer, page, not_held
                )
            except OSError:
                await self._release_unrecorded(page, new)
                raise
            missing = {page.names[key].content for key in applied.missing}
            await self._release([*applied.released, *(key for key in new if key in missing)])
        return applied.missing

    async def _release_unrecorded(self, page: ViewPage, keys: Sequence[bytes]) -> None:
        """Releases contents of a page that could not be applied, but for those of its records."""
        index = self._disk.directory.index
        names = await self._disk.threads.run(
            index.names, page.view, page.ino, page.after, page.upto
        )
        recorded = {record.content for record in names.values()}
        await self._release([key for key in keys if key not in recorded])

    async def until_left(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of work at the disk, which continues if the disk hangs (then raises
        OSError) or the caller is cancelled."""
        done = await self._disk.unless_left(self._context.tasks.start(_caught(work)), None)
        result: T | OSError = done.result() if done is not None else no_answer()
        if isinstance(result, OSError):
            raise result
        return result

    async def finish_directory(self, view: int, path: Sequence[bytes], record: NameRecord) -> None:
        """Gives a directory, whose names are complete, its attributes."""
        directory = self._disk.directory
        await self._disk.call(trees.finish_directory, directory, view, path, record)

    async def watch(self, view: int, most: int) -> None:
        """Watches the use of a tree of `most` directories at most, from now on. Raises CannotWatch,
        too."""
        directory = self._disk.directory
        watch, index = directory.tree_watches.watch, directory.index
        await self._disk.call(watch, directory.views_fd, index, view, most, limit_s=TREE_LIMIT_S)

    async def was_used(self, view: int) -> bool:
        """Returns whether something in a watched tree was opened since the last call, or may have
        been. Raises CannotWatch, too."""
        directory = self._disk.directory
        return await self._disk.call(directory.tree_watches.was_used, directory.views_fd, view)

    async def unwatch(self, view: int) -> None:
        """Ends the watches of a tree, if it has any."""
        await self._disk.call(self._disk.directory.tree_watches.forget, view)

    @_continued
    async def empty(self, view: int) -> None:
        """Unlinks all names of a tree at once, so that its covers show nothing."""
        async with self._one_change:
            await self._disk.threads.run(trees.empty, self._disk.directory, view)

    @_continued
    async def remove(
        self, view: int, note: Callable[[RemovedNames], None], last_use_s: float | None = None
    ) -> None:
        """Removes a tree and its record, and releases its contents as last used at that time (wall
        clock; None: now), in batches, with a call of `note` after each."""
        if not self.in_service:
            raise no_answer()
        directory, writer = self._disk.directory, self._disk.writer
        await self._disk.threads.run(directory.tree_watches.forget, view)
        batches = tree_removal.remove(directory, writer, view)
        while True:
            async with self._one_change:
                removed = await self._disk.threads.run(next, batches, None)
                if removed is None:
                    return
                await self._release(removed.contents, last_use_s)
            note(removed)

    async def find(self, keys: Sequence[bytes]) -> list[Place]:
        """Returns the places of contents in the trees."""
        directory = self._disk.directory
        return await self._disk.call(trees.find, directory, frozenset(keys), limit_s=TREE_LIMIT_S)

    @_continued
    async def withdraw(self, places: Sequence[Place]) -> None:
        """Removes contents from the trees, which no cover shows, and releases them."""
        directory, writer = self._disk.directory, self._disk.writer
        async with self._one_change:
            await self._disk.threads.run(trees.withdraw, directory, writer, places)
            await self._release([one.record.content for one in places])

    async def _release(self, keys: Sequence[bytes], last_use_s: float | None = None) -> None:
        """Returns contents to admission, or to the load job that holds them. Called while no other
        change of trees runs, which could hold them again."""
        use_s = self._context.wall_s() if last_use_s is None else int(last_use_s)
        for start in range(0, len(keys), RELEASE_AT_ONCE):
            some = keys[start : start + RELEASE_AT_ONCE]
            self._contents.end_view(some, await self._holds_of(some), use_s)

    async def _holds_of(self, keys: Sequence[bytes]) -> dict[bytes, Hold]:
        """Returns the holds by load jobs; none if the index cannot be read. Nothing else would
        release the contents, whose names are gone."""
        try:
            records = await self._disk.threads.run(self._disk.directory.index.get_all, keys)
        except OSError as err:
            self._catalog.disk_fault(err)
            return {}
        return {
            key: Hold(record.held_until_s, bool(record.flags & HELD_READ))
            for key, record in zip(keys, records, strict=True)
            if record is not None and record.held_until_s
        }


async def _caught(work: Coroutine[Any, Any, T]) -> T | OSError:
    """Returns the result, or the error: the caller may have ended when it occurs."""
    try:
        return await work
    except OSError as err:
        return err
