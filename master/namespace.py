"""The namespace of one master: `cachefs.core.services.MetadataService` over a store and origins.

Combines the parts (`answers`, `directories`, `walk`, `events`, `sync`) over one store and one mount
table. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from cachefs.core.change_messages import ChangedFolders
from cachefs.core.cluster import Place as Placed
from cachefs.core.cluster import UfsAdded, Work, Worked
from cachefs.core.errors import BadConfig, CacheFSError, NotFound
from cachefs.core.jobs import JobSpec
from cachefs.core.messages import (
    Found,
    Invalidate,
    JobFailures,
    JobReply,
    JobSubmitted,
    JobTable,
    Listing,
    PoliciesAt,
    SyncReply,
)
from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, NamespaceId, Origin, UfsSpec
from cachefs.core.policies import Policy, Rule, shown
from cachefs.core.services import (
    JobService,
    MetadataService,
    Permission,
    PolicyService,
    SyncService,
)
from connectors.base import Connector
from master import walk
from master.answers import Answers
from master.background.service import BackgroundSyncs
from master.directories import Directories
from master.events import EventStream
from master.jobs.job_context import JobContext
from master.jobs.runner import Clocks
from master.jobs.service import LoadJobs
from master.locations import Locations
from master.manual_sync.service import Syncs
from master.mounts import VOID_INTERVAL_S, MountTable
from master.origins.late_store import is_late
from master.origins.syncer import Syncer
from master.policies import Policies
from master.probes import Probes
from master.push.feeds import Feeds
from master.state.records import MountRecord
from master.store.base import Store
from master.store.lmdb_store import LmdbStore, remove_store
from master.store.run import StoreRun
from master.store.snapshot import Names
from master.store.transaction import transact
from master.tree import Mount, Tree

log = logging.getLogger("cachefs.master")


class Master:
    """A namespace: a store, its mount table, and the origins below it."""

    def __init__(
        self,
        store: Store,
        sync_interval_s: float,
        clock: Callable[[], float] = time.time,
        *,
        others_gave: bool = False,
    ) -> None:
        """`others_gave`: workers may hold eviction permissions from an earlier process."""
        self.store = store  # a process also keeps its members there
        self._clock = clock
        self._interval_s = sync_interval_s
        self.run = StoreRun(store, NamespaceId(uuid.uuid4().bytes), clock())
        self._meta = self.run.meta
        self._tree = Tree()
        self._events = EventStream(store, self._meta.namespace)
        self._sync = Syncer(store, self._tree, clock, self._events.wake)
        self._answers = Answers(store, self._tree, self._sync, clock)
        self._directories = Directories(store, self._tree, self._sync, clock)
        self._policies = Policies(
            store, self._tree, self._meta.namespace, time.monotonic, others_gave=others_gave
        )
        self._policies.on_change = self._policies_changed
        self._locations = Locations(store, self._tree, self._meta.namespace, self._policies)
        self._syncs = Syncs(store, self._tree, self._sync, self._events.position)
        self.background = BackgroundSyncs(store, self._tree, self._sync, self._policies.table)
        self._feeds = Feeds(store, self._tree, self._sync, clock, self.background.request)
        self._is_earlier = False  # a node knows a later state of the store
        self.run.on_set_back = self._set_back
        lookup = self._answers.lookup
        self.mounts = MountTable(store, self._tree, self._sync, lookup, clock, self._feeds)
        self.on_policies: Callable[[], None] = lambda: None  # called when policies change
        self.load_jobs = LoadJobs(self._ground(), Clocks(time.monotonic, clock))
        self._directory: Path | None = None
        self._probes: Probes | None = None
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
        """Opens or creates the store in `directory` with `ufs` at "/". Blocks for milliseconds.
        Raises BadConfig (a store of another source, a network file system, another format), InUse,
        NoSpace. The caller owns the connector and closes it after `close`."""
        store = LmdbStore(Path(directory))
        try:
            master = cls(store, sync_interval_s, clock)
            master._directory = Path(directory)
            master.mount_root(ufs, connector)
        except CacheFSError:
            store.close()
            raise
        return master

    @classmethod
    def open_empty(cls, directory: Path | str, clock: Callable[[], float] = time.time) -> Master:
        """Opens or creates the store of a cluster in `directory`. "/" has no source until one is
        added. Recorded sources are unavailable until `mounts.attach`. Blocks and raises like
        `open`."""
        store = LmdbStore(Path(directory))
        try:
            master = cls(store, VOID_INTERVAL_S, clock, others_gave=True)
        except CacheFSError:
            store.close()
            raise
        master._directory = Path(directory)
        return master

    def mount_root(self, ufs: UfsSpec, connector: Connector) -> None:
        """Mounts the UFS at "/". Blocks. Raises BadConfig if the store has another one there."""
        with self.store.snapshot() as reader:
            record = dict(Names(reader).mounts()).get(ROOT_INO)
        if record is not None and record.source.key != ufs.key:
            raise BadConfig(
                f"this metadata store belongs to {record.source.key}, not to {ufs.key}",
                remedy="choose another cache directory",
            )
        record = MountRecord(ufs, checked=record is not None and record.checked)
        transact(self.store, lambda txn: txn.put_mount(ROOT_INO, record)).result()
        self._tree.add(Mount(ROOT_INO, record, connector, self._interval_s))

    async def check_source(self) -> str:
        """Checks the origin; returns "" or a warning for the operator. If the first check of a
        store fails, closes the master, removes its store and raises the connector's error. After
        a later failure the master serves stale metadata."""
        mount = self._tree.root(ROOT_INO)
        assert mount is not None, "a master that was opened with a source has it"
        self._sync.directories_removed()  # collects what an earlier process left
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
        await self.getattr(mount.root)  # refreshes mode and owner, where the origin has them
        return ""

    async def _mark_checked(self, mount: Mount) -> None:
        if mount.record.checked:
            return
        record = mount.record = msgspec.structs.replace(mount.record, checked=True)
        await asyncio.wrap_future(
            transact(self.store, lambda txn: txn.put_mount(mount.root, record))
        )

    def start_probes(self) -> None:
        """Starts background syncs and periodic checks of the origins, which `status` reports."""
        self.background.start()
        self._probes = self._probes or Probes(
            self._tree, self._clock, self._directory, self._store_failure
        )
        self._probes.start()

    def _store_failure(self) -> str:
        if is_late(self.store):
            return f"its disk has not answered for {self.store.waits_s:.0f} s"
        return self.store.failure

    async def close(self) -> None:
        """Ends event streams, listings and stats, and commits queued writes. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._probes is not None:
            await self._probes.close()
        await self.load_jobs.close()
        self._syncs.close()
        self.background.close()
        self._events.close()
        await self._sync.close()
        await self.mounts.close()
        await asyncio.to_thread(self.store.close)

    def limit_waits(self, deadline_s: float) -> None:
        """Sets how long callers wait for an origin, in s."""
        self._sync.deadline_s = deadline_s

    @property
    def namespace(self) -> NamespaceId:
        return self._meta.namespace

    @property
    def root(self) -> Inode:
        with self.store.snapshot() as reader:
            return Names(reader).root()

    @property
    def position(self) -> int:
        """Of the newest event."""
        return self._events.position()

    async def add_ufs(
        self,
        path: bytes,
        source: UfsSpec,
        connector: Connector,
        sync_interval_s: float,
        push: str = "",
    ) -> UfsAdded:
        """Mounts a source at a directory ("/imagenet"), creating it and its parents. It hides what
        other sources have there. Idempotent for the same source.

        The master owns the connector: it closes it with the source or the master, or at once if
        it is not used. After a cancellation the work continues. Raises the errors of the origin's
        check, InUse (another source is mounted there), NotADirectory (the path crosses a file),
        BadConfig (an impossible path or feed, too many sources).
        """
        record = MountRecord(source, path, True, sync_interval_s, push)
        root, warning = await self.mounts.add(record, connector)
        found = (await self.getattr(root)).inode
        assert found is not None, "the root of a source is there"
        return UfsAdded(found, warning)

    def hear_position(self, position: int, run: int) -> None:
        """Hears the position of a node in the events of a run of the store. One of an earlier run
        that lies beyond the start of this run shows that the store was put back meanwhile."""
        is_later = position > self.run.meta.seq and run not in (0, self.run.number)
        if is_later and not self._is_earlier:
            self._is_earlier = True
            log.warning("the store is an earlier one than nodes know: feeds begin again")
            self._feeds.lose_all()

    def _set_back(self) -> None:
        self._events.wake()
        self._feeds.lose_all()

    def pinned_below(self, path: bytes) -> list[bytes]:
        """Returns the paths that a policy pins, at this one (in canonical form) or below it."""
        return self._policies.table.pinned_below(path)

    def lookup_nowait(self, parent: int, name: bytes) -> Found | None:
        return self._answers.lookup_nowait(parent, name)

    async def lookup(self, parent: int, name: bytes) -> Found:
        return await self._answers.lookup(parent, name)

    async def getattr(self, ino: int) -> Found:
        return await self._answers.getattr(ino)

    async def report_changed(self, ino: int) -> None:
        await self._answers.report_changed(ino)

    async def list_dir(self, ino: int, after: bytes, limit: int) -> Listing:
        return await self._directories.list_dir(ino, after, limit)

    async def list_next(self, ino: int) -> None:
        await self._directories.list_next(ino)

    async def resolve(self, path: bytes) -> Found:
        """Resolves a path; `inode` is None if a component is missing. Raises NotADirectory."""
        return await self._answers.resolve(self.root, path)

    async def locate(self, ino: int) -> Origin:
        return self.locate_nowait(ino)

    def locate_nowait(self, ino: int) -> Origin:
        """Locates a file from the store. Raises Stale, IsADirectory, Unsupported (a symlink)."""
        return self._locations.of(ino)

    def locate_many(self, inos: Sequence[int]) -> list[Placed]:
        """Returns each file's origin or failure, in order, from the store alone."""
        return self._locations.of_many(inos)

    def ufs(self, key: str) -> UfsSpec:
        """Returns the source with a key. Raises NotFound if no mount has it."""
        return self._tree.by_key(key).record.source

    def path_of(self, ino: int) -> bytes:
        """Returns the path of an ino below the namespace root. Raises Stale."""
        return walk.path_of(self.store, self._tree, ino)

    def walk(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """See MetadataService. Skips directories that are removed during the walk."""
        source = walk.Fresh(self._directories.list_dir, self._directories.list_ahead)
        return walk.files(self.store, self._tree, ino, source)

    def known_files(
        self,
        ino: int,
        on_unlisted: Callable[[int], None] | None = None,
        *,
        shows_unlisted: bool = False,
    ) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        source = walk.Known(self.store, on_unlisted, shows_unlisted=shows_unlisted)
        return walk.files(self.store, self._tree, ino, source)

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        """See MetadataService. Pinned contents are not permitted."""
        return self._policies.permit(contents)

    @property
    def has_pins(self) -> bool:
        return self._policies.table.pins

    def _policies_changed(self) -> None:
        self._events.wake()
        self.on_policies()

    @property
    def policy_version(self) -> int:
        return self._policies.table.version

    async def set_policy(
        self, path: bytes, policy: Policy, unset: Sequence[str], node: str = ""
    ) -> Policy:
        if not policy.says_nothing:
            inode = (await self.resolve(path)).inode
            if inode is None:
                raise NotFound("no such file or directory", path=shown(path))
            if policy.is_of_directory and inode.kind is not Kind.DIRECTORY:
                raise BadConfig("a sync policy is a directory's", path=shown(path))
        # Also after a cancellation: what is durable must be in force.
        change = self._policies.change(path, policy, unset, node)
        return await asyncio.shield(self._sync.spawn(change, waits=True))

    def quotas(self, used_bytes: Mapping[str, int]) -> list[dict[str, Any]]:
        return self._policies.quotas(used_bytes)

    async def policies_at(self, path: bytes) -> PoliciesAt:
        return self._policies.at(path)

    async def rules_of(self, contents: Sequence[ContentId]) -> list[Rule]:
        return self._policies.rules(contents)

    def _ground(self) -> JobContext:
        return JobContext(
            self.store,
            self._tree,
            self._meta.namespace,
            self._policies.table,
            self.resolve,
            self._directories.list_dir,
            self._directories.list_ahead,
            self.report_changed,
            self.locate_nowait,
        )

    async def work(self, call: Work) -> Worked:
        """Answers a worker's request for tasks of load jobs; see `Work`."""
        return await self.load_jobs.work(call)

    async def submit_job(self, spec: JobSpec, key: str = "", *, more: bool = False) -> JobSubmitted:
        return await self.load_jobs.submit_job(spec, key, more=more)

    async def add_job_paths(
        self, job: int, first: int, paths: Sequence[bytes], *, last: bool
    ) -> None:
        await self.load_jobs.add_job_paths(job, first, paths, last=last)

    async def job(self, job: int) -> JobReply:
        return await self.load_jobs.job(job)

    async def jobs(self, before: int, limit: int) -> JobTable:
        return await self.load_jobs.jobs(before, limit)

    async def job_failures(self, job: int, after: int) -> JobFailures:
        return await self.load_jobs.job_failures(job, after)

    async def control_job(self, job: int, action: str) -> JobReply:
        return await self.load_jobs.control_job(job, action)

    async def start_sync(self, path: bytes, *, recursive: bool, dry_run: bool) -> SyncReply:
        return self._syncs.start(path, recursive=recursive, dry_run=dry_run)

    async def sync(self, sync: int, after: int, *, stop: bool) -> SyncReply:
        return self._syncs.get(sync, after, stop=stop)

    async def events(self, after: int) -> AsyncIterator[Invalidate]:
        """See MetadataService. Ends when the master closes."""
        async for event in self._events.after(after):
            yield event

    async def catch_up(self) -> None:
        """Does nothing: the events are in the store."""

    def changed_folders(self, after: int) -> ChangedFolders:
        """See MetadataService."""
        return self._events.changed_folders(after)

    def status(self) -> dict[str, Any]:
        """Returns plain values for `cachefs status`."""
        with self.store.snapshot() as reader:
            meta = Names(reader).meta()
        assert meta is not None
        return {
            "namespace": self.namespace.hex(),
            "names": meta.names,
            "hidden_keys": meta.hidden,
            "sequence": meta.seq,
            "listings": self._sync.listings_done,
            "stats": self._sync.stats_done,
            "jobs": self.load_jobs.status(),
            "store": self._probes.status() if self._probes is not None else {},
            **self.load_jobs.troubles(),
            "sources": [mount.status() for mount in self._tree.mounts()],
        }


if TYPE_CHECKING:

    class _All(MetadataService, PolicyService, SyncService, JobService, Protocol): ...

    def _is_all(master: Master) -> _All:
        return master
