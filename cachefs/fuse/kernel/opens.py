"""OPEN and RELEASE: which file the kernel reads by itself, and what a successor needs to know.

A handle's number is made from the request that opened it, so that one which is sent again gives the
same handle. What is open is written to the takeover table before the kernel hears of it.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

from cachefs.core.errors import Stale
from cachefs.fuse.handles import FileHandle
from cachefs.fuse.kernel import codec
from cachefs.fuse.kernel.codec import UNIQUE_MASK, OpenFlag
from cachefs.fuse.kernel.device import Device
from cachefs.fuse.kernel.nodes import Nodes
from cachefs.fuse.kernel.table import Mode, Slot, TakeoverTable
from cachefs.fuse.node import MUST_WAIT, MustWait
from cachefs.fuse.published import ANY_TIER
from cachefs.fuse.vfs import Vfs

log = logging.getLogger(__name__)

_CACHED: Final = int(OpenFlag.KEEP_CACHE | OpenFlag.NOFLUSH)  # contents of an ino never change
_CACHED_ANEW: Final = int(OpenFlag.NOFLUSH)  # the kernel drops the pages that it has of it
_PASSTHROUGH: Final = int(OpenFlag.PASSTHROUGH | OpenFlag.NOFLUSH)
_REFUSALS: Final = {
    errno.EPERM: "no CAP_SYS_ADMIN",
    errno.ELOOP: "the cache directory lies on file systems stacked too deeply",
    errno.EOPNOTSUPP: "the file system of the cache directory does not support it",
    errno.EINVAL: "the kernel refuses files of the cache directory",
    errno.ENOTTY: "the kernel has no FUSE passthrough",
}
_UNKNOWN_IDS: Final = 16  # that predecessors, one each, may have registered and not written down


class Opens:
    """The open files of one mount. `why_not` says why none goes through to the kernel, "" while
    they do."""

    def __init__(self, vfs: Vfs, device: Device, table: TakeoverTable, why_not: str) -> None:
        self.nodes = Nodes()
        self.why_not = why_not
        self.passthrough_opens = 0
        self.cached_opens = 0
        self._vfs = vfs
        self._device = device
        self._table = table
        vfs.is_open_elsewhere = self.nodes.is_open
        vfs.on_doubt = self.nodes.doubt
        vfs.on_given_again = self.nodes.given_again

    # ---- opening ----

    def open_nowait(self, unique: int, nodeid: int, flags: int, pid: int) -> bytes | MustWait:
        """The reply to an OPEN of what is complete here, or open already. Raises what `Vfs.open`
        raises, Stale to have the name looked up again, TooManyOpenFiles, OSError.

        Flags that write are refused before anything else: the kernel opens the backing file of a
        passthrough open with the flags of the caller, whatever those of the registered descriptor
        are, so an open that joined would write into the cache file."""
        self._vfs.refuse_writing(flags)
        node = self.nodes.get(nodeid)
        if node is not None:
            if unique & UNIQUE_MASK in node.handles:  # the request came again
                return self._reply(unique, node.mode, node.backing_id)
            if node.doubtful and self.nodes.move_on(nodeid):
                raise Stale(
                    "the cache disk lost bytes: the file is opened anew, by the next nodeid"
                )
            if node.mode is Mode.PASSTHROUGH:
                if not self._vfs.in_service(node.tier) and self.nodes.move_on(nodeid):
                    raise Stale("the cache disk does not answer: read past it, by the next nodeid")
                return self._join(unique, nodeid, node.backing_id)
        self._check_former(nodeid)
        if node is None and not self.why_not:
            published = self._vfs.open_published(nodeid, flags)
            if published is MUST_WAIT:
                return MUST_WAIT
            if published is not None:
                fd, size, tier = published
                try:
                    backing_id = self._pass_through(unique, nodeid, fd, size, tier)
                finally:
                    os.close(fd)
                if backing_id:
                    return self._reply(unique, Mode.PASSTHROUGH, backing_id)
        handle = self._vfs.open_file_nowait(nodeid, flags, pid)
        return MUST_WAIT if handle is MUST_WAIT else self._opened(unique, nodeid, handle)

    async def open(self, unique: int, nodeid: int, flags: int, pid: int) -> bytes:
        """As `open_nowait`, asking the server."""
        self._check_former(nodeid)
        return self._opened(unique, nodeid, await self._vfs.open_file(nodeid, flags, pid))

    def _check_former(self, nodeid: int) -> None:
        """Raises Stale where another file has the ino of this nodeid now."""
        if self.nodes.is_former(nodeid):
            raise Stale("the inode number is another file's now")

    def _opened(self, unique: int, nodeid: int, handle: FileHandle) -> bytes:
        try:
            return self._use(unique, nodeid, handle)
        except BaseException:
            self._vfs.drop(handle)
            raise

    def _use(self, unique: int, nodeid: int, handle: FileHandle) -> bytes:
        """Joins what the kernel reads by itself, or hands it over, or keeps it."""
        self._check_former(nodeid)  # it may have become one while the server was asked
        node = self.nodes.get(nodeid)
        if node is not None and node.mode is Mode.PASSTHROUGH:
            self._vfs.drop(handle)
            return self._join(unique, nodeid, node.backing_id)
        if handle.complete and handle.descriptor is not None and not self.why_not:
            if node is None:
                fd, tier = handle.descriptor.fd, handle.descriptor.tier
                backing_id = self._pass_through(unique, nodeid, fd, handle.size, tier)
                if backing_id:
                    self._vfs.drop(handle)
                    return self._reply(unique, Mode.PASSTHROUGH, backing_id)
            elif self.nodes.move_on(nodeid):
                raise Stale("the file can be read in a better way under its next nodeid")
        return self._cache(unique, nodeid, handle)

    def _join(self, unique: int, nodeid: int, backing_id: int) -> bytes:
        """Another open of a nodeid that the kernel reads by itself: the same file, no question."""
        fh = unique & UNIQUE_MASK
        self._table.add(fh, nodeid, 0, Mode.PASSTHROUGH)
        self._table.set_backing(fh, backing_id, is_new=False)
        self.nodes.open(nodeid, fh, Mode.PASSTHROUGH, backing_id)
        return self._reply(unique, Mode.PASSTHROUGH, backing_id)

    def _pass_through(self, unique: int, nodeid: int, fd: int, size: int, tier: int) -> int:
        """Hands a complete file to the kernel: its backing id, 0 when that refuses."""
        fh = unique & UNIQUE_MASK
        self._table.add(fh, nodeid, size, Mode.PASSTHROUGH)
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

    def _cache(self, unique: int, nodeid: int, handle: FileHandle) -> bytes:
        """Keeps a file whose bytes the kernel asks us for."""
        fh = unique & UNIQUE_MASK
        self._table.add(fh, nodeid, handle.size, Mode.CACHED, handle.nonce)
        self._vfs.keep(handle, fh)
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

    # ---- releasing ----

    def release(self, nodeid: int, fh: int) -> None:
        """The kernel has closed a handle. One that is not open is no error."""
        node = self.nodes.get(nodeid)
        if node is None or fh not in node.handles:
            return self._table.remove(fh)
        if node.mode is not Mode.PASSTHROUGH:
            self._vfs.release(fh)
        if self.nodes.release(nodeid, fh) is not None and node.backing_id:
            self._table.closing(fh)
            self._device.close_backing(node.backing_id)
        self._table.remove(fh)

    # ---- taking over ----

    def adopt(self) -> int:
        """Takes over what the table says is open; backing ids that it does not know are given
        back. What a predecessor opened is doubtful where a tier has lost bytes: the predecessor may
        have opened it before. Returns the number of handles."""
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
            return self._table.remove(slot.fh)  # its OPEN was not answered and comes again
        self.nodes.adopt(slot.nodeid, slot.fh, mode, slot.backing_id)
        if mode is Mode.CACHED:
            self._vfs.adopt(slot.fh, slot.nodeid, slot.size, slot.nonce)
