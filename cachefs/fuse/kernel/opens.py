"""OPEN and RELEASE: chooses passthrough or cached mode, and records handles for a successor.

A handle's number is derived from the request that opened it, so a resent request gets the same
handle. A handle is written to the takeover table before the reply.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

from cachefs.core.errors import Stale
from cachefs.core.model import Inode
from cachefs.fuse.handles import FileHandle
from cachefs.fuse.kernel import codec
from cachefs.fuse.kernel.codec import UNIQUE_MASK, OpenFlag
from cachefs.fuse.kernel.device import Device
from cachefs.fuse.kernel.nodes import Nodes
from cachefs.fuse.kernel.table import Mode, Slot, TakeoverTable
from cachefs.fuse.published import ANY_TIER
from cachefs.fuse.server_calls import MUST_WAIT, MustWait
from cachefs.fuse.vfs import Vfs

log = logging.getLogger(__name__)

_CACHED: Final = int(OpenFlag.KEEP_CACHE | OpenFlag.NOFLUSH)  # contents of an ino never change
_CACHED_ANEW: Final = int(OpenFlag.NOFLUSH)  # the kernel drops its pages of the file
_PASSTHROUGH: Final = int(OpenFlag.PASSTHROUGH | OpenFlag.NOFLUSH)
_REFUSALS: Final = {
    errno.EPERM: "no CAP_SYS_ADMIN",
    errno.ELOOP: "the cache directory is on file systems stacked too deeply",
    errno.EOPNOTSUPP: "the file system of the cache directory does not support it",
    errno.EINVAL: "the kernel refuses files of the cache directory",
    errno.ENOTTY: "the kernel has no FUSE passthrough",
}
_UNKNOWN_IDS: Final = 16  # each predecessor may have registered one that is not in the table


class Opens:
    """The open files of one mount. `why_not`: why there is no passthrough, "" while there is."""

    def __init__(self, vfs: Vfs, device: Device, table: TakeoverTable, why_not: str) -> None:
        self.nodes = Nodes()
        self.why_not = why_not
        self.passthrough_opens = 0
        self.cached_opens = 0
        self._vfs = vfs
        self._device = device
        self._table = table
        vfs.is_open_elsewhere = self.nodes.is_open
        vfs.inode_of_open = self.inode_of
        vfs.on_doubt = self.nodes.doubt
        vfs.on_given_again = self.nodes.reassign_ino

    # ---- opening ----

    def open_nowait(self, unique: int, nodeid: int, flags: int, pid: int) -> bytes | MustWait:
        """Returns the reply to OPEN of a file that is complete here or already open. Raises what
        `Vfs.open` raises, Stale to have the name looked up again, TooManyOpenFiles, OSError.

        Write flags are refused first: the kernel opens the backing file with the caller's flags, so
        a write open that joined a passthrough node would write to the cache file."""
        self._vfs.refuse_writing(flags)
        node = self.nodes.get(nodeid)
        if node is not None:
            if unique & UNIQUE_MASK in node.handles:  # the request was resent
                return self._reply(unique, node.mode, node.backing_id)
            if node.doubtful and self.nodes.move_on(nodeid):
                raise Stale("the cache disk lost bytes: opening the file under its next nodeid")
            if node.mode is Mode.PASSTHROUGH:
                answers = self._vfs.files.published.in_service(node.tier)
                if not answers and self.nodes.move_on(nodeid):
                    raise Stale("the cache disk hangs: bypassing it under the next nodeid")
                return self._join(unique, nodeid, node.backing_id)
        self._check_former(nodeid)
        if node is None and not self.why_not:
            published = self._vfs.open_published(nodeid, flags)
            if published is MUST_WAIT:
                return MUST_WAIT
            if published is not None:
                fd, inode, tier = published
                try:
                    backing_id = self._pass_through(unique, nodeid, fd, inode, tier)
                finally:
                    os.close(fd)
                if backing_id:
                    return self._reply(unique, Mode.PASSTHROUGH, backing_id)
        handle = self._vfs.open_file_nowait(nodeid, flags, pid)
        return MUST_WAIT if handle is MUST_WAIT else self._opened(unique, nodeid, handle)

    async def open(self, unique: int, nodeid: int, flags: int, pid: int) -> bytes:
        """Returns the reply to OPEN after opening the file at the server. Raises the same."""
        self._check_former(nodeid)
        return self._opened(unique, nodeid, await self._vfs.open_file(nodeid, flags, pid))

    def _check_former(self, nodeid: int) -> None:
        """Raises Stale if the ino of this nodeid now belongs to another file."""
        if self.nodes.is_former(nodeid):
            raise Stale("the inode number now belongs to another file")

    def _opened(self, unique: int, nodeid: int, handle: FileHandle) -> bytes:
        try:
            return self._use(unique, nodeid, handle)
        except BaseException:
            self._vfs.files.drop(handle)
            raise

    def _use(self, unique: int, nodeid: int, handle: FileHandle) -> bytes:
        """Joins a passthrough node, or starts passthrough, or keeps the file in cached mode."""
        self._check_former(nodeid)  # it may have become former during the wait for the server
        assert handle.inode is not None
        node = self.nodes.get(nodeid)
        if node is not None and node.mode is Mode.PASSTHROUGH:
            self._vfs.files.drop(handle)
            return self._join(unique, nodeid, node.backing_id)
        if handle.complete and handle.descriptor is not None and not self.why_not:
            if node is None:
                fd, tier = handle.descriptor.fd, handle.descriptor.tier
                backing_id = self._pass_through(unique, nodeid, fd, handle.inode, tier)
                if backing_id:
                    self._vfs.files.drop(handle)
                    return self._reply(unique, Mode.PASSTHROUGH, backing_id)
            elif self.nodes.move_on(nodeid):
                raise Stale("the file is complete: passthrough needs its next nodeid")
        return self._cache(unique, nodeid, handle, handle.inode)

    def _join(self, unique: int, nodeid: int, backing_id: int) -> bytes:
        """Adds an open to a passthrough nodeid: the same backing file, no request."""
        fh, one = unique & UNIQUE_MASK, self._slot_of(nodeid)
        assert one is not None
        self._table.add(fh, nodeid, Mode.PASSTHROUGH, one.inode, has_attributes=one.has_attributes)
        self._table.set_backing(fh, backing_id, is_new=False)
        self.nodes.open(nodeid, fh, Mode.PASSTHROUGH, backing_id)
        return self._reply(unique, Mode.PASSTHROUGH, backing_id)

    def _pass_through(self, unique: int, nodeid: int, fd: int, inode: Inode, tier: int) -> int:
        """Registers a complete file. Returns its backing id, 0 if the kernel refuses."""
        fh = unique & UNIQUE_MASK
        self._table.add(fh, nodeid, Mode.PASSTHROUGH, inode)
        try:
            backing_id = self._device.open_backing(fd)
        except OSError as err:
            self._table.remove(fh)
            if err.errno not in _REFUSALS:
                raise
            self.why_not = _REFUSALS[err.errno]
            log.warning("no passthrough from now on: %s", self.why_not)
            return 0
        self._table.set_backing(fh, backing_id, is_new=True)
        self.nodes.open(nodeid, fh, Mode.PASSTHROUGH, backing_id, tier)
        return backing_id

    def _cache(self, unique: int, nodeid: int, handle: FileHandle, inode: Inode) -> bytes:
        """Keeps a file in cached mode: the kernel sends READ requests for it."""
        fh = unique & UNIQUE_MASK
        self._table.add(fh, nodeid, Mode.CACHED, inode)
        self._vfs.files.table.add(handle, fh)
        self.nodes.open(nodeid, fh, Mode.CACHED, 0)
        return self._reply(unique, Mode.CACHED, 0)

    def _reply(self, unique: int, mode: Mode, backing_id: int) -> bytes:
        fh = unique & UNIQUE_MASK
        if mode is Mode.PASSTHROUGH:
            self.passthrough_opens += 1
            return codec.open_reply(unique, fh, _PASSTHROUGH, backing_id)
        self.cached_opens += 1
        flags = _CACHED if self._vfs.keeps_pages else _CACHED_ANEW
        return codec.open_reply(unique, fh, flags, 0)

    # ---- attributes ----

    def inode_of(self, nodeid: int) -> Inode | None:
        """Returns the inode of an open nodeid, as it was opened. None: not open, or a client
        opened it whose table had no attributes."""
        slot = self._slot_of(nodeid)
        return slot.inode if slot is not None and slot.has_attributes else None

    def _slot_of(self, nodeid: int) -> Slot | None:
        """Returns the slot of one of the nodeid's handles, which all have the same content."""
        node = self.nodes.get(nodeid)
        return self._table.slot(next(iter(node.handles))) if node is not None else None

    # ---- releasing ----

    def release(self, nodeid: int, fh: int) -> None:
        """Releases a handle that the kernel has closed. Ignores one that is not open."""
        node = self.nodes.get(nodeid)
        if node is None or fh not in node.handles:
            return self._table.remove(fh)
        if node.mode is not Mode.PASSTHROUGH:
            self._vfs.files.release(fh)
        if self.nodes.release(nodeid, fh) is not None and node.backing_id:
            self._table.closing(fh)
            self._device.close_backing(node.backing_id)
        self._table.remove(fh)

    # ---- taking over ----

    def adopt(self) -> int:
        """Takes over the handles in the table and releases backing ids that it does not list.
        Marks the handles as doubtful if a tier has lost bytes: the predecessor may have opened them
        before the loss. Returns the number of handles."""
        ids: set[int] = set()
        for slot in self._table.slots():
            self._adopt(slot)
            ids.add(slot.backing_id)
        if not self._vfs.keeps_pages:
            self.nodes.doubt(ANY_TIER)
        last = self._table.last_backing_id
        unknown = [*self._table.take_closing(), *range(last + 1, last + 1 + _UNKNOWN_IDS)]
        for backing_id in unknown:
            if backing_id and backing_id not in ids:
                self._device.close_backing(backing_id)
        return len(self._table)

    def _adopt(self, slot: Slot) -> None:
        mode = Mode(slot.mode)
        if mode is Mode.PASSTHROUGH and not slot.backing_id:
            return self._table.remove(slot.fh)  # its OPEN was not answered; the kernel resends it
        self.nodes.adopt(slot.nodeid, slot.fh, mode, slot.backing_id)
        if mode is Mode.CACHED:
            self._vfs.adopt(slot.fh, slot.inode)
