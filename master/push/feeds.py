"""The feeds of one namespace: which are read, and what their reports do to the sources.

A source has at most one feed. Sources with one queue share its reader, since a queue delivers each
message once. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from cachefs.core.errors import CacheFSError
from cachefs.core.model import UfsSpec
from connectors import registry
from connectors.event_queue import EventQueue
from master.origins.syncer import Syncer
from master.push.directory_feed import DirectoryFeed
from master.push.look_again import LookAgain
from master.push.queue_feed import QueueFeed, Turn
from master.push.rounds import MOST_NAMES, Rounds
from master.push.s3_events import paths_below
from master.push.settings import Kind, Setting, parse, poll_s
from master.state.records import MountRecord
from master.store.base import Store
from master.store.snapshot import Names
from master.store.transaction import Transaction
from master.tree import Mount, Tree

log = logging.getLogger("cachefs.master")

RECORD_S: Final = 600.0  # between two records of a feed that continues
MARGIN_S: Final = 3600.0  # before a queue deletes messages
OPEN_AGAIN_S: Final = 30.0  # after a queue could not be opened


class Key(NamedTuple):
    """What distinguishes the feeds that the master reads. `options`: the credentials are theirs."""

    feed: Setting
    root: int  # of the source; 0: of all sources that have the queue
    options: tuple[tuple[str, str], ...]


class Feeds:
    """The feeds of one namespace."""

    def __init__(
        self,
        store: Store,
        tree: Tree,
        sync: Syncer,
        clock: Callable[[], float],
        on_gap: Callable[[Mount], None],
    ) -> None:
        """`on_gap` is called with a source whose reports may be lost."""
        self._store = store
        self._tree = tree
        self._sync = sync
        self._clock = clock
        self._look_again = LookAgain(store, tree, sync)
        self._rounds = Rounds(self._look_again.names, sync.spawn)
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._recorded: dict[int, float] = {}  # by the root's ino
        self._on_gap = on_gap

    def load(self) -> None:
        """Continues with what an earlier process left unchecked, and starts the feeds."""
        if not self._look_again.load():
            self.lose_all()
        self.follow()

    async def accept(self, mount: Mount, names: Sequence[bytes]) -> None:
        """Handles names, below a source, that its store posted, with those that other posts have
        in between. Returns as `LookAgain.names`, and raises as it does."""
        now = self._clock()
        mount.feed.names_reported(len(names), now)
        try:
            if names:
                await self._rounds.check(mount, names)
        except CacheFSError:
            self.lost(mount)
            raise
        mount.feed.current(now)

    def lost(self, mount: Mount) -> None:
        """Records that reports of a source may be lost: what was checked before is not trusted."""
        if mount.feed.lost(self._clock()):
            log.warning("%s: changes may not have been reported", mount.record.source.url)
            self._on_gap(mount)

    def lose_all(self) -> None:
        """Records that reports of every source may be lost, also those to an earlier process."""
        for mount in self._tree.mounts():
            if mount.record.push:
                self._recorded.pop(mount.root, None)
                mount.feed.lost(self._clock())
                self._on_gap(mount)
                self._sync.spawn(self._record(mount))

    def follow(self) -> None:
        """Starts and ends feeds, so that those run which the mount table has."""
        wanted = _wanted(self._tree.mounts())
        for key in self._running.keys() - wanted:
            self._running.pop(key).cancel()
        for key, mount in wanted.items():
            if key not in self._running:
                self._running[key] = self._sync.spawn(self._run(mount.record, mount), waits=True)

    async def _run(self, record: MountRecord, mount: Mount) -> None:
        setting = parse(record.push)
        if setting.kind is Kind.POLL:
            await self._poll(mount, poll_s(setting.value))
        else:
            await self._read(record.source, setting)

    async def _read(self, source: UfsSpec, read: Setting) -> None:
        """Reads a queue for all sources that have it."""
        queue = await self._opened(source, read)
        feed = QueueFeed(
            read.value, queue, lambda objects: self._changed(read, objects), self._clock
        )
        restored: list[Mount] = []

        async def done(turn: Turn) -> None:
            if not restored:
                retention_s = await feed.retention_s()
                restored.extend(self._restore(mount, retention_s) for mount in self._of(read))
            if turn.is_complete:
                await self._current(self._of(read), turn.current_at)

        await feed.run(done, lambda err: self._failed(read, err))

    async def _opened(self, source: UfsSpec, read: Setting) -> EventQueue:
        """Returns the queue, once it can be opened: a file that an option names may come later."""
        while True:
            try:
                return await asyncio.to_thread(registry.open_queue, source, read.value)
            except CacheFSError as err:
                self._failed(read, err)
                await asyncio.sleep(OPEN_AGAIN_S)

    async def _changed(self, read: Setting, objects: Sequence[tuple[str, str]]) -> None:
        """Compares the objects in each source that has the queue, some at a time: each part holds
        up the loop. Raises its errors."""
        now = self._clock()
        for mount in self._of(read):
            for first in range(0, len(objects), MOST_NAMES):
                part = objects[first : first + MOST_NAMES]
                names = paths_below(mount.record.source.url, part)
                mount.feed.names_reported(len(names), now)
                await self._look_again.names(mount, names)
                await asyncio.sleep(0)

    def _of(self, read: Setting) -> list[Mount]:
        return [mount for mount in self._tree.mounts() if parse(mount.record.push) == read]

    def _failed(self, read: Setting, err: CacheFSError) -> None:
        for mount in self._of(read):
            _failed(mount, err)

    def _restore(self, mount: Mount, retention_s: float) -> Mount:
        """Trusts what was reported to an earlier process, unless the queue may have deleted
        messages since. Without a record only later names are trusted: the queue may still have
        messages that are older than those which an earlier process took for another source."""
        with self._store.snapshot() as reader:
            kept = Names(reader).feed(mount.root)
        if kept is None or kept.push != mount.record.push:
            mount.feed.lost(self._clock())
            return mount
        mount.feed.restore(kept)
        if self._clock() - kept.current_at > retention_s - min(MARGIN_S, retention_s / 4):
            self.lost(mount)
        return mount

    async def _poll(self, mount: Mount, every_s: float) -> None:
        """Compares the times of a source's directories, round after round."""
        feed = DirectoryFeed(mount, self._store, self._tree, self._sync, self._look_again)
        while True:
            began, start = self._clock(), asyncio.get_running_loop().time()
            try:
                changed = await feed.round(mount.feed.trusts_from(began))
            except CacheFSError as err:
                _failed(mount, err)
            else:
                mount.feed.names_reported(changed, began)
                mount.feed.current(began)
            spent_s = asyncio.get_running_loop().time() - start
            await asyncio.sleep(max(every_s / 2, every_s - spent_s))

    async def _current(self, mounts: Iterable[Mount], at: float) -> None:
        """Records that every report until `at` was handled, now and then in the store too."""
        for mount in mounts:
            mount.feed.current(at)
            if at - self._recorded.get(mount.root, 0.0) >= RECORD_S:
                self._recorded[mount.root] = at
                await self._record(mount)

    async def _record(self, mount: Mount) -> None:
        record = mount.feed.record(mount.record.push)
        put = functools.partial(Transaction.put_feed, root=mount.root, record=record)
        await self._sync.write(put)


def _failed(mount: Mount, err: CacheFSError) -> None:
    if mount.feed.error != (line := err.one_line()):
        log.warning("the feed of %s failed: %s", mount.record.source.url, line)
    mount.feed.failed(line)


def _wanted(mounts: Iterable[Mount]) -> dict[Key, Mount]:
    """Returns the feeds that the master reads. Sources with one queue share its reader, which has
    the options of the first."""
    found: dict[tuple[Setting, int], Mount] = {}
    for mount in sorted(mounts, key=lambda mount: mount.record.path):
        read = parse(mount.record.push)
        if read.kind in (Kind.QUEUE, Kind.POLL):
            found.setdefault((read, mount.root if read.kind is Kind.POLL else 0), mount)
    return {
        Key(read, root, tuple(sorted(mount.record.source.options.items()))): mount
        for (read, root), mount in found.items()
    }
