"""The live contents of a tier: look-ups, holds, commits and drops. Owned by the loop.

A content is looked up in the tier once, for any number of concurrent opens. Contents that are being
removed (evicted, dropped, swept) are fenced: an open of one waits, then finds nothing.

If the disk cannot be queried, the entry is created detached: its reads bypass the cache and nothing
is recorded. Otherwise pages of an older file could be mistaken for holes of a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from cachefs.core.errors import lacks_descriptors
from cachefs.core.model import Origin
from cachefs.core.pages import PageMap
from worker.store.changes import HoldFile, PutFile, TouchFile
from worker.store.holds import Hold
from worker.store.lookup import LookupResult, lookup_content
from worker.store.records import HELD_READ, FileRecord
from worker.store.removal import Dropped, MayGoOn, always, drop
from worker.tier.contents import Contents
from worker.tier.context import TierContext
from worker.tier.disk import TierDisk, no_answer
from worker.tier.entry import Entry, stray
from worker.tier.entry_state import Event, State, Stories, of_lookup
from worker.tier.freed_counts import FreedCounts
from worker.tier.unlinked import UnlinkedOpenFiles

log = logging.getLogger(__name__)


class Catalog:
    """Entries by content key (36 bytes)."""

    def __init__(
        self, context: TierContext, disk: TierDisk, contents: Contents, leftovers: UnlinkedOpenFiles
    ) -> None:
        self._context = context
        self._disk = disk
        self._contents = contents
        self._leftovers = leftovers
        self.stories = Stories()
        self._live: dict[bytes, Entry] = {}
        self._detached: set[Entry] = set()  # those that still have a descriptor
        self._fences: dict[bytes, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._frozen = False
        # Called with the key of a content whose pages are submitted to the index
        self.on_recorded: Callable[[bytes], None] = lambda key: None

    def __len__(self) -> int:
        return len(self._live) + len(self._detached)

    def live(self, key: bytes) -> Entry | None:
        return self._live.get(key)

    def entries(self) -> list[Entry]:
        """The live ones."""
        return [*self._live.values()]

    def is_live(self, key: bytes) -> bool:
        return key in self._live or key in self._fences

    def is_absent(self, key: bytes) -> bool:
        """Known without a look at the disk: nothing of it is cached."""
        return (
            self._contents.order_known and not self.is_live(key) and key not in self._contents.order
        )

    # ---- coming ----

    def open_nowait(self, origin: Origin, key: bytes) -> Entry | None:
        """Returns the entry of a content that is live, or of which nothing is cached; None if the
        disk must be queried."""
        entry = self._live.get(key)
        if entry is None:
            if not self.is_absent(key):
                return None
            entry = self._live[key] = Entry(origin, key, State.EMPTY)
        elif entry.looking is not None or entry.detached or key in self._fences:
            return None
        entry.users += 1
        return entry

    async def open(self, origin: Origin, key: bytes) -> Entry:
        """Returns the live entry, held for the caller (`users`; the caller calls `leave`).
        Cancelled: the look-up continues for other callers, nothing is held."""
        while (fence := self._fences.get(key)) is not None:
            if not await self._ended([fence]):
                return stray(origin, key)
        entry = self._live.get(key)
        if entry is None or (entry.detached and self._disk.health.in_service):
            entry = self._new(origin, key)  # the other one is from before the disk answered again
        elif entry.origin.rule != origin.rule:
            entry.origin = origin  # policies say something else by now
        entry.users += 1
        try:
            if entry.looking is not None:
                await asyncio.shield(entry.looking)
        except BaseException:
            self.leave(entry)
            raise
        return entry

    def _new(self, origin: Origin, key: bytes) -> Entry:
        """Returns the entry of a content that is not live, and starts its lookup if needed."""
        if self.is_absent(key):
            state = State.EMPTY
        else:
            state = State.LOOKING if self._disk.health.in_service else State.DETACHED
        entry = self._live[key] = Entry(origin, key, state)
        if state is State.LOOKING:
            entry.looking = self._context.tasks.start(self._look(entry))
        return entry

    def _move(self, entry: Entry, event: Event) -> None:
        entry.state = self.stories.move(entry.key, entry.state, event, self._context.monotonic())

    async def _look(self, entry: Entry) -> None:

        def call() -> LookupResult:
            try:
                return lookup_content(
                    self._disk.directory,
                    self._disk.writer,
                    entry.origin,
                    entry.key,
                    self._disk.epoch,
                )
            finally:
                self._disk.wake.call(self.leave, entry)

        entry.users += self._disk.health.in_service  # for the thread, which may be late
        try:
            looked = await self._disk.call(call, discard=LookupResult.close, limit_s=None)
        except OSError as err:
            self.disk_fault(err)
            self._move(entry, Event.DISK_FAILED)
            looked = LookupResult()
        else:
            self._move(entry, of_lookup(looked.fd >= 0, published=looked.published))
        entry.looking = None
        self._take_in(entry, looked)
        self.retire_if_unused(entry)

    def _take_in(self, entry: Entry, looked: LookupResult) -> None:
        self._contents.grow_cached(looked.grown_bytes)
        self._context.counters.verified += looked.verified
        self._context.counters.bad_pages += looked.bad_pages
        if looked.bad_pages:
            log.warning("%s: %d pages were damaged, fetched again", entry.name, looked.bad_pages)
        if looked.lost:
            self._contents.forget(entry.key)
        entry.fd, entry.has_record = looked.fd, looked.fd >= 0
        entry.pages = PageMap(entry.size, looked.bits)
        entry.allocated_bytes = looked.allocated_bytes
        if not self._contents.order_known or self._contents.is_held(entry.key):
            # Else a read has ended the hold.
            entry.hold = entry.hold or looked.hold

    # ---- going ----

    def leave(self, entry: Entry) -> None:
        """The opposite of `open`'s hold."""
        entry.users -= 1
        self.retire_if_unused(entry)

    def retire_if_unused(self, entry: Entry) -> None:
        """Removes an entry without users, and closes its descriptor."""
        if entry.users or entry.uncommitted or entry.busy_pieces or entry.looking is not None:
            return
        if self._frozen:
            return
        if entry.detached:
            self._detached.discard(entry)
            if self._live.get(entry.key) is entry:
                del self._live[entry.key]
            self._move(entry, Event.UNUSED)
            fd, entry.fd = entry.fd, -1
            if fd >= 0:
                self._leftovers.add(fd, entry.allocated_bytes)
        elif entry.fd >= 0 and not entry.recorded:
            fence = contextlib.ExitStack()
            fence.enter_context(self.removing([entry.key]))
            self._detach(entry)
            self._context.tasks.start(self._discard(entry, fence))
        elif self._live.get(entry.key) is entry:
            del self._live[entry.key]
            self._move(entry, Event.UNUSED)
            if entry.fd >= 0:
                self._disk.close_named(entry.fd)
                entry.fd = -1

    async def _discard(self, entry: Entry, fence: contextlib.ExitStack) -> None:
        """Removes a file without a record. The entry is detached and fenced."""
        with fence:
            try:
                self._close_all(await self._remove([entry.key], always))
            except OSError:  # the index takes nothing; a record without a file does no harm
                with contextlib.suppress(OSError):
                    await self._disk.threads.run(self._disk.directory.unlink, entry.name)

    @contextlib.asynccontextmanager
    async def fenced(self, keys: Sequence[bytes]) -> AsyncIterator[None]:
        """While this lasts, none of these is evicted, dropped or opened. Raises OSError if the disk
        hangs."""
        await self._until_free_to_drop(keys)
        with self.removing(keys):
            yield

    @contextlib.contextmanager
    def removing(self, keys: Iterable[bytes]) -> Iterator[list[Entry]]:
        """While this lasts, who opens one of these waits. Yields their entries, which stay."""
        keys, fence = [*keys], self._loop.create_future()
        entries = [entry for key in keys if (entry := self._live.get(key)) is not None]
        for entry in entries:
            entry.users += 1
        self._fences.update(dict.fromkeys(keys, fence))
        try:
            yield entries
        finally:
            for key in keys:
                if self._fences.get(key) is fence:
                    del self._fences[key]
            fence.set_result(None)
            for entry in entries:
                self.leave(entry)

    async def drop(self, keys: Sequence[bytes], may_go_on: MayGoOn = always) -> FreedCounts:
        """Drops what is cached of these contents, in use or not. Raises OSError when the index
        cannot be written or it may not go on (nothing is unlinked then), or when the disk hangs:
        the drop continues once it answers."""
        if not self._disk.health.in_service:
            raise no_answer()
        keys = [*dict.fromkeys(keys)]
        await self._until_free_to_drop(keys)
        fence = contextlib.ExitStack()
        entries = fence.enter_context(self.removing(keys))
        work = self._context.tasks.start(self._drop_fenced(keys, entries, fence, may_go_on))
        done = await self._disk.unless_left(work, None)
        counts: FreedCounts | OSError = done.result() if done is not None else no_answer()
        if isinstance(counts, OSError):
            raise counts
        return counts

    async def forsake(self) -> None:
        """Drops every live content of which something lies in the tier, which is out of service:
        what was written there may be lost. Handles that are open find nothing there any more, and
        are served past the tier. Raises OSError when the index cannot be written; the files are
        left then, without their entries."""
        looking = [entry.looking for entry in self._live.values() if entry.looking is not None]
        if waits := [*looking, *self._fences.values()]:
            await asyncio.wait(waits)  # not `gather`, which would cancel them when it is cancelled
        entries = [entry for entry in self._live.values() if entry.fd >= 0 or entry.recorded]
        keys = [entry.key for entry in entries]
        fence = contextlib.ExitStack()
        fence.enter_context(self.removing(keys))
        result = await self._drop_fenced(keys, entries, fence, always)
        for entry in (*entries, *self._detached):  # also what was dropped before, and is open
            entry.pages = PageMap(entry.size)
        if isinstance(result, OSError):
            raise result

    async def _drop_fenced(
        self,
        keys: Sequence[bytes],
        entries: Sequence[Entry],
        fence: contextlib.ExitStack,
        may_go_on: MayGoOn,
    ) -> FreedCounts | OSError:
        kept_bytes = 0
        with fence:
            try:
                await self._leave_views(keys)
                held = {e.name: e.allocated_bytes for e in entries if not e.detached}
                kept_bytes = sum(held[e.name] for e in entries if e.name in held and e.recorded)
                for entry in entries:
                    await self._detach_safely(entry)
                busy = {entry.name for entry in entries if entry.users > 1}
                return self._count(await self._remove(keys, may_go_on), held, busy)
            except OSError as err:
                self._contents.grow_cached(kept_bytes)  # the files and their records stay
                return err

    async def _leave_views(self, keys: Sequence[bytes]) -> None:
        """Removes contents from views. Out of service the covers are removed already."""
        shown = [key for key in keys if self._contents.in_view(key)]
        if shown and self._disk.health.in_service:
            await self._contents.guard.leave(shown)

    async def _until_free_to_drop(self, keys: Sequence[bytes]) -> None:
        """Waits until none of the keys is fenced or being looked up, all at the same moment."""
        while True:
            live = [self._live[key] for key in keys if key in self._live]
            waits = [self._fences[key] for key in keys if key in self._fences]
            waits += [entry.looking for entry in live if entry.looking is not None]
            if not waits:
                return
            if not await self._ended(waits):
                raise no_answer()

    async def _detach_safely(self, entry: Entry) -> None:
        """Not while a thread makes its file: that takes microseconds."""
        while not entry.creation.acquire(blocking=False):
            await asyncio.sleep(0.001)
        try:
            self._detach(entry)
        finally:
            entry.creation.release()

    async def _ended(self, waits: Sequence[asyncio.Future[None]]) -> bool:
        """Waits for the end of all; False when the disk hangs before. They go on in any case."""

        async def wait() -> None:
            await asyncio.wait(waits)

        return await self._disk.unless_left(self._context.tasks.start(wait()), None) is not None

    def _detach(self, entry: Entry) -> None:
        if self._live.get(entry.key) is entry:
            del self._live[entry.key]
        if entry.detached:
            return
        self._move(entry, Event.DROPPED)
        self._detached.add(entry)
        entry.unrecorded.clear()
        self._contents.unlink(entry.allocated_bytes)
        entry.committed()

    async def _remove(self, keys: Sequence[bytes], may_go_on: MayGoOn) -> dict[str, Dropped]:
        """Removes the files and records of fenced contents."""
        names = [key.hex() for key in keys]
        dropped = await self._disk.threads.call(
            drop, self._disk.directory, self._disk.writer, names, may_go_on, discard=self._close_all
        )
        for key in keys:
            self._contents.forget(key)
        return dropped

    def _close_all(self, dropped: dict[str, Dropped]) -> None:
        for one in dropped.values():
            if one.fd >= 0:
                self._disk.close_later(one.fd)

    def _count(
        self, dropped: dict[str, Dropped], held: dict[str, int], busy: set[str]
    ) -> FreedCounts:
        """`held`: bytes of those that were live, which are accounted with their entries."""
        counts = FreedCounts()
        for name, one in dropped.items():
            size_bytes = held.get(name, one.recorded_bytes)
            if name not in held:
                self._contents.grow_cached(-one.recorded_bytes)
                if one.fd >= 0:
                    busy.add(name)
                    self._contents.grow_unlinked(one.allocated_bytes)
                    self._leftovers.add(one.fd, one.allocated_bytes)
            elif one.fd >= 0:
                self._disk.close(one.fd)
            if size_bytes:
                counts.files += 1
                counts.bytes += size_bytes
                counts.busy_files += name in busy
        self._context.counters.freed_files += counts.files
        self._contents.room_changed.notify()
        return counts

    # ---- records ----

    def grow(self, entry: Entry, size_bytes: int) -> None:
        """Adds to the accounted bytes of the entry's file (below 0: subtracts)."""
        entry.allocated_bytes += size_bytes
        if entry.detached:
            self._contents.grow_unlinked(size_bytes)
        else:
            self._contents.grow_cached(size_bytes)

    def record(self, entry: Entry) -> None:
        """Submits what the entry gained to the index; a complete file is published after the
        commit."""
        if entry.detached:
            return
        complete = entry.complete
        if complete and entry.hold_when_whole is not None:
            entry.hold, entry.hold_when_whole = entry.hold_when_whole, None
        hold = entry.hold
        flags = HELD_READ if hold is not None and hold.though_read else 0
        now_s = self._context.wall_s()
        record = FileRecord(
            entry.size, entry.origin.etag, self._disk.epoch, entry.allocated_bytes, complete,
            now_s, flags, now_s, hold.recorded_s if hold is not None else 0,
        )  # fmt: skip
        self.on_recorded(entry.key)
        self._contents.note_replicated(entry.key, entry.size, entry.origin.rule)
        pages, entry.unrecorded = entry.unrecorded, {}
        entry.committing.update(pages)
        is_first = not entry.recorded
        self._move(entry, Event.SUBMITTED)
        if is_first:
            self._contents.add(entry.key, entry.size, record.last_use_s, entry.origin.rule)
        if hold is not None:
            self._contents.set_aside(entry.key, hold)
        self._submit(entry, PutFile(entry.key, record, pages), publish=complete)

    async def hold(self, holds: Sequence[tuple[bytes, Hold]]) -> None:
        """Holds recorded contents from now on; returns once that is durable. Raises OSError."""
        for key, hold in holds:
            entry = self._live.get(key)
            if entry is not None and not entry.detached:
                entry.hold = hold
            self._contents.set_aside(key, hold)
        committed = self._loop.create_future()

        def end(error: OSError | None) -> None:
            if not committed.done():
                committed.set_result(error)

        changes = [HoldFile(key, hold.recorded_s, hold.though_read) for key, hold in holds]
        self._disk.writer.submit(changes, lambda error: self._disk.wake.call(end, error))
        done = await self._disk.unless_left(committed, None)
        error = no_answer() if done is None else done.result()
        if error is not None:
            raise error

    def correct(self, entry: Entry) -> None:
        """Records the real allocation of the file in the index."""
        if entry.recorded and not entry.detached:
            self._submit(entry, TouchFile(entry.key, 0, entry.allocated_bytes), publish=False)

    def _submit(self, entry: Entry, change: PutFile | TouchFile, *, publish: bool) -> None:
        name, tier = entry.name, self._disk.directory
        entry.uncommitted += 1

        def done(error: OSError | None) -> None:
            self._disk.wake.call(self._committed, entry, change, publish, error)

        if publish:
            self._disk.writer.submit([change], done, lambda: tier.publish(name))
        else:
            self._disk.writer.submit([change], done)

    def _committed(
        self, entry: Entry, change: PutFile | TouchFile, published: bool, error: OSError | None
    ) -> None:
        entry.uncommitted -= 1
        if not entry.uncommitted:
            entry.committing.clear()
        if error is not None:
            self._refused(entry, change, error)
        else:
            entry.has_record |= isinstance(change, PutFile)
            if published:
                self._move(entry, Event.PUBLISH)
        if error is not None or published or not entry.uncommitted:
            entry.committed()
        self.retire_if_unused(entry)

    def _refused(self, entry: Entry, change: PutFile | TouchFile, error: OSError) -> None:
        self.disk_fault(error)
        if isinstance(change, PutFile) and not entry.detached:
            entry.unrecorded = {**change.pages, **entry.unrecorded}  # for the next record
        if isinstance(change, PutFile) and not entry.has_record:
            self._move(entry, Event.COMMIT_FAILED)  # its file is removed with its last user

    def disk_fault(self, error: OSError) -> None:
        """The tier's disk failed: it rests for a while, logged once. Neither a lease nor a lack of
        descriptors is a fault of it."""
        if isinstance(error, BlockingIOError) or lacks_descriptors(error):
            return log.debug("no fault of the cache disk: %s", error)
        self._context.counters.errors["disk"] += 1
        if self._disk.health.fault(error, self._context.monotonic()):
            log.error(
                "the cache disk failed (%s): the cache takes nothing new for now, "
                "what it does not have is read past it",
                error.strerror or error,
            )

    def leave_tier(self) -> None:
        """Ends all waits for commits: the disk hangs."""
        for entry in self._live.values():
            entry.committed()

    def freeze(self) -> None:
        """Keeps all descriptors open until `close`: threads of abandoned fills may still write to
        theirs. Files without a record are swept at the next start."""
        self._frozen = True

    def close(self) -> None:
        for entry in (*self._live.values(), *self._detached):
            if entry.fd >= 0:
                os.close(entry.fd)
                entry.fd = -1
        self._live.clear()
        self._detached.clear()
