"""The namespace of one master: `cachefs.core.services.MetadataService` over a store and origins.

Answers from the store while that is fresh, asks the origin through `master.sync` where it is not,
and serves what is known when the origin is down. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cachefs.core.errors import (
    BadConfig,
    CacheFSError,
    DeadlineExceeded,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    Stale,
    Unsupported,
)
from cachefs.core.messages import Dentry, Found, Invalidate, Listing
from cachefs.core.model import (
    MAX_NAME_BYTES,
    ROOT_INO,
    ContentId,
    Inode,
    Kind,
    NamespaceId,
    Origin,
    UfsSpec,
)
from cachefs.core.services import Permission
from connectors import keys
from connectors.base import Connector
from master import walk
from master.events import EventStream
from master.state.freshness import DEGRADED_VALID_S, MAX_VALID_S, valid_for
from master.state.health import is_down
from master.state.lookups import LookupPolicy
from master.store.base import Store
from master.store.lmdb_store import LmdbStore, remove_store
from master.store.records import NO_PARENT, DirectoryState, MountRecord, inode_bytes, name_of
from master.store.snapshot import Names
from master.store.transaction import initialise, transact
from master.sync import Listing as Running
from master.sync import Syncer
from master.tree import Mount, Place, Tree

log = logging.getLogger("cachefs.master")

LISTING_PATIENCE_S: Final = 0.1  # a lookup waits so long for a listing before it asks by itself
PAGE_BYTES: Final = 150 << 10  # of a listing's names and records, below MAX_FRAME_BYTES
PAGE_WAIT_S: Final = 120.0  # for the next page of a listing under way
CONTINUE_S: Final = 300.0  # a directory stream may go on in a listing of that age
MAX_DISTRUSTED: Final = 10_000
_UNKNOWN: Final = DirectoryState()


class Master:
    """One namespace: a store, its mount table, and the origins below it."""

    def __init__(
        self, store: Store, sync_interval_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_s = sync_interval_s
        self._meta = initialise(store, NamespaceId(uuid.uuid4().bytes))
        self._tree = Tree()
        self._events = EventStream(store, self._meta.namespace)
        self._sync = Syncer(store, self._tree, clock, self._events.wake)
        self._policy = LookupPolicy()
        self._distrusted: set[int] = set()
        self._directory: Path | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path | str,
        ufs: UfsSpec,
        connector: Connector,
        sync_interval_s: float,
        clock: Callable[[], float] = time.time,
    ) -> Master:
        """Opens or makes the store in `directory` with `ufs` at "/". Blocks for some milliseconds.

        Raises BadConfig (another source lies there, a network file system, another format), InUse,
        NoSpace. The caller keeps the connector and closes it after `close`.
        """
        store = LmdbStore(Path(directory))
        try:
            master = cls(store, sync_interval_s, clock)
            master._directory = Path(directory)
            master.mount_root(ufs, connector)
        except CacheFSError:
            store.close()
            raise
        return master

    def mount_root(self, ufs: UfsSpec, connector: Connector) -> None:
        """Puts the UFS at "/". Blocks. Raises BadConfig where another was there before."""
        with self._store.snapshot() as reader:
            record = dict(Names(reader).mounts()).get(ROOT_INO)
        if record is not None and record.source.key != ufs.key:
            raise BadConfig(
                f"this metadata store belongs to {record.source.key}, not to {ufs.key}",
                remedy="choose another cache directory",
            )
        record = MountRecord(ufs, checked=record is not None and record.checked)
        transact(self._store, lambda txn: txn.put_mount(ROOT_INO, record)).result()
        self._tree.add(Mount(ROOT_INO, record, connector, self._interval_s))

    async def check_source(self) -> str:
        """Asks the origin whether it is there; "" or a warning for people.

        The first use ever must reach it: raises the connector's error then, closes the master and
        removes its store. Later what is known is served, whatever the origin says.
        """
        mount = self._tree.mounts()[0]
        try:
            await self._sync.check(mount)
        except CacheFSError as err:
            if not mount.record.checked:
                await self.close()
                if self._directory is not None:
                    remove_store(self._directory)
                raise
            mount.health.failed(err, self._clock())
            warning = f"serving what is known of {mount.record.source.url}: {err.one_line()}"
            mount.health.warning(warning, self._clock())
            return warning
        mount.health.succeeded()
        await self._mark_checked(mount)
        return ""

    async def _mark_checked(self, mount: Mount) -> None:
        if mount.record.checked:
            return
        record = mount.record = msgspec.structs.replace(mount.record, checked=True)
        await asyncio.wrap_future(
            transact(self._store, lambda txn: txn.put_mount(mount.root, record))
        )

    async def close(self) -> None:
        """Ends event streams, listings and stats, commits what is queued. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._events.close()
        await self._sync.close()
        await asyncio.to_thread(self._store.close)

    @property
    def namespace(self) -> NamespaceId:
        return self._meta.namespace

    @property
    def root(self) -> Inode:
        with self._store.snapshot() as reader:
            return Names(reader).root()

    # ---- one name --------------------------------------------------------------------------------

    def lookup_nowait(self, parent: int, name: bytes) -> Found | None:
        """See MetadataService. Raises NameTooLong too."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            place = self._tree.directory(names, parent)
            if not keys.visible(name):
                return _invisible(name)
            return self._known(names, place.mount, parent, name)

    def _known(self, names: Names, mount: Mount, parent: int, name: bytes) -> Found | None:
        """What the store knows of a name, when that is fresh."""
        if mount.interval_s == 0:
            return None
        now = self._clock()
        listed_at, complete = self._listed_at(names, parent, name)
        stored = names.child(parent, name)
        if stored is not None:
            checked_at = max(stored.checked_at, listed_at)
            if self._distrusted and stored.inode.ino in self._distrusted:
                checked_at = 0.0
            valid_s = valid_for(checked_at, mount.interval_s, now)
            return Found(stored.inode, valid_s) if valid_s else None
        checked_at = self._sync.negatives.checked_at(parent, name)
        if complete:
            checked_at = max(checked_at, listed_at)
        valid_s = valid_for(checked_at, mount.interval_s, now)
        return Found(None, valid_s) if valid_s else None

    def _listed_at(self, names: Names, parent: int, name: bytes) -> tuple[float, bool]:
        """When a listing last told of this name, and whether one has told all names there."""
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
        mount = place.mount
        if mount.interval_s != 0:
            degraded = self._while_down(parent, name, place)
            if degraded is not None:
                return degraded
            listed = await self._lookup_by_listing(parent, name, place)
            if listed is not None:
                return listed
        return await self._lookup_by_stat(parent, name, place)

    def _while_down(self, parent: int, name: bytes, place: Place) -> Found | None:
        """The stale answer, when the origin is known to be down; one caller starts a probe."""
        health = place.mount.health
        if not health.down:
            return None
        stale = self._stale(parent, name)
        if stale is not None and health.may_probe(self._clock()):
            self._sync.spawn(self._probe(parent, name, place))
        return stale

    async def _probe(self, parent: int, name: bytes, place: Place) -> None:
        try:
            await self._sync.stat(parent, name, place)
        except CacheFSError as err:
            self._warn(place, name, err)

    async def _lookup_by_listing(self, parent: int, name: bytes, place: Place) -> Found | None:
        """The answer of a listing of the whole directory, when one runs or is worth its price; None
        when that fails or takes too long."""
        running = self._sync.listing(parent)
        if running is None:
            now = self._clock()
            if not self._policy.wants_listing(parent, place.mount.interval_s, now):
                return None
            running = self._sync.list_directory(parent, place)
        until = asyncio.get_running_loop().time() + LISTING_PATIENCE_S
        while not (running.passed(name) or running.done):
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0 or not await running.progress(left_s):
                return None
        if running.error is not None:
            self._policy.listing_refused(parent, place.mount.interval_s, self._clock())
            return None
        return self.lookup_nowait(parent, name)

    async def _lookup_by_stat(self, parent: int, name: bytes, place: Place) -> Found:
        mount = place.mount
        try:
            stored = await self._sync.stat(parent, name, place)
        except CacheFSError as err:
            stale = self._stale(parent, name) if is_down(err) and mount.interval_s else None
            self._warn(place, name, err)
            if stale is None:
                raise
            return stale
        if stored is None:
            checked_at = self._sync.negatives.checked_at(parent, name)
            return Found(None, valid_for(checked_at, mount.interval_s, self._clock()))
        self._distrusted.discard(stored.inode.ino)
        return Found(stored.inode, valid_for(stored.checked_at, mount.interval_s, self._clock()))

    def _stale(self, parent: int, name: bytes) -> Found | None:
        """What is known of a name, however old. An absence is not known for longer than it is
        fresh: "not there" is never a guess."""
        with self._store.snapshot() as reader:
            stored = Names(reader).child(parent, name)
        return None if stored is None else Found(stored.inode, DEGRADED_VALID_S)

    def _warn(self, place: Place, name: bytes, err: CacheFSError) -> None:
        """One line in the log, now and then."""
        text = f"{place.mount.shown(place.of(name))}: {err.code}: {err.one_line()}"
        if line := place.mount.health.warning(text, self._clock()):
            log.warning("%s", line)

    async def getattr(self, ino: int) -> Found:
        """By ino; asks the origin when what is known is not fresh. Raises Stale, or the origin's
        error where there is no other answer."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            stored = names.inode(ino)
            place = names.place(ino)
            if stored is None or place is None:
                raise Stale(f"inode {ino} is gone")
            if place[0] != NO_PARENT:
                self._tree.directory(names, place[0])
        if self._tree.is_root(ino):
            return await self._root_attributes(ino)
        found = await self.lookup(place[0], name_of(place[1]))
        if found.inode is None or found.inode.ino != ino:
            raise Stale(f"inode {ino} was replaced")
        return found

    async def _root_attributes(self, ino: int) -> Found:
        """The root is always there; its mode and times are refreshed where an origin has them."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            place = self._tree.directory(names, ino)
            stored = names.inode(ino)
        assert stored is not None
        interval_s = place.mount.interval_s
        valid_s = valid_for(stored.checked_at, interval_s, self._clock())
        if valid_s or not place.mount.connector.capabilities.posix:
            return Found(stored.inode, valid_s or max(0.0, min(MAX_VALID_S, interval_s)))
        try:
            fresh = await self._sync.stat(NO_PARENT, b"", place)
        except CacheFSError as err:
            self._warn(place, b"", err)
            return Found(stored.inode, DEGRADED_VALID_S)
        assert fresh is not None
        return Found(fresh.inode, valid_for(fresh.checked_at, interval_s, self._clock()))

    # ---- directories -----------------------------------------------------------------------------

    async def list_dir(self, ino: int, after: bytes, limit: int) -> Listing:
        """See MetadataService: at most `limit` (>= 1) entries and 150 KiB. A page after the first
        continues in a listing up to 5 minutes old, so that a slow reader sees one directory."""
        until = asyncio.get_running_loop().time() + PAGE_WAIT_S
        running: Running | None = None
        while True:
            with self._store.snapshot() as reader:
                names = Names(reader)
                place = self._tree.directory(names, ino)
                running = running or self._sync.listing(ino)
                page = self._page_now(names, place, ino, after, limit, running)
            if page is not None:
                return page
            if running is None:
                running = self._sync.list_directory(ino, place)
            elif running.error is not None:
                return self._degraded_page(ino, after, limit, place, running.error)
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0 or not await running.progress(left_s):
                raise DeadlineExceeded("the origin's listing made no progress")

    def _page_now(
        self,
        names: Names,
        place: Place,
        ino: int,
        after: bytes,
        limit: int,
        running: Running | None,
    ) -> Listing | None:
        """The page that can be answered at once; None: ask the origin, or wait for it."""
        mount, now = place.mount, self._clock()
        state = names.directory(ino) or _UNKNOWN
        if running is not None and running.error is None and running.safe_below != b"":
            valid_s = valid_for(running.started_at, mount.interval_s, now)
            page = _page(names, ino, after, limit, running.safe_below, valid_s)
            return page if page.entries or running.safe_below is None else None
        valid_s = valid_for(state.listed_at, mount.interval_s, now)
        if state.complete and mount.health.down and mount.interval_s != 0 and not valid_s:
            if mount.health.may_probe(now):
                self._sync.list_directory(ino, place)
            return _page(names, ino, after, limit, None, DEGRADED_VALID_S)
        going_on = after and valid_for(state.listed_at, CONTINUE_S, now)
        if running is None and state.complete and (valid_s or going_on):
            return _page(names, ino, after, limit, None, valid_s)
        return None

    def list_ahead(self, ino: int) -> None:
        """Begins to list a directory that will be asked for soon, unless that is of no use."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            place = self._tree.directory(names, ino)
            state = names.directory(ino) or _UNKNOWN
        interval_s = place.mount.interval_s
        fresh = state.complete and valid_for(state.listed_at, interval_s, self._clock())
        if interval_s != 0 and not fresh and not place.mount.health.down:
            self._sync.list_directory(ino, place)

    def _degraded_page(
        self, ino: int, after: bytes, limit: int, place: Place, err: CacheFSError
    ) -> Listing:
        """The page as it was known, when the origin failed. Raises `err` where it was not."""
        self._warn(place, b"", err)
        with self._store.snapshot() as reader:
            names = Names(reader)
            state = names.directory(ino)
            known = state is not None and state.complete
            if not known or not is_down(err) or place.mount.interval_s == 0:
                raise err
            return _page(names, ino, after, limit, None, DEGRADED_VALID_S)

    # ---- paths -----------------------------------------------------------------------------------

    async def resolve(self, path: bytes) -> Found:
        """Walks a path; `inode` None where a component is missing. Raises NotADirectory."""
        found = Found(self.root, MAX_VALID_S)
        for segment in path.split(b"/"):
            if not segment or segment == b".":
                continue
            if found.inode is None:
                return found
            if found.inode.kind is not Kind.DIRECTORY:
                raise NotADirectory("not a directory", path=path.decode("utf-8", "replace"))
            found = await self.lookup(found.inode.ino, segment)
        return found

    async def locate(self, ino: int) -> Origin:
        """From the store alone. Raises Stale, IsADirectory, Unsupported (a symbolic link)."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            stored = names.inode(ino)
            at = names.place(ino)
            if stored is None or at is None:
                raise Stale(f"inode {ino} is gone")
            inode = stored.inode
            if inode.kind is Kind.DIRECTORY:
                raise IsADirectory(f"inode {ino} is a directory")
            place = self._tree.directory(names, at[0])
        if inode.kind is Kind.SYMLINK:
            raise Unsupported("a symbolic link has no bytes")
        return Origin(
            ContentId.of(self.namespace, inode),
            place.mount.record.source.key,
            place.of(name_of(at[1])),
            inode.etag,
            inode.size,
            inode.mtime_ns,
        )

    def ufs(self, key: str) -> UfsSpec:
        """Raises BadConfig for a key of no mount."""
        return self._tree.by_key(key).record.source

    async def report_changed(self, ino: int) -> None:
        """Looks at the origin again and tells clients to do so too. While the origin is down the
        name becomes distrusted: the next access asks."""
        with self._store.snapshot() as reader:
            names = Names(reader)
            at = names.place(ino)
            if at is None:
                return
            place = self._tree.directory(names, at[0])
        name = name_of(at[1])
        try:
            await self._sync.stat(at[0], name, place)
            self._distrusted.discard(ino)
        except CacheFSError as err:
            self._warn(place, name, err)
            self._distrust(ino)
        await asyncio.wrap_future(transact(self._store, lambda txn: txn.announce(at[0], name)))
        self._events.wake()

    def _distrust(self, ino: int) -> None:
        if len(self._distrusted) < MAX_DISTRUSTED:
            self._distrusted.add(ino)

    # ---- in bulk ---------------------------------------------------------------------------------

    async def walk(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """See MetadataService. Directories that vanish under way are passed over."""
        source = walk.Fresh(self.list_dir, self.list_ahead)
        async for batch in walk.files(self._store, self._tree, ino, source):
            yield batch

    async def known_files(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        async for batch in walk.files(self._store, self._tree, ino, walk.Known(self._store)):
            yield batch

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        """All of them: no policy protects anything yet."""
        return Permission(frozenset(content.name for content in contents))

    async def events(self, after: int) -> AsyncIterator[Invalidate]:
        """See MetadataService. Ends when the master closes."""
        async for event in self._events.after(after):
            yield event

    def status(self) -> dict[str, Any]:
        """Plain values for `cachefs status`."""
        with self._store.snapshot() as reader:
            meta = Names(reader).meta()
        assert meta is not None
        return {
            "namespace": self.namespace.hex(),
            "names": meta.names,
            "hidden_keys": meta.hidden,
            "sequence": meta.seq,
            "listings": self._sync.listings_done,
            "stats": self._sync.stats_done,
            "sources": [_mount_status(mount) for mount in self._tree.mounts()],
        }


def _invisible(name: bytes) -> Found:
    """The answer for names that no origin can have."""
    if len(name) > MAX_NAME_BYTES:
        raise NameTooLong(f"a name of {len(name)} bytes, at most {MAX_NAME_BYTES} are possible")
    return Found(None, MAX_VALID_S)


def _mount_status(mount: Mount) -> dict[str, Any]:
    return {
        "url": mount.record.source.url,
        "path": "/" + mount.record.path.decode("utf-8", "backslashreplace"),
        "sync_interval_s": mount.interval_s,
        "origin_down": mount.health.down,
        "origin_errors": mount.health.errors,
        "last_warning": mount.health.last_warning,
    }


def _page(
    names: Names, ino: int, after: bytes, limit: int, below: bytes | None, valid_s: float
) -> Listing:
    """Stored children with `after` < order key < `below` (None: to the end of the directory)."""
    found = names.raw_children(ino, after, below, limit + 1, PAGE_BYTES)
    more = len(found) > limit
    if more:
        found.pop()
    last = found[-1][0][8:] if found else b""
    if found and not more:
        more = below is not None or bool(names.raw_children(ino, last, None, 1))
    dentry, raw = Dentry, msgspec.Raw
    entries = [dentry(name_of(key[8:]), raw(inode_bytes(value))) for key, value in found]
    return Listing(entries, last if more else b"", valid_s)
