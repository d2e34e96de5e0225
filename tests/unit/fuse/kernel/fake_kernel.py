"""The kernel's side of opens, with its rules; and files that are complete, partial or gone."""

from __future__ import annotations

import os
from collections.abc import Callable

from cachefs.core.errors import Stale
from cachefs.core.model import MAX_INO, Inode, Kind
from cachefs.fuse.handles import Descriptor, FileHandle, HandleTable
from cachefs.fuse.kernel.codec import OPEN_REPLY, OpenFlag
from cachefs.fuse.server_calls import MUST_WAIT, MustWait
from cachefs.fuse.vfs import Vfs

SIZE = 9 << 20
MTIME_NS = 1_700_000_000_123_456_789


class Died(BaseException):
    """The process ended here."""


class FakeDevice:
    """Backing files by id. `refusal`: what BACKING_OPEN fails with; `on_call(what)` may raise."""

    def __init__(self) -> None:
        self.backing: dict[int, int] = {}  # id -> st_ino of the file
        self.refusal = 0
        self.tries = 0
        self.last_id = 0
        self.on_call: Callable[[str], None] = lambda _what: None

    def open_backing(self, fd: int) -> int:
        self.tries += 1
        self.on_call("before BACKING_OPEN")
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.last_id += 1
        self.backing[self.last_id] = os.fstat(fd).st_ino
        self.on_call("after BACKING_OPEN")
        return self.last_id

    def close_backing(self, backing_id: int) -> None:
        self.on_call("before BACKING_CLOSE")
        self.backing.pop(backing_id, None)
        self.on_call("after BACKING_CLOSE")


class FakeKernel:
    """What has which nodeid open: takes replies to OPEN and fails where the kernel answers EIO."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.files: dict[int, dict[int, int]] = {}  # nodeid -> handle -> st_ino; 0: cached

    def take(self, unique: int, nodeid: int, reply: bytes) -> int:
        """The handle."""
        _, error, number, fh, flags, backing_id = OPEN_REPLY.unpack(reply)
        assert (error, number) == (0, unique)
        passthrough = bool(flags & OpenFlag.PASSTHROUGH)
        allowed = OpenFlag.PASSTHROUGH | OpenFlag.NOFLUSH
        assert not passthrough or not flags & ~allowed, f"EIO: flags {flags}"
        assert not passthrough or backing_id in self.device.backing, f"EIO: no id {backing_id}"
        file = self.device.backing[backing_id] if passthrough else 0
        others = set(self.files.get(nodeid, {}).values())
        assert others <= {file}, f"EIO: nodeid {nodeid:x} reads {others}, this open {file}"
        self.files.setdefault(nodeid, {})[fh] = file
        return int(fh)

    def close(self, nodeid: int, fh: int) -> None:
        del self.files[nodeid][fh]
        if not self.files[nodeid]:
            del self.files[nodeid]


class FakeVfs:
    """Files by ino: memfds that can be `complete`. Stands for `cachefs.fuse.vfs.Vfs`, and for its
    `files`, and the `published` ones."""

    def __init__(self) -> None:
        self.files = self.published = self
        self.contents: dict[int, int] = {}  # ino -> memfd
        self.complete: set[int] = set()
        self.gone: set[int] = set()
        self.table = HandleTable()
        self.is_open_elsewhere: Callable[[int], bool] = lambda _ino: False
        self.inode_of_open: Callable[[int], Inode | None] = lambda _nodeid: None
        self.on_doubt: Callable[[int], None] = lambda _tier: None
        self.keeps_pages = True
        self.on_given_again: Callable[[int], None] = lambda _ino: None
        self.failure: OSError | None = None
        self.tier = 0  # where complete files are
        self.out: set[int] = set()  # tiers whose disk hangs
        self.dropped = 0
        self.nonce = 0

    def add(self, ino: int, *, complete: bool = False) -> None:
        """A file, or the next copy of it in the cache."""
        if ino in self.contents:
            os.close(self.contents[ino])
        self.contents[ino] = os.memfd_create(f"cache file of {ino}")
        if complete:
            self.complete.add(ino)

    def close(self) -> None:
        for fd in self.contents.values():
            os.close(fd)
        for handle in self.table:
            handle.close()

    def inode(self, ino: int) -> Inode:
        return Inode(ino, Kind.FILE, SIZE, MTIME_NS, nonce=self.nonce, mode=0o640, uid=7)

    # ---- as Vfs ----

    def in_service(self, tier: int) -> bool:
        return not self.out if tier < 0 else tier not in self.out

    refuse_writing = Vfs.refuse_writing
    refuse_write = Vfs.refuse_write

    def open_published(self, nodeid: int, flags: int) -> tuple[int, Inode, int] | None:
        if self.failure is not None:
            raise self.failure
        ino = nodeid & MAX_INO
        if ino not in self.complete:
            return None
        return os.dup(self.contents[ino]), self.inode(ino), self.tier

    def open_file_nowait(self, nodeid: int, flags: int, pid: int) -> FileHandle | MustWait:
        ino = nodeid & MAX_INO
        return self._file(ino, pid) if ino in self.complete else MUST_WAIT

    async def open_file(self, nodeid: int, flags: int, pid: int) -> FileHandle:
        ino = nodeid & MAX_INO
        if ino in self.gone:
            raise Stale("the file is gone")
        return self._file(ino, pid)

    def _file(self, ino: int, pid: int) -> FileHandle:
        handle = FileHandle.of(self.inode(ino), SIZE, pid)
        descriptor = Descriptor(os.dup(self.contents[ino]), 0)
        if ino in self.complete:
            handle.use_complete(descriptor)
        else:
            handle.use_partial(descriptor, 1, 1)
        return handle

    def drop(self, handle: FileHandle) -> None:
        self.dropped += 1
        handle.close()

    def release(self, fh: int) -> None:
        self.table.remove(fh).close()

    def adopt(self, fh: int, inode: Inode) -> None:
        self.table.add(FileHandle(inode.ino, inode.size, 0, inode.nonce), fh)
