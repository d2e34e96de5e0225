"""The syncs of one namespace: those under way, and the newest ones that ended.

Bounded: so many at a time, so many directories at a time in all of them together, so many bytes of
changes, of which the oldest lists make room. Nothing is durable: a master that is started again
knows of none. All methods belong to one event loop.
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
KEPT_SYNCS: Final = 64  # that ended
KEPT_BYTES: Final = 48 << 20  # of changes
MAX_PATH_BYTES: Final = 4096


class Syncs:
    """See the module, and `cachefs.core.services.SyncService`."""

    def __init__(
        self, store: Store, tree: Tree, syncer: Syncer, position: Callable[[], int]
    ) -> None:
        """`position`: of the newest event."""
        self._store = store
        self._tree = tree
        self._syncer = syncer
        self._position = position
        self._reports: OrderedDict[int, Report] = OrderedDict()
        self._tasks: dict[asyncio.Task[None], Report] = {}
        self._kept_bytes = 0
        self._computing = threading.Lock()
        self._turns = asyncio.Semaphore(WATCHED_THREADS)
        # Numbers go on behind those of a process before: nobody takes one sync for another.
        self._next = max(1, int(syncer.now))

    def start(self, path: bytes, *, recursive: bool, dry_run: bool) -> SyncReply:
        """Begins one, in the background. Raises BadConfig (a path that cannot be), Throttled (too
        many are under way)."""
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
        """What one found so far. `stop`: it ends here; what is being listed just now is written
        all the same. Raises NotFound."""
        report = self._reports.get(sync)
        if report is None:
            raise NotFound(
                f"no such sync: {sync}", remedy="only the newest ones of this master are kept"
            )
        if stop:
            self._end(report, STOPPED)
        return SyncReply(report.shown(_now_s()), report.changes(after))

    def close(self) -> None:
        """Ends all; who works for them sees that soon."""
        for report in [*self._tasks.values()]:
            self._end(report, STOPPED)

    def __len__(self) -> int:
        """Those under way."""
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
        # A master that closes has no position any more, and nobody who asks for it.
        report.end(state, _now_s(), 0 if self._syncer.stopping else self._position())
        log.info("%s", _line(report.shown(_now_s())))
        ended = [one for one in self._reports.values() if one.ended]
        for one in ended[: max(0, len(ended) - KEPT_SYNCS)]:
            self._kept_bytes -= one.kept_bytes
            del self._reports[one.sync]

    def _room(self, size: int) -> bool:
        """May so many bytes of changes more be kept? Lists of syncs that ended make room."""
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
