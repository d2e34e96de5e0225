"""The trees of thawed views in one tier, which are removed while the paths go through FUSE again.
Owned by the loop.

The record of such a view is marked: after a crash, the next start removes the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from cachefs.core.policies import shown
from worker.runtime.tasks import Tasks
from worker.store.tree_removal import RemovedNames
from worker.store.view_records import ViewRecord

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0  # after an error of the disk


class RemovableTrees(Protocol):
    """The trees of a tier (`worker.cache.tier_views`)."""

    async def remove(
        self, view: int, note: Callable[[RemovedNames], None], last_use_s: float | None
    ) -> None:
        """Removes a tree; calls `note` after each batch. Raises OSError; may be called again."""


class TreeRemoval:
    """The removal of one tree. `files`, `size_bytes`: what is left. `since_s`: its beginning;
    `last_use_s`: of its contents, None: of each its release (wall clock)."""

    def __init__(self, record: ViewRecord, since_s: float, last_use_s: float | None) -> None:
        self.record = record
        self.since_s = since_s
        self.last_use_s = last_use_s
        self.files = record.files
        self.size_bytes = record.size_bytes
        self.over = asyncio.Event()

    def note(self, removed: RemovedNames) -> None:
        self.files = max(0, self.files - removed.files)
        self.size_bytes = max(0, self.size_bytes - removed.size_bytes)


class TreeRemovals:
    """See the module."""

    def __init__(self, tasks: Tasks, trees: RemovableTrees) -> None:
        self._tasks = tasks
        self._trees = trees
        self._running: dict[int, TreeRemoval] = {}

    def start(
        self, view: int, record: ViewRecord, now_s: float, last_use_s: float | None = None
    ) -> None:
        """Begins the removal of the tree of a view, whose record is marked as thawed."""
        if view not in self._running:
            removal = self._running[view] = TreeRemoval(record, now_s, last_use_s)
            self._tasks.start(self._run(view, removal))

    async def _run(self, view: int, removal: TreeRemoval) -> None:
        while True:
            try:
                await self._trees.remove(view, removal.note, removal.last_use_s)
                break
            except OSError as err:
                path = shown(removal.record.path)
                log.warning("the tree of %s is not removed yet: %s", path, err.strerror or err)
            await asyncio.sleep(RETRY_S)
        del self._running[view]
        removal.over.set()

    def all(self) -> list[TreeRemoval]:
        """Returns the removals that are not over."""
        return [*self._running.values()]

    async def until_over(self, concerns: Callable[[ViewRecord], bool]) -> None:
        """Waits until the trees of such views are removed, those of this moment."""
        for removal in self.all():
            if concerns(removal.record):
                await removal.over.wait()
