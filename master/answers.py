"""Lookups of single names: from the store while fresh, else by a stat or a listing of the origin,
or from stale metadata while the origin is down. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import CacheFSError, NameTooLong, NotADirectory, Stale
from cachefs.core.messages import Found
from cachefs.core.model import MAX_NAME_BYTES, Inode, Kind
from connectors import keys
from master.origins.late_store import is_late
from master.origins.syncer import Syncer
from master.state.freshness import DEGRADED_VALID_S, MAX_VALID_S
from master.state.health import is_down
from master.state.lookups import LookupPolicy
from master.state.records import NO_PARENT, Stored, name_of
from master.store.base import Store
from master.store.snapshot import Names
from master.tree import Place, Tree

LISTING_PATIENCE_S: Final = 0.1  # a lookup falls back to a stat after waiting this long
SLOW_LISTING_S: Final = 1.0  # lookups do not wait for a listing older than this
MAX_DISTRUSTED: Final = 10_000
RESOLVE_TRIES: Final = 5


class Answers:
    """Lookups and attributes of one namespace."""

    def __init__(self, store: Store, tree: Tree, sync: Syncer, clock: Callable[[], float]) -> None:
        self._store = store
        self._tree = tree
        self._sync = sync
        self._clock = clock
        self._policy = LookupPolicy()
        self._distrusted: set[tuple[int, bytes]] = set()

    async def resolve(self, root: Inode, path: bytes) -> Found:
        """See `Master.resolve`. Starts again when a directory on the path ends in between."""
        for _ in range(RESOLVE_TRIES - 1):
            with contextlib.suppress(Stale):
                return await self._resolve(root, path)
        return await self._resolve(root, path)

    async def _resolve(self, root: Inode, path: bytes) -> Found:
        found = Found(root, MAX_VALID_S)
        for segment in path.split(b"/"):
            if not segment or segment == b".":
                continue
            if found.inode is None:
                return found
            if found.inode.kind is not Kind.DIRECTORY:
                raise NotADirectory("not a directory", path=path.decode("utf-8", "replace"))
            found = await self.lookup(found.inode.ino, segment)
        return found

    def lookup_nowait(self, parent: int, name: bytes) -> Found | None:
        """See MetadataService. Raises NameTooLong too."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            place = self._tree.directory(names, parent)
            if not keys.visible(name):
                return _invisible(name)
            return self._known(names, place, parent, name)

    def _known(self, names: Names, place: Place, parent: int, name: bytes) -> Found | None:
        """Returns the stored answer for a name, or None if it is not fresh."""
        if (held := self._tree.held_child(parent, name)) is not None:
            return self._held_now(names, held)
        if place.interval_s == 0 or self._sync.unchecked.covers(parent, name):
            return None
        now = self._clock()
        listed_at, complete = self._listed_at(names, parent, name)
        stored = names.child(parent, name)
        if stored is not None:
            checked_at = max(stored.checked_at, listed_at)
            if (parent, name) in self._distrusted:
                checked_at = 0.0
            valid_s = place.valid_s(checked_at, now)
            return Found(stored.inode, valid_s) if valid_s else None
        checked_at = self._sync.negatives.checked_at(parent, name)
        if complete:
            checked_at = max(checked_at, listed_at)
        valid_s = place.valid_s(checked_at, now)
        if valid_s and names.directory(parent) is None:
            # The listing in progress may fail: then no listing knows what clients were told.
            self._sync.negatives.add(parent, name, checked_at)
        return Found(None, valid_s) if valid_s else None

    def _held_now(self, names: Names, ino: int) -> Found | None:
        """Returns a directory of the mount table, which exists whatever its origin reports.
        Returns None if its attributes must be refreshed from the origin. Raises Stale."""
        stored = names.inode(ino)
        if stored is None:
            raise Stale(f"inode {ino} is gone")
        place = self._tree.directory(names, ino)
        valid_s = place.valid_s(stored.checked_at, self._clock())
        asks = place.mount.root == ino and place.mount.connector.capabilities.posix_attributes
        if not valid_s and asks:
            return None
        unchanging_s = MAX_VALID_S if place.interval_s < 0 else min(MAX_VALID_S, place.interval_s)
        return Found(stored.inode, valid_s or unchanging_s)

    def _listed_at(self, names: Names, parent: int, name: bytes) -> tuple[float, bool]:
        """Returns when a listing last covered this name, and whether it covered all names here."""
        running = self._sync.listing(parent)
        if running is not None and running.passed(name):
            return running.started_at, True
        state = names.directory(parent)
        return (state.listed_at, state.complete) if state is not None else (0.0, False)

    async def lookup(self, parent: int, name: bytes) -> Found:
        known = self.lookup_nowait(parent, name)
        if known is not None:
            return known
        with self._store.snapshot() as reader:
            place = self._tree.directory(Names(reader), parent)
            held = self._tree.held_child(parent, name)
        if held is not None:
            return await self._held_attributes(held)
        if place.interval_s != 0:
            degraded = self._while_down(parent, name, place)
            if degraded is not None:
                return degraded
            listed = await self._lookup_by_listing(parent, name, place)
            if listed is not None:
                return listed
        return await self._lookup_by_stat(parent, name, place)

    def _while_down(self, parent: int, name: bytes, place: Place) -> Found | None:
        """Returns the stale answer if the origin is known to be down, and may start a probe."""
        health = place.mount.health
        if not health.down:
            return None
        stale = self._stale(parent, name)
        if stale is not None and health.may_probe(self._clock()):
            self._sync.spawn(self._probe(parent, name, place))
        return stale

    async def _probe(self, parent: int, name: bytes, place: Place) -> None:
        try:
            await self._stat(parent, name, place)
        except CacheFSError as err:
            self._sync.warn(place, name, err)

    async def _stat(
        self, parent: int, name: bytes, place: Place, *, has_changed: bool = False
    ) -> Stored | None:
        """Stats the name at the origin and trusts it again; see `Syncer.stat`."""
        stored = await self._sync.stat(parent, name, place, has_changed=has_changed)
        self._distrusted.discard((parent, name))
        return stored

    async def _lookup_by_listing(self, parent: int, name: bytes, place: Place) -> Found | None:
        """Returns the answer of a listing of the whole directory, starting one if the policy
        wants it. Returns None if there is no listing, or it fails or takes too long."""
        running = self._sync.listing(parent)
        if running is None:
            now = self._clock()
            if not self._policy.wants_listing(parent, place.interval_s, now):
                return None
            running = self._sync.list_directory(parent, place)
        loop = asyncio.get_running_loop()
        until = min(loop.time() + LISTING_PATIENCE_S, running.began + SLOW_LISTING_S)
        while not (running.passed(name) or running.done):
            left_s = until - loop.time()
            if left_s <= 0 or not await running.progress(left_s):
                return None
        if running.error is not None:
            self._policy.listing_refused(parent, place.interval_s, self._clock())
            return None
        return self.lookup_nowait(parent, name)

    async def _lookup_by_stat(self, parent: int, name: bytes, place: Place) -> Found:
        try:
            stored = await self._stat(parent, name, place)
        except Stale:  # the directory was removed in between, which is no fault of the origin
            raise
        except CacheFSError as err:
            # If the store does not write, the origin may have reported a change.
            is_unwritten = bool(self._store.failure) or is_late(self._store)
            may_be_stale = is_down(err) and place.interval_s and not is_unwritten
            stale = self._stale(parent, name) if may_be_stale else None
            self._sync.warn(place, name, err)
            if stale is None:
                raise
            return stale
        if stored is None:
            checked_at = self._sync.negatives.checked_at(parent, name)
            return Found(None, place.valid_s(checked_at, self._clock()))
        return Found(stored.inode, place.valid_s(stored.checked_at, self._clock()))

    def _stale(self, parent: int, name: bytes) -> Found | None:
        """Returns the stored entry of a name, however old, or None. A stale absence is never
        returned: "not found" must not be a guess."""
        with self._store.snapshot() as reader:
            stored = Names(reader).child(parent, name)
        return None if stored is None else Found(stored.inode, DEGRADED_VALID_S)

    async def getattr(self, ino: int) -> Found:
        """Returns the attributes of an inode, from the origin if the stored ones are not fresh.
        Raises Stale, or the origin's error if there is no stale answer."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            stored = names.inode(ino)
            place = names.place(ino)
            if stored is None or place is None:
                raise Stale(f"inode {ino} is gone")
            if place[0] != NO_PARENT:
                self._tree.directory(names, place[0])
        if self._tree.is_held(ino):
            return await self._held_attributes(ino)
        found = await self.lookup(place[0], name_of(place[1]))
        if found.inode is None or found.inode.ino != ino:
            raise Stale(f"inode {ino} was replaced")
        return found

    async def _held_attributes(self, ino: int) -> Found:
        """Returns the attributes of a mount-table directory. The mode and times of a source's
        root are refreshed from origins that have them; stale attributes replace an error."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            known = self._held_now(names, ino)
            place = self._tree.directory(names, ino)
            stored = names.inode(ino)
        if known is not None:
            return known
        assert stored is not None
        health = place.mount.health
        if health.down:
            if health.may_probe(self._clock()):
                self._sync.spawn(self._probe_root(place), place.mount)
            return Found(stored.inode, DEGRADED_VALID_S)
        try:
            fresh = await self._sync.stat_root(place.mount)
        except CacheFSError as err:
            self._sync.warn(place, b"", err)
            return Found(stored.inode, DEGRADED_VALID_S)
        assert fresh is not None
        valid_s = place.valid_s(fresh.checked_at, self._clock())
        return Found(fresh.inode, valid_s)

    async def _probe_root(self, place: Place) -> None:
        try:
            await self._sync.stat_root(place.mount)
        except CacheFSError as err:
            self._sync.warn(place, b"", err)

    async def report_changed(self, ino: int) -> None:
        """Stats the inode at its origin and announces its name to the clients. If the stat fails,
        the name becomes distrusted: the next access stats it again."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            at = names.place(ino)
            if at is None or self._tree.is_held(ino):
                return
            place = self._tree.directory(names, at[0])
        name = name_of(at[1])
        try:
            await self._stat(at[0], name, place, has_changed=True)
        except CacheFSError as err:
            self._sync.warn(place, name, err)
            self._distrust(at[0], name)
        await self._sync.write(lambda txn: txn.announce(at[0], name))
        self._sync.wake()

    def _distrust(self, parent: int, name: bytes) -> None:
        if len(self._distrusted) < MAX_DISTRUSTED:
            self._distrusted.add((parent, name))


def _invisible(name: bytes) -> Found:
    """Returns the answer for names that no origin can have. Raises NameTooLong."""
    if len(name) > MAX_NAME_BYTES:
        raise NameTooLong(f"a name of {len(name)} bytes, at most {MAX_NAME_BYTES} are possible")
    return Found(None, MAX_VALID_S)
