"""One open file of a source: its bytes, wherever they are readable. Threads may share it.

The bytes of a complete file are read from its descriptor, without a request and without a lock.
Those of a partial one are made readable by the server first, range by range. A file belongs to one
content: if the server has another one under this inode now, reads raise Stale.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cachefs.client.memory_file import memory_file
from cachefs.client.sockets import close_fd
from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError, Stale
from cachefs.core.model import Inode, NamespaceId
from cachefs.fuse.handles import Descriptor, FileHandle, Segment
from cachefs.library.node_session import TRIES, NodeSession
from cachefs.library.published_files import read_all
from cachefs.library.shared_socket import SocketLost

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ASK_BYTES: Final = 1 << 20  # of one request; the server grants more where it has more
NO_FD: Final = -1


class Doubts:
    """Counts the tiers' reports of lost data. Open files compare it with what they have seen."""

    def __init__(self) -> None:
        self.count = 0
        self._of_tier: dict[int, int] = {}

    def add(self, tier: int) -> None:
        """Records that a tier lost data."""
        self._of_tier[tier] = self.count = self.count + 1

    def since(self, seen: int, handle: FileHandle) -> bool:
        """Returns whether a tier that a file reads from lost data after `seen`."""
        return any(
            count > seen and handle.reads_from(tier) for tier, count in [*self._of_tier.items()]
        )


class OpenFile:
    """An open file. Raises the typed errors, and OSError of the cache's disk."""

    __slots__ = (
        "__weakref__", "_doubts", "_fd", "_generation", "_handle", "_lock", "_namespace",
        "_on_lent", "_seen", "_session", "_tier", "closed", "inode", "size",
    )  # fmt: skip

    def __init__(
        self,
        session: NodeSession,
        namespace: NamespaceId,
        inode: Inode,
        doubts: Doubts,
        on_lent: Callable[[OpenFile], None],
    ) -> None:
        """`on_lent` is called when the file gets scratch space of the server, a segment."""
        self.inode = inode
        self.size = inode.size
        self.closed = False
        self._handle: FileHandle | None = None  # a file that stays complete needs none
        self._fd = NO_FD  # of a complete file
        self._tier = 0
        self._namespace = namespace
        self._session = session
        self._doubts = doubts
        self._seen = doubts.count
        self._on_lent = on_lent
        self._lock: threading.Lock | None = None
        self._generation = session.generation

    # ---- opening ----

    @property
    def handle(self) -> FileHandle:
        """What is known of the file's bytes and of the server's handle."""
        if self._handle is None:
            self._handle = FileHandle(self.inode.ino, self.size, 0, self.inode.nonce)
            self._handle.namespace = self._namespace
            if self._fd >= 0:
                self._handle.use_complete(Descriptor(self._fd, 0, self._tier))
        return self._handle

    def use_published(self, fd: int, tier: int) -> None:
        """Reads from the descriptor of a complete file, which this object then owns."""
        self._fd, self._tier = fd, tier
        if self._handle is not None:
            self._handle.use_complete(Descriptor(fd, 0, tier))

    def use_opened(self, opened: m.Opened, fd: int | None, epoch: int) -> None:
        """Takes the server's reply to Open, sent in `epoch`. Owns `fd`. Raises Stale if the size
        is another one."""
        if opened.size != self.size:
            close_fd(fd)
            self._release(opened.handle, epoch)
            raise Stale("the file has another size than when it was opened")
        if opened.complete and (fd is not None or not opened.size):
            self._release(opened.handle, epoch)  # the descriptor is all that is needed
            if fd is not None:
                self.use_published(fd, opened.tier)
        else:
            descriptor = Descriptor(fd, 0, opened.tier) if fd is not None else None
            self.handle.tier = opened.tier
            self.handle.use_partial(descriptor, opened.handle, epoch)

    def open_request(self) -> m.Open:
        """Returns the request that opens the file at the server."""
        handle = self.handle
        return m.Open(handle.namespace, handle.ino, True, handle.past_tier, handle.nonce)

    def open_at_server(self) -> None:
        """Opens the file at the server; waits until a small one is complete."""
        got = self._session.request(self.open_request(), m.Opened)
        self.use_opened(got.body, got.fd, got.epoch)

    # ---- reading ----

    @property
    def complete_fd(self) -> int:
        """The descriptor of a complete file, which stays this object's; -1 for a partial file."""
        return self._fd

    def pread(self, size: int, offset: int) -> bytes:
        """Returns the bytes at `offset`: fewer than `size` only at the end of the file."""
        size = min(size, self.size - offset)
        if size <= 0:
            return b""
        fd = self._fd
        if fd >= 0 and self._seen == self._doubts.count:
            data = os.pread(fd, size, offset)
            return data if len(data) == size else read_all(fd, offset, size)
        buffer = bytearray(size)
        self._read_ranges(memoryview(buffer), offset)
        return bytes(buffer)

    def pread_into(self, buffer: WriteableBuffer, offset: int) -> int:
        """Fills a buffer from `offset` on. Returns the number of bytes: fewer than its size only at
        the end of the file."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, min(len(view), self.size - offset))]
        if not view:
            return 0
        if self._fd >= 0 and self._seen == self._doubts.count:
            _fill(self._fd, view, offset)
        else:
            self._read_ranges(view, offset)
        return len(view)

    def _read_ranges(self, view: memoryview, offset: int) -> None:
        while view:
            count = self._read_range(view, offset)
            view, offset = view[count:], offset + count

    def _read_range(self, view: memoryview, offset: int) -> int:
        """Reads what one source of bytes has at `offset`; requests it first if there is none."""
        with self._locked():
            self._heed_doubts()
            source = self.handle.source(offset)
            if source is None:
                self._ensure(offset, min(len(view), ASK_BYTES))
                source = self.handle.source(offset)
            if source is None:
                raise ProtocolError(f"the server granted nothing at {offset}")
            descriptor, base, end = source
            count = min(len(view), end - offset)
            _fill(descriptor.fd, view[:count], offset - base)
            self.handle.was_read_to(offset + count)
            return count

    def _ensure(self, offset: int, size: int) -> None:
        """Makes bytes at `offset` readable. In a new session it opens the file again first."""
        handle = self.handle
        for _ in range(TRIES):
            if handle.epoch != self._session.epoch or not handle.server_handle:
                self.open_at_server()
            if handle.source(offset) is not None:
                return
            if handle.keep == 1:
                handle.give_back()  # room is short: files that keep segments could wait for ever
            request = m.Ensure(handle.server_handle, offset, size, handle.past_tier, True)
            try:
                got = self._session.request_once(request, m.Ensured, epoch=handle.epoch)
            except SocketLost:
                continue
            return self._granted(got.body, got.fd)
        raise SocketLost(f"lost the connection to the server {TRIES} times in a row")

    def _granted(self, reply: m.Ensured, fd: int | None) -> None:
        handle = self.handle
        if reply.segment and fd is not None:
            return self._keep(reply, reply.end, reply.base, fd)
        close_fd(fd)
        if reply.data:
            end = reply.start + len(reply.data)
            return self._keep(reply, end, reply.start, memory_file(reply.data))
        if handle.complete:
            return
        if handle.descriptor is None or handle.present is None:
            raise ProtocolError("the server granted bytes without a file to read them from")
        handle.present.add(reply.start, reply.end)
        if reply.complete:
            handle.use_complete(None)
            self._fd = handle.descriptor.fd
            server_handle, handle.server_handle = handle.server_handle, 0
            self._release(server_handle, handle.epoch)

    def _keep(self, reply: m.Ensured, end: int, base: int, fd: int) -> None:
        descriptor = Descriptor(fd, 0, self.handle.tier)
        segment = Segment(reply.start, end, base, descriptor, once=not reply.keep)
        self.handle.add_segment(segment, reply.keep)
        self._on_lent(self)

    # ---- what happens to it ----

    def give_back_if_idle(self) -> bool:
        """Closes the segments unless they were read since the last call. Returns whether none is
        left. Never waits for a read of another thread."""
        lock = self._locked()
        if not lock.acquire(blocking=False):
            return False
        try:
            if not self.handle.was_read:
                self.handle.give_back()
            self.handle.was_read = False
            return not self.handle.segments
        finally:
            lock.release()

    def _locked(self) -> threading.Lock:
        """Returns the lock of the state. A forked child makes another one: a thread of the parent
        may have held it."""
        with self._session.lock:
            if self._lock is None or self._generation != self._session.generation:
                self._lock, self._generation = threading.Lock(), self._session.generation
            return self._lock

    def _heed_doubts(self) -> None:
        """Stops reading from a tier that lost data: the bytes are requested from the server."""
        seen, self._seen = self._seen, self._doubts.count
        if seen != self._seen and self._doubts.since(seen, self.handle):
            self._fd = NO_FD
            self.handle.go_past_tier()

    def close(self) -> None:
        """Closes the descriptors and releases the server's handle. Idempotent."""
        if self.closed:
            return
        self.closed = True
        fd, self._fd = self._fd, NO_FD
        handle = self._handle
        if handle is None:
            if fd >= 0:
                os.close(fd)
            return
        handle.close()
        server_handle, handle.server_handle = handle.server_handle, 0
        self._release(server_handle, handle.epoch)

    def _release(self, server_handle: int, epoch: int) -> None:
        if server_handle:
            self._session.post(m.Release(server_handle), epoch)


def _fill(fd: int, view: memoryview, offset: int) -> None:
    """Fills a buffer from a file. Raises BadBody if the file has fewer bytes."""
    count = os.preadv(fd, [view], offset)
    while count < len(view):
        data = read_all(fd, offset + count, min(len(view) - count, ASK_BYTES))
        view[count : count + len(data)] = data
        count += len(data)
