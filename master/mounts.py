"""The mount table: operators add and remove sources, and a restart restores them.

Each change is one transaction of the store (`master.store.mounts`), then one of the tree in memory.
Between the two nothing wrong can be written: an origin's metadata is stored only while the store
assigns the directory to that origin. Owns the connectors passed to it. All methods belong to one
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from cachefs.core.cluster import SetUfs, UfsRow
from cachefs.core.errors import BadConfig, CacheFSError, InUse, NotADirectory, NotFound, Unavailable
from cachefs.core.messages import Found
from cachefs.core.model import ROOT_INO, Inode, Kind, UfsSpec
from cachefs.core.policies import shown
from cachefs.core.units import format_duration
from connectors import keys
from connectors.base import Connector
from master.origins.syncer import Syncer
from master.origins.unavailable import NullConnector, UnavailableConnector
from master.push.feeds import Feeds
from master.push.settings import checked
from master.push.webhook_secrets import check_present
from master.state.feed_state import FeedState
from master.state.records import MountRecord
from master.store.base import Store
from master.store.mounts import add_mount, change_mount, remove_mount
from master.store.snapshot import Names
from master.tree import Mount, Tree

log = logging.getLogger("cachefs.master")

VOID_INTERVAL_S: Final = 60.0  # for directories without a source, whose changes are events
MAX_PATH_BYTES: Final = 4096
MAX_DEPTH: Final = 64
NOT_YET: Final = Unavailable("the source is not open yet")

Lookup = Callable[[int, bytes], Awaitable[Found]]
OpenConnector = Callable[[UfsSpec], Connector]


class MountTable:
    """The sources of one namespace."""

    def __init__(
        self,
        store: Store,
        tree: Tree,
        sync: Syncer,
        lookup: Lookup,
        clock: Callable[[], float],
        feeds: Feeds,
    ) -> None:
        """Adds the recorded sources to the table; they are unavailable until `attach`."""
        self._store = store
        self._tree = tree
        self._sync = sync
        self._lookup = lookup
        self._clock = clock
        self._changing = asyncio.Lock()
        self._feeds = feeds
        self._tree.add(_void())
        with store.snapshot() as reader:
            names = Names(reader)
            for ino, record in names.mounts():
                interval_s = record.sync_interval_s
                tree.add(Mount(ino, record, UnavailableConnector(NOT_YET), interval_s, owned=True))
            tree.load_held(names)

    async def add(self, record: MountRecord, connector: Connector) -> tuple[int, str]:
        """Returns (ino of the root, warning for the operator or ""). The path and the feed of the
        record are as an operator wrote them. See `Master.add_ufs`."""
        return await asyncio.shield(self._sync.spawn(self._add(record, connector)))

    async def _add(self, asked: MountRecord, connector: Connector) -> tuple[int, str]:
        used = False
        try:
            push = checked(asked.push, asked.source.url, connector.capabilities)
            record = msgspec.structs.replace(asked, path=_clean(asked.path), push=push)
            await asyncio.to_thread(check_present, push)
            known = self._same(record)
            if known is None or _is_absent(known):
                await self._sync.check_connector(connector)
            async with self._changing:
                known = self._same(record)
                if known is not None:
                    used = _is_absent(known)
                    if used:
                        known.connector = connector
                        known.health.succeeded()
                    return known.root, _kept(known, record)
                warning = await self._look_at(record.path)
                root = await self._insert(record, connector)
                used = True
                return root, warning
        finally:
            if not used:
                await asyncio.to_thread(connector.close)

    def _same(self, record: MountRecord) -> Mount | None:
        """Returns the mount at the record's path, or None. Raises InUse for another source."""
        mount = self._tree.by_path(record.path)
        if mount is not None and mount.key != record.source.key:
            raise InUse(
                f"{mount.record.source.url} is there",
                path=shown(record.path),
                remedy="remove it first, or choose another directory",
            )
        return mount

    async def _insert(self, record: MountRecord, connector: Connector) -> int:
        if not record.path:
            await self._empty_root()
        added = await self._sync.write(lambda txn: add_mount(txn, record))
        interval_s = record.sync_interval_s
        self._tree.add(Mount(added.root, record, connector, interval_s, owned=True))
        self._changed()
        self._sync.negatives.forget(added.root)
        for parent, name in added.parents:
            self._sync.negatives.discard(parent, name)
        return added.root

    async def change(self, call: SetUfs, open_connector: OpenConnector) -> UfsRow:
        """See `SetUfs`. A thread calls `open_connector`. Cancellation does not stop the work."""
        return await asyncio.shield(self._sync.spawn(self._change(call, open_connector)))

    async def _change(self, call: SetUfs, open_connector: OpenConnector) -> UfsRow:
        mount = self.at(call.path)
        before, record = mount.record, _with_changes(mount, call)
        unused = None
        if call.push is not None:
            await asyncio.to_thread(check_present, record.push)
        try:
            if record.source != before.source:
                unused = await asyncio.to_thread(open_connector, record.source)
                await self._sync.check_connector(unused)
            async with self._changing:
                if self.at(call.path) is not mount or mount.record is not before:
                    cause = "another request changed the source meanwhile"
                    raise InUse(cause, remedy="try again", path=shown(before.path))
                await self._sync.write(lambda txn: change_mount(txn, mount.root, record))
                connector, unused = unused, None
                self._take_changes(mount, record, connector)
        finally:
            if unused is not None:
                await asyncio.to_thread(unused.close)
        return _row(mount)

    def _take_changes(self, mount: Mount, record: MountRecord, connector: Connector | None) -> None:
        if record.push != mount.record.push:
            mount.feed = FeedState()
            # Another source's reader of the queue may have handled earlier reports about this one.
            mount.feed.lost(self._clock())
        mount.record, mount.interval_s = record, record.sync_interval_s
        if connector is not None:
            former, mount.connector = mount.connector, connector
            mount.health.succeeded()
            self._sync.spawn(self._close_former(mount, former))
        self._tree.forget_paths()
        self._sync.wake()
        self._feeds.follow()

    async def _close_former(self, mount: Mount, former: Connector) -> None:
        """Waits a bounded time for requests to a former connector, then closes it if owned."""
        await self._sync.finish_with(mount)
        if mount.owned:
            await asyncio.to_thread(former.close)

    def at(self, path: bytes) -> Mount:
        """Returns the mount of the source at a path. Raises NotFound."""
        mount = self._tree.by_path(_clean(path))
        if mount is None:
            raise NotFound(
                "no source is there",
                remedy="`cachefs ufs ls` shows the sources",
                path=shown(_clean(path)),
            )
        return mount

    async def remove(self, path: bytes) -> None:
        """Removes a source from the namespace. Its inos are Stale when this returns; its names are
        deleted in the background; the origin is not changed. Directories created for it are
        removed unless others need them. Cancellation does not stop the work. Raises NotFound."""
        await asyncio.shield(self._sync.spawn(self._remove(path)))

    async def _remove(self, path: bytes) -> None:
        async with self._changing:
            mount = self.at(path)
            asked = await self._sync.write(lambda txn: remove_mount(txn, mount.root))
            self._tree.remove(mount.root)
            if mount.root == ROOT_INO:
                self._tree.add(_void())
            self._changed()
            for directory in asked:
                self._sync.negatives.forget(directory)
                self._sync.distrust_running(directory)
            if mount.root == ROOT_INO:
                await self._empty_root()
        self._sync.spawn(self._close_former(mount, mount.connector))

    def _changed(self) -> None:
        with self._store.snapshot() as reader:
            self._tree.load_held(Names(reader))
        self._sync.directories_removed()
        self._sync.wake()
        self._feeds.follow()

    async def _empty_root(self) -> None:
        """Removes the entries of an earlier source at "/", unless "/" has a source now."""
        with self._store.snapshot() as reader:
            place = self._tree.directory(Names(reader), ROOT_INO)
        if not place.mount.is_void:
            return
        listing = self._sync.list_directory(ROOT_INO, place)
        while not listing.done:
            await listing.progress(VOID_INTERVAL_S)
        if listing.error is not None:
            raise listing.error

    async def _look_at(self, path: bytes) -> str:
        """Looks up each directory of the path, as far as origins answer. Returns a warning if the
        new source hides an entry. Raises NotADirectory."""
        at = ROOT_INO
        segments = path.split(b"/") if path else []
        for depth, name in enumerate(segments):
            inode = await self._known(at, name)
            if inode is None:
                return ""
            last = depth == len(segments) - 1
            if last:
                return "" if self._tree.is_held(inode.ino) else f"it hides {self._url(at, name)}"
            if inode.kind is not Kind.DIRECTORY:
                raise NotADirectory("a file is on the way", path=shown(path))
            at = inode.ino
        return ""

    async def _known(self, parent: int, name: bytes) -> Inode | None:
        try:
            return (await self._lookup(parent, name)).inode
        except CacheFSError:  # the origin is unavailable: the store's transaction decides
            return None

    def _url(self, parent: int, name: bytes) -> str:
        with self._store.snapshot() as reader:
            place = self._tree.directory(Names(reader), parent)
        return place.mount.shown(place.of(name))

    async def look_again(self, path: bytes, names: Sequence[bytes]) -> None:
        """See `LookAgain.names`."""
        await self._feeds.accept(self.at(path), names)

    def lose_events(self, path: bytes) -> None:
        """Records that events of the source at a path, if there is one, were refused."""
        mount = self._tree.by_path(path.strip(b"/"))
        if mount is not None:
            self._feeds.lost(mount)

    def recorded(self) -> list[tuple[bytes, UfsSpec]]:
        """Returns (path, source) of all recorded sources, outer ones first. A launcher opens
        their connectors."""
        return [(row.path, row.source) for row in self.rows()]

    def attach(self, path: bytes, connector: Connector | CacheFSError) -> None:
        """Sets the connector of a recorded source, which the table then owns. With an error
        instead of a connector the master serves stale metadata. Raises NotFound."""
        if isinstance(connector, CacheFSError):
            connector = UnavailableConnector(connector)
        self.at(path).connector = connector

    async def check(self, within_s: float = 10.0) -> list[str]:
        """Checks all origins concurrently, after a start. Returns one line for the operator per
        origin that failed or timed out; the master serves its stale metadata."""
        self._sync.directories_removed()  # collects what an earlier process left
        self._feeds.load()
        mounts = self._tree.mounts()
        asked = {m: self._sync.spawn(self._check(m), m) for m in mounts}
        if asked:
            await asyncio.wait(asked.values(), timeout=within_s)
        lines = [
            task.result() if task.done() else _unreachable(mount, "no answer yet")
            for mount, task in asked.items()
        ]
        return [line for line in lines if line]

    async def _check(self, mount: Mount) -> str:
        try:
            await self._sync.check(mount)
        except CacheFSError as err:
            mount.health.failed(err, self._clock())
            line = _unreachable(mount, err.one_line())
            mount.health.warning(line, self._clock())
            return line
        mount.health.succeeded()
        return ""

    def rows(self) -> list[UfsRow]:
        """Returns the mount table by path, outer mounts first."""
        mounts = sorted(self._tree.mounts(), key=lambda mount: mount.record.path)
        return [_row(mount) for mount in mounts]

    def row(self, path: bytes) -> UfsRow | None:
        """Returns the source at a path, or None."""
        mount = self._tree.by_path(path.strip(b"/"))
        return None if mount is None else _row(mount)

    async def close(self) -> None:
        """Closes the connectors that the table owns."""
        for mount in self._tree.mounts():
            if mount.owned:
                await asyncio.to_thread(mount.connector.close)


def _void() -> Mount:
    return Mount(ROOT_INO, MountRecord(UfsSpec("")), NullConnector(), VOID_INTERVAL_S)


def _row(mount: Mount) -> UfsRow:
    return UfsRow(
        b"/" + mount.record.path,
        mount.record.source,
        mount.interval_s,
        mount.health.down,
        mount.health.current_warning,
        mount.record.push,
        mount.feed.reported,
        mount.feed.reported_at,
        mount.record.push_interval_s,
        mount.feed.current_at,
        mount.feed.error,
        mount.walks.last_at,
        mount.walks.next_at,
        mount.walks.error,
    )


def _is_absent(mount: Mount) -> bool:
    return isinstance(mount.connector, UnavailableConnector)


def _with_changes(mount: Mount, call: SetUfs) -> MountRecord:
    """Returns the record of a source with the changes of a call. Raises BadConfig."""
    record = mount.record
    options = {**record.source.options}
    for name in call.unset:
        if name not in options:
            had = ", ".join(sorted(options)) or "none"
            raise BadConfig(f"the source has no option {name!r}", remedy=f"its options: {had}")
        del options[name]
    source = UfsSpec(record.source.url, options | call.options)
    if source.key != record.source.key:
        raise BadConfig(
            "endpoint_url names another store",
            remedy="remove the source, and add the other one",
            path=shown(record.path),
        )
    interval_s = call.sync_interval_s
    if interval_s is None:
        interval_s = record.sync_interval_s
    capabilities = mount.connector.capabilities
    push = record.push if call.push is None else checked(call.push, source.url, capabilities)
    valid_s = record.push_interval_s if call.push_interval_s is None else call.push_interval_s
    return msgspec.structs.replace(
        record,
        source=source,
        sync_interval_s=interval_s,
        push=push,
        push_interval_s=valid_s,
    )


def _kept(mount: Mount, asked: MountRecord) -> str:
    """Returns a warning that names what an idempotent request does not change, or ""."""
    if mount.interval_s != asked.sync_interval_s:
        return f"it keeps its sync interval of {format_duration(mount.interval_s)}"
    if mount.record.push != asked.push:
        return f"it keeps its feed: {mount.record.push or 'none'}"
    return "it keeps its options" if mount.record.source != asked.source else ""


def _unreachable(mount: Mount, why: str) -> str:
    return f"serving what is known of {mount.record.source.url}: {why}"


def _clean(path: bytes) -> bytes:
    """Returns the path without leading, trailing and repeated slashes. Raises BadConfig."""
    segments = [segment for segment in path.split(b"/") if segment]
    cleaned = b"/".join(segments)
    if len(cleaned) > MAX_PATH_BYTES or len(segments) > MAX_DEPTH or not keys.visible_path(cleaned):
        raise BadConfig(
            "no directory can have this path", path=shown(cleaned), remedy="choose another one"
        )
    return cleaned
