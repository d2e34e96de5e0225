"""The session on /dev/fuse: reads all pending requests and answers those that need no wait.

A request that waits for the node's server is a run (`cachefs.fuse.runs`); the task that receives
the server's reply answers it. Delivery is at least once: the kernel resends requests that a
predecessor had read, with a bit in their number, which the reply repeats. Handlers only read, so
this is harmless; OPEN derives its handle from the request (`cachefs.fuse.kernel.opens`).
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import trio

from cachefs.core.errors import Interrupted, ProtocolError, Unsupported
from cachefs.core.model import MAX_NAME_BYTES
from cachefs.fuse.attributes import NOMINAL_BYTES, NOMINAL_FILES, PREFERRED_IO_BYTES
from cachefs.fuse.directories import Entries
from cachefs.fuse.errnos import Errnos
from cachefs.fuse.interrupts import Interrupts, has_signal, read_status
from cachefs.fuse.kernel import codec, splice
from cachefs.fuse.kernel.attributes import Attributes
from cachefs.fuse.kernel.codec import HEADER_BYTES, UNIQUE_MASK, Notify, Op
from cachefs.fuse.kernel.device import Device, Unmounted
from cachefs.fuse.kernel.listing_replies import ListingReplies
from cachefs.fuse.kernel.negotiation import Negotiated
from cachefs.fuse.kernel.opens import Opens
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.kernel_cache import KernelCache
from cachefs.fuse.orders import COMMANDS as ORDER_COMMANDS
from cachefs.fuse.orders import user_of
from cachefs.fuse.runs import CoroutineRunner, RunningRequest
from cachefs.fuse.server_calls import MUST_WAIT
from cachefs.fuse.vfs import Vfs

log = logging.getLogger(__name__)

REQUESTS_PER_ROUND: Final = 64  # answered in a row before other tasks run
_WRITES: Final = (
    Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2, Op.LINK,
    Op.WRITE, Op.SETXATTR, Op.REMOVEXATTR, Op.CREATE, Op.FALLOCATE, Op.TMPFILE,
    Op.COPY_FILE_RANGE, Op.COPY_FILE_RANGE_64,
)  # fmt: skip

_CHANGING_IOCTLS: Final = frozenset(  # FS_IOC_SETFLAGS and SETVERSION (64, 32 bits), FSSETXATTR
    (0x40086602, 0x40046602, 0x40087602, 0x40047602, 0x401C5820)
)

Handler = Callable[[int, int, int, int], bytes | None]  # unique, nodeid, pid, length -> reply
Answer = Coroutine[Any, Any, bytes | None]


class Waiting:
    """A request that waits for the server, kept by its number without the RESENT bit."""

    __slots__ = ("number", "pid", "run")

    def __init__(self, run: RunningRequest, pid: int) -> None:
        self.run = run
        self.pid = pid
        self.number = 0  # of its wait in `Interrupts`; 0: not watched yet


class KernelSession:
    """The session of one mount; `fd` is the descriptor of /dev/fuse after INIT."""

    def __init__(
        self, vfs: Vfs, runs: CoroutineRunner, fd: int, table: TakeoverTable, negotiated: Negotiated
    ) -> None:
        self._vfs = vfs
        self._runs = runs
        self._device = Device(fd, negotiated.buffer_bytes)
        self._buffer = self._device.buffer
        self.opens = Opens(vfs, self._device, table, negotiated.why_not)
        self._splicer = splice.Splicer(fd)
        self._errnos = Errnos()
        self._interrupts = Interrupts()
        self._attributes = Attributes(
            vfs.defaults, self.opens.nodes.current, generations=table.has_nonces
        )
        nodes = self.opens.nodes
        self._listings = ListingReplies(self._attributes, vfs.defaults, nodes.has_moved)
        self._kernel_cache = KernelCache(self._invalidate_entry, self._distrust_all)
        self._waiting: dict[int, Waiting] = {}
        self._handlers = self._table_of_handlers()
        self._counts = dict.fromkeys(("requests", "lookups", "reads", "waits"), 0)
        self._scope = trio.CancelScope()

    # ---- life cycle ----

    async def serve(self, resend: bool) -> None:
        """Answers requests until the mount ends or `retire` is called. With `resend`, takes over a
        predecessor's open files and has its unanswered requests sent again. Cancellation leaves
        requests unanswered, for a successor. Raises the exception of a bug."""
        self._vfs.on_invalidated = self._kernel_cache.invalidate
        self._kernel_cache.start()
        if resend:
            log.info("took over %d open files", self.opens.adopt())
            self._vfs.invalidate_everything()  # events were missed between the two processes
            self._device.notify(codec.notification(Notify.RESEND))
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._runs.nursery = nursery
                    nursery.start_soon(self._interrupts.watch)
                    await self._answer()
                    nursery.cancel_scope.cancel()
        finally:
            self._runs.close()
            self._kernel_cache.stop()
            self._splicer.close()
        if self._runs.failure is not None:
            raise self._runs.failure

    def retire(self) -> None:
        """Ends `serve`; unanswered requests are left to the successor."""
        self._scope.cancel()

    async def _answer(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._device.fd)
                self._drain()
        except Unmounted as err:
            log.info("the session has ended: %s", err)

    def facts(self) -> dict[str, int]:
        """Returns the counters for `cachefs status`."""
        opens = self.opens
        return {
            **self._counts,
            "passthrough_opens": opens.passthrough_opens,
            "cached_opens": opens.cached_opens,
            "open_files": len(opens.nodes),
        }

    @property
    def passthrough(self) -> bool:
        """True if complete files are opened with passthrough."""
        return not self.opens.why_not

    @property
    def why_not(self) -> str:
        """The reason why there is no passthrough: one line, "" when there is."""
        return self.opens.why_not

    # ---- requests ----

    def _drain(self) -> None:
        read, buffer, unpack = self._device.read, self._buffer, codec.IN_HEADER.unpack_from
        for count in range(REQUESTS_PER_ROUND):
            size = read()
            if not size:
                self._counts["requests"] += count
                return
            length, opcode, unique, nodeid, _, _, pid, _, _ = unpack(buffer)
            if length != size:
                raise ProtocolError(f"{size} bytes were read of a request of {length}")
            handler = self._handlers.get(opcode)
            try:
                if handler is not None:
                    reply = handler(unique, nodeid, pid, length)
                else:
                    reply = codec.error_reply(unique, errno.ENOSYS)
            except Exception as err:  # noqa: BLE001  the edge: every request is answered
                reply = codec.error_reply(unique, self._errnos.of(_name(opcode), err))
            if reply is not None:
                self._device.write(reply)
        self._counts["requests"] += REQUESTS_PER_ROUND

    def _later(self, opcode: Op, unique: int, pid: int, answer: Answer) -> bytes | None:
        """Starts a run that sends the result of `answer` as the reply. Returns None."""
        self._counts["waits"] += 1
        run = self._runs.start(self._finish(opcode, unique, answer))
        if run.wait is not None:
            self._waiting[unique & UNIQUE_MASK] = waiting = Waiting(run, pid)
            if opcode is Op.READ:  # the kernel sends no INTERRUPT for a caller of read-ahead pages
                waiting.number = self._interrupts.add(pid, run.interrupt)
        return None

    async def _finish(self, opcode: Op, unique: int, answer: Answer) -> None:
        try:
            reply = await answer
        except Exception as err:  # noqa: BLE001  the edge: every request is answered
            reply = codec.error_reply(unique, self._errnos.of(_name(opcode), err))
        waiting = self._waiting.pop(unique & UNIQUE_MASK, None)
        if waiting is not None:
            self._interrupts.remove(waiting.number)
        if reply is not None:
            self._device.write(reply)

    def _interrupt(self, unique: int, nodeid: int, pid: int, length: int) -> None:
        """Ends the wait of a caller with a signal that is meant to end it. The kernel sends one
        INTERRUPT per request, for the first signal, so the caller is watched from then on."""
        (number,) = codec.INTERRUPT_IN.unpack_from(self._buffer, HEADER_BYTES)
        waiting = self._waiting.get(number & UNIQUE_MASK)
        if waiting is None:
            return
        status = read_status(waiting.pid)
        if not waiting.number:
            waiting.number = self._interrupts.add(waiting.pid, waiting.run.interrupt)
        if not status or has_signal(status):
            waiting.run.interrupt(Interrupted("the caller got a signal"))

    # ---- names ----

    def _lookup(self, unique: int, nodeid: int, pid: int, length: int) -> bytes | None:
        self._counts["lookups"] += 1
        name = codec.name_in(self._buffer, length)
        found = self._vfs.lookup_nowait(nodeid, name)
        if found is MUST_WAIT:
            return self._later(Op.LOOKUP, unique, pid, self._looked_up(unique, nodeid, name))
        return self._attributes.entry_reply(unique, found)

    async def _looked_up(self, unique: int, nodeid: int, name: bytes) -> bytes:
        return self._attributes.entry_reply(unique, await self._vfs.lookup(nodeid, name))

    def _getattr(self, unique: int, nodeid: int, pid: int, length: int) -> bytes | None:
        if self.opens.nodes.is_former(nodeid):
            return self._attributes.attr_reply(unique, self._vfs.getattr_former(nodeid))
        found = self._vfs.getattr_nowait(nodeid)
        if found is MUST_WAIT:
            return self._later(Op.GETATTR, unique, pid, self._got_attr(unique, nodeid))
        return self._attributes.attr_reply(unique, found)

    async def _got_attr(self, unique: int, nodeid: int) -> bytes:
        found = await self._vfs.getattr(nodeid)
        if self.opens.nodes.is_former(nodeid):  # since that reply
            found = self._vfs.getattr_former(nodeid)
        return self._attributes.attr_reply(unique, found)

    def _readlink(self, unique: int, nodeid: int, pid: int, length: int) -> bytes | None:
        target = self._vfs.readlink_nowait(nodeid)
        if target is MUST_WAIT:
            return self._later(Op.READLINK, unique, pid, self._read_link(unique, nodeid))
        return codec.data_header(unique, len(target)) + target

    async def _read_link(self, unique: int, nodeid: int) -> bytes:
        target = await self._vfs.readlink(nodeid)
        return codec.data_header(unique, len(target)) + target

    def _access(self, unique: int, nodeid: int, pid: int, length: int) -> bytes:
        mask, _ = codec.ACCESS_IN.unpack_from(self._buffer, HEADER_BYTES)
        self._vfs.access(mask)
        return codec.error_reply(unique, 0)

    def _statfs(self, unique: int, nodeid: int, pid: int, length: int) -> bytes:
        blocks = NOMINAL_BYTES // PREFERRED_IO_BYTES
        return codec.statfs_reply(unique, blocks, NOMINAL_FILES, PREFERRED_IO_BYTES, MAX_NAME_BYTES)

    # ---- files ----

    def _open(self, unique: int, nodeid: int, pid: int, length: int) -> bytes | None:
        flags, _ = codec.OPEN_IN.unpack_from(self._buffer, HEADER_BYTES)
        reply = self.opens.open_nowait(unique, nodeid, flags, pid)
        if reply is MUST_WAIT:
            answer = self.opens.open(unique, nodeid, flags, pid)
            return self._later(Op.OPEN, unique, pid, self._opened(unique, nodeid, answer))
        return self._answer_open(unique, nodeid, reply)

    async def _opened(
        self, unique: int, nodeid: int, answer: Coroutine[Any, Any, bytes]
    ) -> bytes | None:
        return self._answer_open(unique, nodeid, await answer)

    def _answer_open(self, unique: int, nodeid: int, reply: bytes) -> bytes | None:
        """Sends the reply; releases the open if its caller no longer waits."""
        if not self._device.write(reply):
            self.opens.release(nodeid, unique & UNIQUE_MASK)
        return None

    def _read(self, unique: int, nodeid: int, pid: int, length: int) -> None:
        self._counts["reads"] += 1
        fh, offset, size, *_ = codec.READ_IN.unpack_from(self._buffer, HEADER_BYTES)
        if self._splice(unique, fh, offset, size):
            return
        data = self._vfs.files.read_nowait(fh, offset, size)
        if data is MUST_WAIT:
            self._later(Op.READ, unique, pid, self._read_later(unique, fh, offset, size))
        else:
            self._device.write_data(unique, data)

    async def _read_later(self, unique: int, fh: int, offset: int, size: int) -> None:
        await self._vfs.files.make_readable(fh, offset, size)
        if not self._splice(unique, fh, offset, size):
            self._device.write_data(unique, await self._vfs.files.read(fh, offset, size))

    def _splice(self, unique: int, fh: int, offset: int, size: int) -> bool:
        """Answers a read of bytes in memory with splice. Returns False if it did not answer."""
        if size < splice.MIN_BYTES:
            return False
        source = self._vfs.files.in_memory(fh, offset, size)
        if source is None:
            return False
        sent = self._splicer.send(codec.data_header(unique, source[2]), *source)
        if sent:
            self._vfs.files.answered(fh, offset + source[2])
        return sent

    def _release(self, unique: int, nodeid: int, pid: int, length: int) -> bytes:
        fh, *_ = codec.RELEASE_IN.unpack_from(self._buffer, HEADER_BYTES)
        self.opens.release(nodeid, fh)
        return codec.error_reply(unique, 0)

    # ---- directories ----

    def _opendir(self, unique: int, nodeid: int, pid: int, length: int) -> bytes:
        fh = self._vfs.opendir(nodeid, pid, unique & UNIQUE_MASK)
        return codec.open_reply(unique, fh, 0, 0)

    def _read_directory(
        self, op: Op, unique: int, nodeid: int, pid: int, length: int
    ) -> bytes | None:
        fh, cookie, size, *_ = codec.READ_IN.unpack_from(self._buffer, HEADER_BYTES)
        if not self._vfs.knows_directory(fh):
            self._vfs.opendir(nodeid, pid, fh)
        entries = self._vfs.readdir_nowait(fh, cookie)
        if entries is MUST_WAIT:
            answer = self._listed(op, unique, fh, cookie, size)
            return self._later(op, unique, pid, answer)
        return self._listing(op, unique, entries, size)

    async def _listed(self, op: Op, unique: int, fh: int, cookie: int, size: int) -> bytes:
        return self._listing(op, unique, await self._vfs.readdir(fh, cookie), size)

    def _listing(self, op: Op, unique: int, entries: Entries, size: int) -> bytes:
        encode = self._listings.names if op is Op.READDIR else self._listings.plus
        data = encode(entries, size)
        return codec.data_header(unique, len(data)) + data

    def _releasedir(self, unique: int, nodeid: int, pid: int, length: int) -> bytes:
        fh, *_ = codec.RELEASE_IN.unpack_from(self._buffer, HEADER_BYTES)
        self._vfs.releasedir(fh)
        return codec.error_reply(unique, 0)

    # ---- other requests ----

    def _forget(self, unique: int, nodeid: int, pid: int, length: int) -> None:
        """Ignores the request: lookups are not counted, the server resolves every known ino."""

    def _refuse_write(self, unique: int, nodeid: int, pid: int, length: int) -> bytes:
        self._vfs.refuse_write()

    def _ioctl(self, unique: int, nodeid: int, pid: int, length: int) -> bytes | None:
        """Takes announcements of orders on a directory. Refuses the commands that change a file; no
        other command is supported."""
        _, flags, command, _, size, _ = codec.IOCTL_IN.unpack_from(self._buffer, HEADER_BYTES)
        if command in _CHANGING_IOCTLS:
            self._vfs.refuse_write()
        if command not in ORDER_COMMANDS or not flags & codec.IOCTL_DIR:
            return codec.error_reply(unique, errno.ENOTTY)
        start = HEADER_BYTES + codec.IOCTL_IN.size
        argument = bytes(memoryview(self._buffer)[start : min(start + size, length)])
        uid = codec.IN_HEADER.unpack_from(self._buffer)[4]
        answer = self._vfs.orders.answer(command, user_of(uid, pid), argument)
        if isinstance(answer, bytes):
            return codec.ioctl_reply(unique, answer)
        return self._later(Op.IOCTL, unique, pid, self._answered_ioctl(unique, answer))

    async def _answered_ioctl(self, unique: int, answer: Awaitable[bytes]) -> bytes:
        return codec.ioctl_reply(unique, await answer)

    def _init(self, unique: int, nodeid: int, pid: int, length: int) -> bytes:
        raise Unsupported("INIT is answered when the file system is mounted, once")

    def _table_of_handlers(self) -> dict[int, Handler]:
        handlers: dict[int, Handler] = {
            Op.LOOKUP: self._lookup,
            Op.FORGET: self._forget,
            Op.BATCH_FORGET: self._forget,
            Op.GETATTR: self._getattr,
            Op.READLINK: self._readlink,
            Op.OPEN: self._open,
            Op.READ: self._read,
            Op.RELEASE: self._release,
            Op.STATFS: self._statfs,
            Op.ACCESS: self._access,
            Op.OPENDIR: self._opendir,
            Op.READDIR: functools.partial(self._read_directory, Op.READDIR),
            Op.READDIRPLUS: functools.partial(self._read_directory, Op.READDIRPLUS),
            Op.RELEASEDIR: self._releasedir,
            Op.INTERRUPT: self._interrupt,
            Op.IOCTL: self._ioctl,
            Op.INIT: self._init,
        }
        return handlers | dict.fromkeys(_WRITES, self._refuse_write)

    # ---- notifications (called by the notification thread) ----

    def _invalidate_entry(self, parent: int, name: bytes) -> None:
        self._device.notify(codec.inval_entry(parent, name))

    def _distrust_all(self) -> bool:
        return self._device.notify(codec.notification(Notify.INC_EPOCH))


def _name(opcode: int) -> str:
    return Op(opcode).name.lower() if opcode in Op.__members__.values() else f"opcode {opcode}"
