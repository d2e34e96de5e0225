"""A node with a master, a cache, its views, and mounts that only record which covers they have."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cachefs.core import messages as m
from cachefs.core.model import ROOT_INO, Fingerprint, Inode, Kind, NamespaceId, UfsSpec
from master.namespace import Master
from tests.services.memory import MemoryConnector
from tests.unit.worker.rig import LIMIT_S, only, spec_of, until
from worker.cache.cache import Cache
from worker.cache.tier import Tier
from worker.runtime.clocks import Clocks
from worker.tier.config import WorkerConfig
from worker.views.tree_mounts import TreeMounts, TreeShown
from worker.views.view import View
from worker.views.views import Views

UFS = UfsSpec("s3://bucket")
INTERVAL_S = 3600.0
MIB = 1 << 20
Covered = dict[int, tuple[bytes, int]]  # by the number of the cover: path, descriptor of the tree
DEFAULTS = (os.geteuid(), os.getegid(), 0o644, 0o755)


class Shown(NamedTuple):
    """A name as a reader sees it: its kind, mode, mtime, and the bytes of a file."""

    kind: str
    mode: int
    mtime_ns: int
    data: bytes = b""


class KeptOrigin(MemoryConnector):
    """An origin that remembers the bytes of every version."""

    def __init__(self) -> None:
        super().__init__(posix=True)
        self.versions: dict[str, bytes] = {}

    def put(
        self, path: bytes, data: bytes, *, mode: int = -1, uid: int = -1, gid: int = -1
    ) -> Fingerprint:
        found = super().put(path, data, mode=mode, uid=uid, gid=gid)
        self.versions[found.etag] = data
        return found


class FakeMount:
    """A client that lays covers at once. `hangs`: it answers nothing, and keeps what it has.
    `refuses`: it lays none."""

    def __init__(self, views: Views, mountpoint: str = "/m") -> None:
        self.views = views
        self.mountpoint = mountpoint
        self.defaults = DEFAULTS
        self.covers: Covered = {}
        self.hangs = False
        self.refuses = False
        self.laid = 0

    def shows(self, namespace: NamespaceId) -> bool:
        return True

    def send_cover(
        self, cover: int, namespace: NamespaceId, ino: int, path: bytes, fd: int
    ) -> None:
        if self.hangs or self.refuses or cover in self.covers:
            os.close(fd)
        else:
            self.covers[cover] = path, fd
            self.laid += 1
        if not self.hangs:
            self._report(cover, covered=cover in self.covers)

    def send_uncover(self, cover: int) -> None:
        if self.hangs:
            return
        if cover in self.covers:
            os.close(self.covers.pop(cover)[1])
        self._report(cover, covered=False)

    def _report(self, cover: int, *, covered: bool) -> None:
        reason = "" if covered or not self.refuses else "it refuses"
        asyncio.get_running_loop().call_soon(self._send, cover, covered, reason)

    def _send(self, cover: int, covered: bool, reason: str) -> None:
        self.views.reported(self, cover, covered=covered, reason=reason)

    def trees(self) -> dict[bytes, dict[bytes, Shown]]:
        """What readers see of each covered path."""
        return {path: read_tree(fd) for path, fd in self.covers.values()}

    def close(self) -> None:
        for _, fd in self.covers.values():
            os.close(fd)
        self.covers.clear()


def read_tree(top_fd: int) -> dict[bytes, Shown]:
    """Reads everything below a directory, the directory (as b"") included."""
    found: dict[bytes, Shown] = {}
    top = f"/proc/self/fd/{top_fd}".encode()
    for folder, folders, names in os.walk(top):
        below = folder[len(top) :].lstrip(b"/")
        info = os.stat(folder)
        found[below] = Shown("d", stat.S_IMODE(info.st_mode), info.st_mtime_ns)
        for name in [*names, *(one for one in folders if os.path.islink(folder + b"/" + one))]:
            path = folder + b"/" + name
            info = os.lstat(path)
            is_link = stat.S_ISLNK(info.st_mode)
            data = os.readlink(path) if is_link else Path(os.fsdecode(path)).read_bytes()
            mode = 0 if is_link else stat.S_IMODE(info.st_mode)
            key = below + b"/" + name if below else name
            found[key] = Shown("l" if is_link else "f", mode, info.st_mtime_ns, data)
    return found


class FakeKernel(TreeMounts):
    """The covers that exist, whoever has laid them. `is_blind`: the worker does not see all
    processes, and cannot remove covers."""

    def __init__(self) -> None:
        self.tables: list[Covered] = []
        self.is_blind = False

    async def look(self, tree: int) -> TreeShown:
        await asyncio.sleep(0)
        if any(self._shows(fd, tree) for table in self.tables for _, fd in table.values()):
            return TreeShown.SOMEWHERE
        return TreeShown.UNKNOWN if self.is_blind else TreeShown.NOWHERE

    async def remove(self, tree: int) -> None:
        await asyncio.sleep(0)
        for table in self.tables if not self.is_blind else ():
            for cover, (_, fd) in [*table.items()]:
                if self._shows(fd, tree):
                    os.close(table.pop(cover)[1])

    def _shows(self, fd: int, tree: int) -> bool:
        return f"/views/{tree:016x}/" in f"{os.readlink(f'/proc/self/fd/{fd}')}/"


class Node:
    """What one process has. `origin` survives it."""

    def __init__(
        self, master: Master, cache: Cache, views: Views, origin: KeptOrigin, kernel: FakeKernel
    ) -> None:
        self.master = master
        self.cache = cache
        self.views = views
        self.origin = origin
        self.kernel = kernel
        self.mounts: list[FakeMount] = []

    @property
    def namespace(self) -> NamespaceId:
        return self.master.namespace

    @property
    def tier(self) -> Tier:
        return only(self.cache)

    def view(self, path: bytes) -> View:
        (found,) = [view for view in self.views._views if view.path == path]
        return found

    async def mount(self, mountpoint: str = "/m", kept: Covered | None = None) -> FakeMount:
        """`kept`: the covers that an earlier client of the mount has laid."""
        mount = FakeMount(self.views, mountpoint)
        mount.covers = kept if kept is not None else {}
        self.kernel.tables.append(mount.covers)
        self.mounts.append(mount)
        for cover in [*mount.covers]:
            self.views.reported(mount, cover, covered=True, reason="")
        await self.views.attached(self.namespace)
        self.views.joined(mount)
        return mount

    async def freeze(self, path: bytes) -> m.ViewStatus:
        """Freezes, and waits until the view is covered, or cannot be."""
        while True:
            (status,) = (await self.views.freeze(self.namespace, path, wait=True)).views
            if status.state in ("covered", "impossible", "waiting"):
                return status

    async def covered(self, path: bytes) -> None:
        """Waits until a view is covered (again)."""
        view = self.view(path)
        while view.status().state != "covered":
            view._due_s = 0.0  # tests do not sit the pauses out
            view._woken.set()
            await asyncio.sleep(0.005)

    async def removed(self) -> None:
        """Waits until the trees of thawed views are removed."""
        await self.tier.views.removals.until_over(lambda record: True)

    async def sync(self, path: bytes = b"") -> None:
        """What `cachefs sync -r` does."""
        reply = await self.master.start_sync(path, recursive=True, dry_run=False)
        while reply.sync.state == "running":
            await asyncio.sleep(0.002)
            reply = await self.master.sync(reply.sync.sync, 0, stop=False)
        assert reply.sync.state == "done", reply.sync.message
        await self.views.reach(self.namespace, reply.sync.seq)

    async def expected(self, path: bytes) -> dict[bytes, Shown]:
        """What the mount shows at and below a path, by the master's names and the origin."""
        found = (await self.master.resolve(path)).inode
        assert found is not None
        shown: dict[bytes, Shown] = {}
        await self._expect(found, b"", path, shown)
        return shown

    async def _expect(
        self, inode: Inode, below: bytes, path: bytes, shown: dict[bytes, Shown]
    ) -> None:
        if inode.kind is Kind.DIRECTORY:
            shown[below] = Shown("d", _mode(inode), inode.mtime_ns)
            async for name, child in self._children(inode.ino):
                deeper = below + b"/" + name if below else name
                await self._expect(child, deeper, path + b"/" + name, shown)
        elif inode.kind is Kind.FILE:
            data = self.origin.versions[inode.etag]
            shown[below] = Shown("f", _mode(inode), inode.mtime_ns, data)
        else:
            shown[below] = Shown("l", 0, inode.mtime_ns, inode.target)

    async def _children(self, ino: int) -> AsyncIterator[tuple[bytes, Inode]]:
        after = b""
        while True:
            page = await self.master.list_dir(ino, after, 1000)
            for entry in page.entries:
                yield entry.name, msgspec.msgpack.decode(entry.inode, type=Inode)
            if not page.next:
                return
            after = page.next

    def check(self) -> None:
        """The invariants of the tier: bytes, holds, links and records."""
        tier = self.tier
        tier.contents.ledger.check_invariants()
        index, tree = tier.disk.directory.index, tier.disk.directory.path
        recorded = {
            record.content.hex() for _, record in index.scan_names(b"", 1 << 30) if record.content
        }
        for folder, _, names in os.walk(os.path.join(tree, "files")):
            for name in names:
                info = os.stat(os.path.join(folder, name))
                published = os.path.exists(os.path.join(tree, "pub", name))
                in_trees = info.st_nlink - 1 - published  # none in a tree that was emptied
                assert 0 <= in_trees <= (name in recorded), (name, info.st_nlink, published)
                held = tier.contents.in_view(bytes.fromhex(name))
                assert held == (name in recorded), (name, held)
        total = sum(record.allocated_bytes for _, record in index.scan(b"", 1 << 20))
        assert tier.contents.ledger.cached_bytes == total


def _mode(inode: Inode) -> int:
    if inode.mode >= 0:
        return inode.mode
    return DEFAULTS[3] if inode.kind is Kind.DIRECTORY else DEFAULTS[2]


@contextlib.asynccontextmanager
async def node(
    directory: Path,
    origin: KeptOrigin,
    *,
    limit_bytes: int = 64 * MIB,
    interval_s: float = INTERVAL_S,
    clocks: Clocks | None = None,
    kernel: FakeKernel | None = None,
) -> AsyncIterator[Node]:
    """A process over a directory that an earlier one may have left."""
    clocks = clocks or Clocks()
    master = Master.open(directory / "meta", UFS, origin, interval_s, clocks.wall)
    config = WorkerConfig(str(directory / "tier"), limit_bytes, origin_deadline_s=5.0)
    cache = await Cache.start(
        config, [spec_of(config)], lambda ns: master, lambda ns, key: origin, clocks
    )
    kernel = kernel or FakeKernel()
    views = Views(cache.views, lambda ns: master, kernel)
    found = Node(master, cache, views, origin, kernel)
    await asyncio.wait_for(only(cache)._space.order_loaded.wait(), LIMIT_S)
    try:
        await master.getattr(ROOT_INO)
        yield found
        await views.close()
        await until(lambda: not len(found.tier._catalog))  # loads that nobody awaits end first
        async with found.tier.contents.trees_change:
            found.check()
    finally:
        await views.close()
        for mount in found.mounts:
            mount.close()
        await cache.close()
        await master.close()
