"""The adapter to pyfuse3: turns requests of the kernel into calls of the Vfs. No logic.

Only FUSEError may leave a handler; any other exception would end the mount. `translated` turns
typed errors into errnos. One mount per process (pyfuse3 keeps its session in globals). Replies are
written before the next await, so all of them share one attribute object and the Vfs's read buffer.

`st_ino` is also the nodeid here: pyfuse3 has one number for both. That is correct without
passthrough: the contents of an ino never change, so the kernel keeps its pages between opens.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FUSEError

from cachefs.core.model import MAX_NAME_BYTES, Inode
from cachefs.fuse.attributes import (
    NOMINAL_BYTES,
    NOMINAL_FILES,
    PREFERRED_IO_BYTES,
    blocks,
)
from cachefs.fuse.errnos import Errnos
from cachefs.fuse.interrupts import Interrupts
from cachefs.fuse.kernel_cache import INC_EPOCH, KernelCache
from cachefs.fuse.server_calls import MUST_WAIT
from cachefs.fuse.vfs import Vfs
from cachefs.fuse.workers import TrioForPyfuse3, Workers

MAX_REQUESTS: Final = 2048  # served at once; each cold open occupies one while the origin replies
IDLE_WORKERS: Final = 64  # kept: starting and ending them costs more than their memory

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Handler = Callable[Concatenate["Operations", P], Coroutine[Any, Any, R]]


def translated(handler: Handler[P, R]) -> Handler[P, R]:
    """Wraps a handler: its exceptions become FUSEError with the errno for the caller."""

    @functools.wraps(handler)
    async def answer(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(self, *args, **kwargs)
        except FUSEError:
            raise
        except Exception as err:  # noqa: BLE001  the edge: no other may leave
            raise FUSEError(self.errnos.of(handler.__name__, err)) from None

    return answer


@translated
async def _refuse(self: Operations, *_: Any) -> Any:
    self.vfs.refuse_write()


_refused: Any = _refuse  # replaces handlers of many types


class Operations(pyfuse3.Operations):
    """The handlers that pyfuse3 calls."""

    supports_dot_lookup = False

    def __init__(self, vfs: Vfs, interrupts: Interrupts, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self.ready = trio.Event()
        self.vfs = vfs
        self._interrupts = interrupts
        self._attributes = EntryAttributes()
        self._attributes.st_blksize = PREFERRED_IO_BYTES
        self._attributes.st_nlink = 1
        self._absent = EntryAttributes()
        self._file = pyfuse3.FileInfo(keep_cache=True)
        self.errnos = Errnos()

    def init(self) -> None:
        self.ready.set()

    # ---- names ----

    @translated
    async def lookup(self, parent: int, name: bytes, ctx: Any) -> EntryAttributes:
        vfs = self.vfs
        known = vfs.lookup_nowait(parent, name)
        if known is MUST_WAIT:
            found = await self._wait(ctx.pid, lambda: vfs.lookup(parent, name))
        else:
            found = known
        if found.inode is not None:
            return self._fill(found.inode, found.valid_for_s)
        if found.valid_for_s <= 0:
            raise FUSEError(errno.ENOENT)
        self._absent.entry_timeout = found.valid_for_s
        return self._absent

    @translated
    async def getattr(self, nodeid: int, ctx: Any) -> EntryAttributes:
        known = self.vfs.getattr_nowait(nodeid)
        if known is MUST_WAIT:
            found = await self._wait(ctx.pid, lambda: self.vfs.getattr(nodeid))
        else:
            found = known
        assert found.inode is not None
        return self._fill(found.inode, found.valid_for_s)

    @translated
    async def readlink(self, nodeid: int, ctx: Any) -> bytes:
        target = self.vfs.readlink_nowait(nodeid)
        if target is MUST_WAIT:
            return await self._wait(ctx.pid, lambda: self.vfs.readlink(nodeid))
        return target

    @translated
    async def access(self, nodeid: int, mode: int, ctx: Any) -> bool:
        self.vfs.access(mode)
        return True

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Ignores the request: lookups are not counted, the server resolves every known ino."""

    @translated
    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        stat = pyfuse3.StatvfsData()
        stat.f_bsize = stat.f_frsize = PREFERRED_IO_BYTES
        stat.f_blocks = stat.f_bfree = stat.f_bavail = NOMINAL_BYTES // PREFERRED_IO_BYTES
        stat.f_files = stat.f_ffree = stat.f_favail = NOMINAL_FILES
        stat.f_namemax = MAX_NAME_BYTES
        return stat

    # ---- files ----

    @translated
    async def open(self, nodeid: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        vfs, pid = self.vfs, ctx.pid
        fh = vfs.open_nowait(nodeid, flags, pid)
        if fh is MUST_WAIT:
            opened = await self._wait(pid, lambda: vfs.open(nodeid, flags, pid))
        else:
            opened = fh
        self._file.fh = opened
        self._file.keep_cache = vfs.keeps_pages
        return self._file

    @translated
    async def read(self, fh: int, offset: int, size: int) -> Any:  # any buffer will do
        data = self.vfs.files.read_nowait(fh, offset, size)
        if data is MUST_WAIT:
            pid = self.vfs.opener(fh)
            return await self._wait(pid, lambda: self.vfs.files.read(fh, offset, size))
        return data

    @translated
    async def release(self, fh: int) -> None:
        self.vfs.files.release(fh)

    async def flush(self, fh: int) -> None:
        """Raises ENOSYS: there is nothing to flush, and the kernel stops sending FLUSH."""
        raise FUSEError(errno.ENOSYS)

    # ---- directories ----

    @translated
    async def opendir(self, nodeid: int, ctx: Any) -> int:
        return self.vfs.opendir(nodeid, ctx.pid)

    @translated
    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        known = self.vfs.readdir_nowait(fh, start_id)
        if known is MUST_WAIT:
            pid = self.vfs.directory_opener(fh)
            entries = await self._wait(pid, lambda: self.vfs.readdir(fh, start_id))
        else:
            entries = known
        reply = pyfuse3.readdir_reply
        for name, inode, valid_for_s, cookie in entries:
            if not reply(token, name, self._fill(inode, valid_for_s), cookie):
                return

    @translated
    async def releasedir(self, fh: int) -> None:
        self.vfs.releasedir(fh)

    # ---- writes ----

    setattr = mknod = mkdir = unlink = rmdir = symlink = rename = link = _refused
    create = write = setxattr = removexattr = _refused

    # ---- helpers ----

    async def _wait(self, pid: int, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `work()`; other requests are served during the wait."""
        worker = self._workers.running
        assert worker is not None, "handlers are run by workers"
        return await self._interrupts.run(pid, worker.interrupt, work)

    def _fill(self, inode: Inode, valid_for_s: float) -> EntryAttributes:
        """Fills and returns the shared attribute object, valid until the next await."""
        attributes = self._attributes
        attributes.st_ino = inode.ino
        attributes.generation = inode.nonce
        attributes.st_mode = self.vfs.defaults.mode(inode)
        attributes.st_uid, attributes.st_gid = self.vfs.defaults.owner(inode)
        attributes.st_size = inode.size
        attributes.st_blocks = blocks(inode)
        mtime_ns = inode.mtime_ns
        attributes.st_mtime_ns = mtime_ns
        attributes.st_ctime_ns = mtime_ns
        attributes.st_atime_ns = mtime_ns
        attributes.entry_timeout = valid_for_s
        attributes.attr_timeout = valid_for_s
        return attributes


class Session:
    """A pyfuse3 session: the constructor mounts, `close` ends it."""

    def __init__(self, vfs: Vfs, workers: Workers, mountpoint: str, options: Sequence[str]) -> None:
        """Mounts; `vfs` waits through `workers`. Raises RuntimeError, and libfuse then writes the
        reason to standard error."""
        self.interrupts = Interrupts()
        self.operations = Operations(vfs, self.interrupts, workers)
        before = _fuse_descriptors()
        vars(pyfuse3)["trio"] = TrioForPyfuse3(workers)
        pyfuse3.init(self.operations, mountpoint, set(options))
        self._fds = _fuse_descriptors() - before
        self._kernel_cache = KernelCache(pyfuse3.invalidate_entry, self._distrust_all)
        vfs.on_invalidated = self._kernel_cache.invalidate
        self._kernel_cache.start()

    async def serve(self) -> None:
        """Answers requests until the mount ends or this is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.interrupts.watch)
            await pyfuse3.main(min_tasks=IDLE_WORKERS, max_tasks=MAX_REQUESTS)
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Ends the session without unmounting; users of the mount get ENOTCONN."""
        self._kernel_cache.stop()
        pyfuse3.close(unmount=False)

    def _distrust_all(self) -> bool:
        """Sends INC_EPOCH (Linux >= 6.16), which libfuse and pyfuse3 do not offer. Returns False
        if the kernel has no such notification."""
        for fd in self._fds:
            with contextlib.suppress(OSError):
                return os.write(fd, INC_EPOCH) == len(INC_EPOCH)
        return False


def _fuse_descriptors() -> set[int]:
    """Returns this process's descriptors of /dev/fuse."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found.add(int(name))
    return found
