"""Open files: opening them (published here, or by the server) and reading them."""

from __future__ import annotations

import logging
import os
from typing import Final

import msgspec

from cachefs.client.call_waits import Waits
from cachefs.client.connection import ConnectionLost
from cachefs.client.memory_file import memory_file
from cachefs.client.sockets import close_fd
from cachefs.core import messages as m
from cachefs.core.errors import DeadlineExceeded, ProtocolError, Stale
from cachefs.core.model import ContentId, Inode, NamespaceId
from cachefs.fuse.handles import Descriptor, FileHandle, HandleTable, Segment
from cachefs.fuse.pread import INLINE, FileReader
from cachefs.fuse.published import Published, Way
from cachefs.fuse.segment_reclaim import SegmentReclaimer
from cachefs.fuse.server_calls import MUST_WAIT, TRIES, MustWait, ServerCalls

log = logging.getLogger(__name__)

MAX_USES: Final = 64  # per report; the server prefetches for readers in file order

SEVERAL: Final = -1  # adopted nonces of one ino differ: one of them is not that of its file now

Bytes = bytes | memoryview


class Files:
    """The open files of one mount."""

    def __init__(self, node: ServerCalls, namespace: NamespaceId, waits: Waits) -> None:
        self.namespace = namespace
        self.table = HandleTable()
        self.lent = SegmentReclaimer()
        self._node = node
        self._reader = FileReader(waits)
        self.published = Published()
        self._uses: list[str] = []
        self._hit_bytes = self._passthrough_bytes = 0
        self._adopted: dict[int, int] = {}  # ino -> nonce, until the inode is seen

    # ---- opening ----

    def open_warm(self, inode: Inode, pid: int) -> FileHandle | None:
        """Opens a file without a request. Returns None when it is not complete here. The caller
        keeps it or drops it. Raises OSError when no descriptor is left."""
        if inode.size == 0:
            return FileHandle.of(inode, 0, pid)
        opened = self.open_published(inode)
        if opened is None:
            return None
        handle = FileHandle.of(inode, inode.size, pid)
        handle.namespace = self.namespace
        handle.warm = True
        handle.use_complete(self._complete(opened))
        return handle

    def open_published(self, inode: Inode) -> tuple[int, int, int] | None:
        """Returns (descriptor, st_dev, tier) of a file that is complete here, else None. The caller
        closes the descriptor. Raises OSError when no descriptor is left."""
        name = ContentId.name_of(self.namespace, inode)
        opened = self._cache_file(name, inode.size)
        if opened is not None:
            self._note_use(name)
        return opened

    def _cache_file(self, name: str, size: int) -> tuple[int, int, int] | None:
        return self.published.open(self._node.caller.published.dirs, name, size)

    def _complete(self, opened: tuple[int, int, int]) -> Descriptor:
        fd, device, tier = opened
        return Descriptor(fd, self._reader.flags_of(device, fd), tier)

    async def open(self, inode: Inode, pid: int) -> FileHandle:
        """Opens a file at the server; the caller keeps it or drops it. Raises the typed errors:
        Stale when the ino was removed or its content has another nonce (0: not known)."""
        handle = FileHandle.of(inode, -1, pid)
        handle.namespace = self.namespace
        await self._open_at_server(handle)
        return handle

    def adopt(self, fh: int, inode: Inode) -> None:
        """Adds a file that a predecessor had open, of which ino, size, version and nonce (0: not
        known) are used. Its first read opens it at the server."""
        handle = FileHandle.of(inode, inode.size, 0)
        handle.namespace = self.namespace
        self.table.add(handle, fh)
        if inode.nonce:
            known = self._adopted.get(inode.ino, inode.nonce)
            self._adopted[inode.ino] = inode.nonce if known == inode.nonce else SEVERAL

    @property
    def has_adopted(self) -> bool:
        return bool(self._adopted)

    def pop_adopted(self, inode: Inode) -> Inode | None:
        """Returns the inode with the nonce that a predecessor had open under this ino; None if it
        had none. Only the first call for an ino returns it. Only the nonce is the predecessor's."""
        nonce = self._adopted.pop(inode.ino, 0)
        return msgspec.structs.replace(inode, nonce=nonce) if nonce else None

    def release(self, fh: int) -> None:
        """Closes a file handle. Raises NotFound if it is not open."""
        self.drop(self.table.remove(fh))

    def drop(self, handle: FileHandle) -> None:
        """Closes a file that is not in the table. Idempotent."""
        handle.close()
        server_handle, handle.server_handle = handle.server_handle, 0
        self._release(server_handle, handle.epoch)

    def note_passthrough(self, size: int) -> None:
        """Counts a passthrough open as a hit of the whole file: the kernel reports no reads."""
        self._hit_bytes += size
        self._passthrough_bytes += size

    async def _open_at_server(self, handle: FileHandle) -> None:
        """Opens a file; in a new session, opens it again. Raises Stale if it is another file."""
        self._check_namespace(handle)
        request = m.Open(handle.namespace, handle.ino, True, handle.past_tier, handle.nonce)
        reply, fd, epoch = await self._node.request_in_epoch(request, m.Opened)
        try:
            self._check_namespace(handle)  # it may have changed during the wait
        except Stale:
            close_fd(fd)
            self._release(reply.handle, epoch)
            raise
        if handle.complete or handle.epoch >= epoch:  # another read was faster
            close_fd(fd)
            return self._release(reply.handle, epoch)
        if handle.size not in (-1, reply.size):
            close_fd(fd)
            self._release(reply.handle, epoch)
            raise Stale("the file has another size than when it was opened")
        handle.size = reply.size
        if reply.complete and (fd is not None or not reply.size):
            self._release(reply.handle, epoch)  # the descriptor is all that is needed
            if fd is not None:
                return handle.use_complete(self._descriptor(fd, reply.tier))
            handle.complete = True
        else:
            descriptor = self._descriptor(fd, reply.tier) if fd is not None else None
            handle.tier = reply.tier
            handle.use_partial(descriptor, reply.handle, epoch)

    async def _open_again(self, handle: FileHandle) -> None:
        """Opens a file that a predecessor or an earlier session had open. One that has lost its
        name is read from its cache file, if that is complete here."""
        try:
            await self._open_at_server(handle)
        except Stale:
            if handle.past_tier or handle.inode is None:
                raise
            opened = self._cache_file(
                ContentId.name_of(handle.namespace, handle.inode), handle.size
            )
            if opened is None:
                raise
            handle.use_complete(self._complete(opened))

    def _check_namespace(self, handle: FileHandle) -> None:
        if handle.namespace != self.namespace:
            raise Stale("the server lost the namespace of this file")

    def _release(self, server_handle: int, epoch: int) -> None:
        """Releases a server handle, unless its session has ended: the next one reuses numbers."""
        if server_handle and epoch == self._node.epoch:
            self._node.post(m.Release(server_handle))

    def _descriptor(self, fd: int, tier: int) -> Descriptor:
        directory = self._node.caller.published.of(tier)
        if directory is None or self.published.way(directory) is Way.NEVER:
            return Descriptor(fd, self._reader.flags_without_fstat(fd), tier)
        return Descriptor(fd, self._reader.flags_of(os.fstat(fd).st_dev, fd), tier)

    def doubt(self, tier: int) -> None:
        """Stops reading open files from that tier."""
        for handle in self.table:
            if handle.reads_from(tier):
                handle.go_past_tier()

    # ---- reading ----

    def read_nowait(self, fh: int, offset: int, size: int) -> Bytes | MustWait:
        """Returns the bytes at `offset`: fewer than `size` only at the end of the file. They are
        valid until the next await."""
        handle = self.table.get(fh)
        size = min(size, handle.size - offset)
        if size <= 0:
            return b""
        source = handle.source(offset)
        if source is None or source[2] < offset + size:
            return MUST_WAIT
        descriptor, base, _ = source
        data = self._reader.read_now(descriptor.fd, descriptor.flags, offset - base, size)
        if data is None:
            return MUST_WAIT
        if handle.segments:
            handle.was_read_to(offset + size)
        if handle.warm:
            self._hit_bytes += size
        return data

    def in_memory(self, fh: int, offset: int, size: int) -> tuple[int, int, int] | None:
        """Returns (descriptor, position in it, bytes) of a read whose bytes all lie in memory, for
        a caller that can splice them; None otherwise."""
        handle = self.table.get(fh)
        size = min(size, handle.size - offset)
        source = handle.source(offset)
        if size <= 0 or source is None or source[2] < offset + size:
            return None
        descriptor, base, _ = source
        if descriptor.flags != INLINE:
            return None
        if handle.warm:
            self._hit_bytes += size
        return descriptor.fd, offset - base, size

    async def make_readable(self, fh: int, offset: int, size: int) -> None:
        """Requests from the server the part of a range that this handle cannot read yet: only the
        first missing part if a handle may keep one segment. Raises and cancels as `read`."""
        handle = self.table.get(fh)
        stop = min(offset + size, handle.size)
        while offset < stop:
            source = handle.source(offset)
            if source is None:
                await self._ensure(handle, offset, stop - offset)
                source = handle.source(offset)
            if source is None:
                raise ProtocolError(f"the server granted nothing at {offset}")
            if handle.keep == 1:
                return
            offset = source[2]

    async def read(self, fh: int, offset: int, size: int) -> Bytes:
        """Returns the bytes at `offset`; requests missing ones from the server. Raises the typed
        errors. Cancellation leaves the fill running for other readers. When the tier's disk misses
        its deadline, requests the bytes from the server with the tier bypassed."""
        handle = self.table.get(fh)
        stop = min(offset + size, handle.size)
        parts: list[bytes] = []
        while offset < stop:
            if handle.source(offset) is None:
                await self._ensure(handle, offset, stop - offset)
            data = await self._read_part(handle, offset, stop)
            offset += len(data)
            if offset == stop:
                handle.was_read_to(stop)
                if not parts:
                    return data
            parts.append(bytes(data))
        return b"".join(parts)

    def answered(self, fh: int, end: int) -> None:
        """Drops the read-once segments that end at `end` or before: the kernel has them."""
        self.table.get(fh).was_read_to(end)

    async def _read_part(self, handle: FileHandle, offset: int, stop: int) -> Bytes:
        source = handle.source(offset)
        if source is None:
            raise ProtocolError(f"the server granted nothing at {offset}")
        descriptor, base, end = source
        size = min(end, stop) - offset
        data = self._reader.read_now(descriptor.fd, descriptor.flags, offset - base, size)
        if data is not None:
            return data
        if self.published.in_service(descriptor.tier) or descriptor.flags == INLINE:
            try:
                with descriptor as fd:
                    return await self._reader.read(fd, offset - base, size)
            except DeadlineExceeded as err:
                if handle.past_tier and self.published.in_service(descriptor.tier):
                    raise
                log.warning("reads of inode %d bypass the cache: %s", handle.ino, err.cause)
        handle.go_past_tier()
        return b""

    async def _ensure(self, handle: FileHandle, offset: int, size: int) -> None:
        """Makes bytes at `offset` readable. In a new session, opens the file again first."""
        for _ in range(TRIES):
            if handle.epoch != self._node.epoch:
                await self._open_again(handle)
            if handle.source(offset) is not None:
                return
            if handle.keep == 1:
                # Room is short. Handles that kept segments while they wait could deadlock.
                handle.give_back()
            request = m.Ensure(handle.server_handle, offset, size, handle.past_tier, True)
            try:
                reply, fd = await self._node.request_once(request, m.Ensured)
            except ConnectionLost:
                continue
            return self._granted(handle, reply, fd)
        raise ConnectionLost(f"lost the connection to the server {TRIES} times in a row")

    def _granted(self, handle: FileHandle, reply: m.Ensured, fd: int | None) -> None:
        if reply.segment and fd is not None:
            descriptor = self._descriptor(fd, handle.tier)
            return self._keep(handle, reply, reply.end, reply.base, descriptor)
        close_fd(fd)
        if reply.data:
            copied = memory_file(reply.data)
            descriptor = Descriptor(copied.fileno(), INLINE, handle.tier, copied)
            end = reply.start + len(reply.data)
            return self._keep(handle, reply, end, reply.start, descriptor)
        if handle.complete:
            return
        if handle.descriptor is None or handle.present is None:
            raise ProtocolError("the server granted bytes without a file to read them from")
        handle.present.add(reply.start, reply.end)
        if reply.complete:
            handle.use_complete(None)

    def _keep(
        self, handle: FileHandle, reply: m.Ensured, end: int, base: int, descriptor: Descriptor
    ) -> None:
        segment = Segment(reply.start, end, base, descriptor, once=not reply.keep)
        handle.add_segment(segment, reply.keep)
        self.lent.note(handle)

    # ---- use reports ----

    def _note_use(self, name: str) -> None:
        self._uses.append(name)
        if len(self._uses) >= MAX_USES:
            self.report_uses()

    def report_uses(self) -> None:
        """Reports to the server the files opened and bytes read without a request."""
        if self._uses or self._hit_bytes:
            names, self._uses = self._uses, []
            used = m.Used(names, self._hit_bytes, self._passthrough_bytes)
            self._hit_bytes = self._passthrough_bytes = 0
            self._node.post(used)

    def close(self) -> None:
        """Closes every descriptor."""
        self.report_uses()
        for handle in self.table:
            handle.close()
