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
from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError, Stale
from cachefs.core.model import Inode, NamespaceId
from cachefs.core.owned_fd import OwnedFd, try_lock
from cachefs.fuse.handles import Descriptor, FileHandle, Segment
from cachefs.library.calls import call
from cachefs.library.node_session import TRIES, NodeSession, checked
from cachefs.library.published_files import read_all
from cachefs.library.shared_socket import Reply, SocketLost

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
        "_on_lent", "_owner", "_seen", "_session", "_tier", "closed", "inode", "size",
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
        self._handle: FileHandle | None = None  # a file that stays complete needs none
        self._fd = NO_FD  # of a complete file
        self._owner: OwnedFd | None = None  # of `_fd`, without a handle
        self._tier = 0
        self._namespace = namespace
        self._session = session
        self._doubts = doubts
        self._seen = doubts.count
        self._on_lent = on_lent
        self._lock: threading.Lock | None = None
        self._generation = session.generation
        self.closed = False

    # ---- opening ----

    @property
    def handle(self) -> FileHandle:
        """What is known of the file's bytes and of the server's handle."""
        if self._handle is None:
            handle = FileHandle(self.inode.ino, self.size, 0, self.inode.nonce)
            handle.namespace = self._namespace
            if self._owner is not None:
                handle.use_complete(_descriptor(self._owner, self._tier))
            self._handle = handle
        return self._handle

    def use_published(self, owner: OwnedFd, tier: int) -> None:
        """Reads from the descriptor of a complete file."""
        if self._handle is not None:
            self._handle.use_complete(_descriptor(owner, tier))
        fd = owner.fileno()
        self._fd, self._owner, self._tier = fd, owner, tier

    def use_opened(self, reply: Reply, epoch: int) -> None:
        """Takes the server's reply to Open, sent in `epoch`. Raises Stale if the size is another
        one, and the error of a Failure. What it does not take ends with the exchange."""
        opened = checked(reply, m.Opened)
        if opened.size != self.size:
            raise Stale("the file has another size than when it was opened")
        owner = reply.take()
        if opened.complete and (owner is not None or not opened.size):
            if owner is not None:
                self.use_published(owner, opened.tier)  # which is all that is needed
        else:
            handle = self.handle
            handle.tier = opened.tier
            descriptor = _descriptor(owner, opened.tier) if owner is not None else None
            handle.use_partial(descriptor, 0, epoch)
            handle.server_handle, reply.handle = reply.handle, 0

    def open_request(self) -> m.Open:
        """Returns the request that opens the file at the server."""
        handle = self.handle
        return m.Open(handle.namespace, handle.ino, True, handle.past_tier, handle.nonce)

    def open_at_server(self) -> None:
        """Opens the file at the server; waits until a small one is complete."""
        self._session.request(self.open_request(), self.use_opened)

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
            count = call(self._read_range, view, offset)
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
                return self._session.request_once(request, self._granted, epoch=handle.epoch)
            except SocketLost:
                continue
        raise SocketLost(f"lost the connection to the server {TRIES} times in a row")

    def _granted(self, received: Reply, _: int) -> None:
        handle, reply = self.handle, checked(received, m.Ensured)
        owner = received.take()
        if reply.segment and owner is not None:
            return self._keep(reply, reply.end, reply.base, owner)
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
            self._release(handle)

    def _keep(self, reply: m.Ensured, end: int, base: int, owner: OwnedFd) -> None:
        descriptor = _descriptor(owner, self.handle.tier)
        segment = Segment(reply.start, end, base, descriptor, once=not reply.keep)
        self.handle.add_segment(segment, reply.keep)
        self._on_lent(self)

    # ---- what happens to it ----

    def give_back_if_idle(self) -> bool:
        """Closes the segments unless they were read since the last call. Returns whether none is
        left. Never waits for a read of another thread."""
        lock, held = self._locked(), list[bool]()
        try:
            try_lock(held, lock)
            if not held[0]:
                return False
            if not self.handle.was_read:
                self.handle.give_back()
            self.handle.was_read = False
            return not self.handle.segments
        finally:
            if True in held:
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
        count = self._doubts.count
        if self._seen != count:
            if self._doubts.since(self._seen, self.handle):
                self._fd = NO_FD
                self.handle.go_past_tier()
            self._seen = count  # only now: an interrupted read must not forget them

    def close(self) -> None:
        """Closes the descriptors and releases the server's handle. Idempotent."""
        if self.closed:
            return
        self._fd = NO_FD
        if self._owner is not None:
            self._owner.close()
        if self._handle is not None:
            self._handle.close()
            self._release(self._handle)
        self.closed = True  # only now: after an interruption the finaliser closes the rest

    def __del__(self) -> None:
        try:
            closed = self.closed
        except AttributeError:
            return  # its `__init__` was interrupted
        if not closed:
            self.close()

    def _release(self, handle: FileHandle) -> None:
        if handle.server_handle:
            self._session.post(m.Release(handle.server_handle), handle.epoch)
            handle.server_handle = 0


def _descriptor(owner: OwnedFd, tier: int) -> Descriptor:
    return Descriptor(owner.fileno(), 0, tier, owner)


def _fill(fd: int, view: memoryview, offset: int) -> None:
    """Fills a buffer from a file. Raises BadBody if the file has fewer bytes."""
    count = os.preadv(fd, [view], offset)
    while count < len(view):
        data = read_all(fd, offset + count, min(len(view) - count, ASK_BYTES))
        view[count : count + len(data)] = data
        count += len(data)
