"""The syncs of one namespace: the running ones and the newest ended ones.

The number of running syncs, their total of directories in flight and the bytes of recorded changes
are limited; lists of ended syncs are dropped first. Nothing is durable: a restart of the
master loses all syncs. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import BadConfig, CacheFSError, NotFound, Throttled
from cachefs.core.messages import SyncReply
from cachefs.core.policies import normal, shown
from cachefs.core.syncs import SyncStatus
from connectors import keys
from master.manual_sync.report import DONE, STOPPED, Report
from master.manual_sync.run import Run
from master.origins.syncer import WATCHED_THREADS, Syncer
from master.store.base import Store
from master.tree import Tree

log = logging.getLogger("cachefs.master")

MAX_RUNNING: Final = 16
KEPT_SYNCS: Final = 64  # ended ones
KEPT_BYTES: Final = 48 << 20  # of changes
MAX_PATH_BYTES: Final = 4096


class Syncs:
    """The running and ended syncs; implements `cachefs.core.services.SyncService`."""

    def __init__(
        self, store: Store, tree: Tree, syncer: Syncer, position: Callable[[], int]
    ) -> None:
        """`position` returns the position of the newest event."""
        self._store = store
        self._tree = tree
        self._syncer = syncer
        self._position = position
        self._reports: OrderedDict[int, Report] = OrderedDict()
        self._tasks: dict[asyncio.Task[None], Report] = {}
        self._kept_bytes = 0
        self._computing = threading.Lock()
        self._turns = asyncio.Semaphore(WATCHED_THREADS)
        # Starting at the wall time keeps sync numbers unique across restarts of the master.
        self._next = max(1, int(syncer.now))

    def start(self, path: bytes, *, recursive: bool, dry_run: bool) -> SyncReply:
        """Starts a sync in the background. Raises BadConfig (impossible path) or Throttled."""
        path = normal(path)
        if len(path) > MAX_PATH_BYTES or not keys.visible_path(path):
            raise BadConfig("nothing can have this path", path=shown(path)[:300])
        if len(self._tasks) >= MAX_RUNNING:
            raise Throttled(f"{MAX_RUNNING} syncs are under way", remedy="wait until one ends")
        report = Report(
            self._next, path, _now_s(), self._room, recursive=recursive, dry_run=dry_run
        )
        self._next += 1
        self._reports[report.sync] = report
        run = Run(report, self._store, self._tree, self._syncer, self._turns, self._computing)
        task = self._syncer.spawn(run.run())
        self._tasks[task] = report
        task.add_done_callback(self._ended)
        return SyncReply(report.shown(_now_s()))

    def get(self, sync: int, after: int, *, stop: bool) -> SyncReply:
        """Returns a sync's results so far. `stop` ends the sync, but its listings in flight are
        still written. Raises NotFound."""
        report = self._reports.get(sync)
        if report is None:
            raise NotFound(
                f"no such sync: {sync}", remedy="only the newest ones of this master are kept"
            )
        if stop:
            self._end(report, STOPPED)
        return SyncReply(report.shown(_now_s()), report.changes(after))

    def close(self) -> None:
        """Ends all running syncs; their tasks and threads stop soon afterwards."""
        for report in [*self._tasks.values()]:
            self._end(report, STOPPED)

    def __len__(self) -> int:
        """Returns the number of running syncs."""
        return len(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        report = self._tasks.pop(task)
        if task.cancelled():
            self._end(report, STOPPED)
        elif (err := task.exception()) is not None:
            report.failed(report.path, CacheFSError(f"it ended unexpectedly: {err!r}"))
        self._end(report, DONE)

    def _end(self, report: Report, state: str) -> None:
        if report.ended:
            return
        # A closing master has no event position, and no client can request it any more.
        report.end(state, _now_s(), 0 if self._syncer.stopping else self._position())
        log.info("%s", _line(report.shown(_now_s())))
        ended = [one for one in self._reports.values() if one.ended]
        for one in ended[: max(0, len(ended) - KEPT_SYNCS)]:
            self._kept_bytes -= one.kept_bytes
            del self._reports[one.sync]

    def _room(self, size: int) -> bool:
        """Reserves `size` bytes for changes, dropping the lists of ended syncs, oldest first, if
        needed. Returns whether it succeeded."""
        while self._kept_bytes + size > KEPT_BYTES:
            oldest = next((r for r in self._reports.values() if r.ended and r.kept_bytes), None)
            if oldest is None:
                return False
            self._kept_bytes -= oldest.kept_bytes
            oldest.forget_changes()
        self._kept_bytes += size
        return True


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _line(sync: SyncStatus) -> str:
    what = " (dry run)" if sync.dry_run else ""
    return (
        f"sync of {shown(sync.path)}{what}: {sync.state} after {sync.elapsed_s:.1f} s: "
        f"{sync.names} names in {sync.directories} directories, {sync.added} added, "
        f"{sync.replaced} replaced, {sync.gone} gone, {sync.errors} errors"
    )
