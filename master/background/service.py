"""The background syncs of one namespace: begins and ends walks as `BackgroundPlan` decides.

A walk is a sync on demand (`master.manual_sync.run.Run`) with a pace. Owns the tasks of the walks.
The times of complete walks are written to the store within a second; a walk that a restart
interrupted begins again. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.policies import shown
from cachefs.core.units import format_duration
from master.background.pace import SharedBudget, WalkPace
from master.manual_sync.report import DONE, FAILED, STOPPED, Report
from master.manual_sync.run import Run
from master.origins.syncer import Syncer
from master.state.background import (
    BackgroundPlan,
    Ended,
    Event,
    Forget,
    Placed,
    Requested,
    Rules,
    Save,
    SourceId,
    Start,
    Stop,
    Target,
    placed,
)
from master.state.policies import PolicyTable
from master.store.background import load_walks, write_walks
from master.store.base import Store
from master.tree import Mount, Tree

log = logging.getLogger("cachefs.master")

TICK_S: Final = 1.0  # between two looks at the clock, the policies and the mount table
LISTINGS_PER_S: Final = 10.0


class Walk(NamedTuple):
    """A walk in progress."""

    mount: Mount
    report: Report
    pace: WalkPace

    def stop(self) -> None:
        """Ends the walk; its listing in flight is still written."""
        self.report.end(STOPPED, _now_s(), 0)
        self.pace.stop()


class BackgroundSyncs:
    """The walks of one master. `listings_per_s` limits those of one source."""

    def __init__(self, store: Store, tree: Tree, syncer: Syncer, table: PolicyTable) -> None:
        self.listings_per_s = LISTINGS_PER_S
        self._store = store
        self._tree = tree
        self._syncer = syncer
        self._table = table
        with store.snapshot() as reader:
            self._plan = BackgroundPlan(load_walks(reader), random.random)
        self._placed = Placed({}, frozenset())
        self._sources: dict[bytes, SourceId] = {}
        self._own: dict[bytes, float] = {}
        self._walks: dict[Target, Walk] = {}
        self._unsaved: dict[Target, Save | Forget] = {}
        self._budget = SharedBudget()
        self._computing = threading.Lock()
        self._work: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._closed = False

    def start(self) -> None:
        """Begins to walk. Idempotent."""
        if self._work is None:
            self._work = self._syncer.spawn(self._run(), waits=True)

    def request(self, mount: Mount) -> None:
        """Requests one walk of the whole source, soon: for a feed that lost messages. Requests are
        one until their walk begins. A request outlives a restart a second later."""
        self._handle(Requested(_id_of(mount)))
        self._woken.set()

    def wake(self) -> None:
        """Makes the service look at the clock now."""
        self._woken.set()

    def close(self) -> None:
        """Ends all walks; their tasks and threads stop soon afterwards. Idempotent."""
        self._closed = True
        for walk in self._walks.values():
            walk.stop()

    async def _run(self) -> None:
        while not self._closed:
            self._handle(None)
            await self._save()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._woken.wait()
            except TimeoutError:
                continue
            self._woken.clear()

    def _handle(self, event: Event | None) -> None:
        for one in (self._new_rules(), event):
            for action in self._plan.handle(one, self._syncer.now):
                match action:
                    case Start(target):
                        self._begin(target)
                    case Save(target) | Forget(target):
                        self._unsaved.pop(target, None)  # the newest is the last one
                        self._unsaved[target] = action
                    case Stop(target):
                        if target in self._walks:  # else it has ended, which the plan learns next
                            self._walks[target].stop()
        for mount in self._tree.mounts():
            self._show(mount)

    def _new_rules(self) -> Rules | None:
        """Returns the rules if policies or sources changed."""
        table, mounts = self._table, self._tree.mounts()
        sources = {mount.record.path: _id_of(mount) for mount in mounts}
        if sources == self._sources and table.backgrounds is self._own:
            return None
        self._sources, self._own = sources, table.backgrounds
        self._placed = placed(
            sources, self._own, lambda path: table.effective(path).policy.sync_background_s or 0.0
        )
        return Rules(self._placed.rules)

    async def _save(self) -> None:
        """Writes what is to be durable. What could not be written is written later."""
        if not self._unsaved:
            return
        unsaved, self._unsaved = self._unsaved, {}
        try:
            await self._syncer.write(lambda txn: write_walks(txn.writer, unsaved.values()))
        except CacheFSError as err:
            log.warning("the times of background syncs are not saved: %s", err.one_line())
            self._unsaved = unsaved | self._unsaved

    def _begin(self, target: Target) -> None:
        mount = self._tree.root(target.source.root)
        assert mount is not None, "the rules of this moment are of present sources"
        path = mount.record.path if target.path is None else target.path
        left_out = frozenset(self._sources) if target.path is None else self._placed.starts
        report = Report(0, path, _now_s(), lambda size: False, recursive=True, dry_run=False)
        pace = WalkPace(self._budget, self.listings_per_s)
        self._walks[target] = Walk(mount, report, pace)
        run = Run(
            report, self._store, self._tree, self._syncer, pace, self._computing, pace, left_out
        )
        task = self._syncer.spawn(run.run())
        task.add_done_callback(functools.partial(self._ended, target))

    def _ended(self, target: Target, task: asyncio.Task[None]) -> None:
        walk = self._walks.pop(target)
        if not task.cancelled() and (err := task.exception()) is not None:
            walk.report.failed(walk.report.path, CacheFSError(f"it ended unexpectedly: {err!r}"))
        walk.report.end(STOPPED if task.cancelled() else DONE, _now_s(), 0)
        found = walk.report.shown(_now_s())
        changes = found.added + found.replaced + found.gone
        walk.mount.walks.ended(found.directories, changes, found.errors, found.message)
        if self._closed:
            return
        walk.mount.walks.walks += found.state == DONE
        self._handle(Ended(target, found.state == DONE))
        self._woken.set()
        if found.state == FAILED:
            self._warn(walk, found.message, self._plan.retry_at(target))

    def _warn(self, walk: Walk, message: str, retry_at: float) -> None:
        wait_s = max(0.0, retry_at - self._syncer.now)
        text = (
            f"background sync of {shown(walk.report.path)}: {message}; changes there are seen"
            f" late; the next try is in {format_duration(wait_s)}"
        )
        if line := walk.mount.health.warning(text, self._syncer.now):
            log.warning("%s", line)

    def _show(self, mount: Mount) -> None:
        source, walks = _id_of(mount), mount.walks
        walks.last_at, walks.next_at = self._plan.last_at(source), self._plan.next_at(source)
        walks.running = self._plan.running(source)


def _id_of(mount: Mount) -> SourceId:
    return SourceId(mount.root, mount.key)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
