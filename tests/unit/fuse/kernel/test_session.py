"""The session on a socket in place of /dev/fuse: what it answers to which request, and when."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from cachefs.client.connection import Connection
from cachefs.core import messages as m
from cachefs.core.errors import ProtocolError
from cachefs.core.model import ROOT_INO, UfsSpec, nodeid
from cachefs.fuse.attributes import Defaults
from cachefs.fuse.kernel import codec
from cachefs.fuse.kernel.codec import RESENT, Notify, Op
from cachefs.fuse.kernel.negotiation import Negotiated, negotiate
from cachefs.fuse.kernel.session import KernelSession
from cachefs.fuse.kernel.table import Mode, TakeoverTable
from cachefs.fuse.runs import CoroutineRunner
from cachefs.fuse.vfs import Vfs
from tests.unit.fuse.fake_node import NAMESPACE, FakeNode, assert_no_more_descriptors, descriptors
from tests.unit.fuse.kernel.requests import (
    init_request,
    open_body,
    read_body,
    release_body,
    request,
    u32,
    u64,
)

MIB = 1 << 20
BIG = random.Random(5).randbytes(9 * MIB + 77)
NOBODY = 0x3FFFFFFF  # a pid that no process has
_ENTRY_BYTES = codec.ENTRY_OUT.size


class Kernel:
    """The other side: sends requests, keeps replies by number and notifications in order."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.replies: dict[int, tuple[int, bytes]] = {}
        self.notifications: list[tuple[int, bytes]] = []
        self.came = trio.Condition()
        self.unique = 0

    async def read_replies(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.sock)
            data = self.sock.recv(2 * MIB)
            length, error, unique = codec.OUT_HEADER.unpack_from(data)
            assert length == len(data)
            async with self.came:
                if unique:
                    assert unique not in self.replies, "answered twice"
                    self.replies[unique] = (-error, data[16:])
                else:
                    self.notifications.append((error, data[16:]))
                self.came.notify_all()

    def send(self, op: int, body: bytes = b"", *, at: int = 1, bit: int = 0, pid: int = 0) -> int:
        """The number of the request."""
        self.unique += 2
        unique = self.unique | bit
        data = request(op, body, unique=unique, nodeid=at, pid=pid or os.getpid())
        self.sock.send(data)
        return unique

    async def reply(self, unique: int) -> tuple[int, bytes]:
        """(errno, body)."""
        async with self.came:
            while unique not in self.replies:
                await self.came.wait()
        return self.replies.pop(unique)

    async def ask(self, op: int, body: bytes = b"", *, at: int = 1, bit: int = 0) -> bytes:
        """The body of what is no error."""
        error, data = await self.reply(self.send(op, body, at=at, bit=bit))
        assert error == 0, os.strerror(error)
        return data

    async def fails(self, op: int, body: bytes = b"", *, at: int = 1) -> int:
        error, data = await self.reply(self.send(op, body, at=at))
        assert data == b""
        return error

    async def notified(self, code: int) -> bytes:
        async with self.came:
            while True:
                for number, data in self.notifications:
                    if number == code:
                        return data
                await self.came.wait()

    async def look(self, path: str) -> int:
        """The nodeid at a path."""
        where = ROOT_INO
        for name in path.encode().split(b"/"):
            where = struct.unpack_from("<Q", await self.ask(Op.LOOKUP, name + b"\0", at=where))[0]
        return where

    async def open(self, path: str) -> tuple[int, int]:
        """(nodeid, handle)."""
        where = await self.look(path)
        fh, flags, backing_id = struct.unpack(
            "<QIi", await self.ask(Op.OPEN, open_body(), at=where)
        )
        assert flags == 2 | 32, "KEEP_CACHE and NOFLUSH: a socket passes nothing through"
        assert backing_id == 0
        return where, fh


class Served:
    """A session under test."""

    def __init__(self, kernel: Kernel, session: KernelSession, table: TakeoverTable) -> None:
        self.kernel = kernel
        self.session = session
        self.table = table


Test = Callable[[Served], Awaitable[None]]


def values() -> Negotiated:
    flags = int(sum(codec.Init))
    return negotiate(init_request(41, flags), may_passthrough="", pages_limit=256)[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode() as node:
        node.add_dir("d")
        node.add_file("d/warm", b"warm bytes")
        node.add_file("d/cold", b"cold bytes", published=False)
        node.add_file("d/big", BIG, published=False)
        node.add_file("empty", b"", published=False)
        node.add_link("link", b"d/warm")
        node.listen(tmp_path / "node.sock")
        yield node


@pytest.fixture
def run(node: FakeNode, tmp_path: Path) -> Callable[..., None]:
    """Runs a test on a session; no descriptor of a cache file is left after it."""

    async def main(test: Test, table: TakeoverTable, resend: bool) -> None:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        runs = CoroutineRunner()
        with theirs, ours, trio.fail_after(30):
            hello = m.Hello(role="fuse", pid=os.getpid())
            conn = await Connection.connect(str(tmp_path / "node.sock"), hello, waits=runs)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conn.run)
                attached = await conn.attach(m.Attach(UfsSpec("s3://b")))
                vfs = Vfs(conn, attached, Defaults(10, 20), waits=runs)
                conn.on_event, conn.on_reconnected = vfs.on_event, vfs.on_reconnected
                kernel = Kernel(theirs)
                nursery.start_soon(kernel.read_replies)
                session = KernelSession(vfs, runs, ours.fileno(), table, values())
                nursery.start_soon(session.serve, resend)
                await test(Served(kernel, session, table))
                session.retire()
                await trio.testing.wait_all_tasks_blocked()
                vfs.close()
                nursery.cancel_scope.cancel()

    def start(test: Test, table: TakeoverTable | None = None) -> None:
        before = descriptors()
        taken_over = table is not None
        table = table or TakeoverTable.create()
        trio.run(main, test, table, taken_over)
        table.close()
        assert_no_more_descriptors(before)

    return start


Run = Callable[..., None]


# ---- names and bytes ----


def test_a_file_from_lookup_to_release(run: Run, node: FakeNode) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        for path, data in (("d/warm", b"warm bytes"), ("d/cold", b"cold bytes"), ("empty", b"")):
            where, fh = await kernel.open(path)
            assert await kernel.ask(Op.READ, read_body(fh, 0, 4096), at=where) == data
            assert await kernel.ask(Op.READ, read_body(fh, 5, 3), at=where) == data[5:8]
            assert await kernel.ask(Op.RELEASE, release_body(fh), at=where) == b""
        assert len(served.table) == 0
        facts = served.session.facts()
        assert facts["reads"] == 6
        assert facts["cached_opens"] == 3
        assert facts["passthrough_opens"] == facts["open_files"] == 0
        assert not served.session.passthrough, "a socket refuses it"
        assert served.session.why_not

    run(test)


def test_a_big_file_is_read_in_parts(run: Run) -> None:
    async def test(served: Served) -> None:
        where, fh = await served.kernel.open("d/big")
        for offset in (0, 9 * MIB, 3 * MIB + 5):
            body = read_body(fh, offset, 32 << 10)
            expected = BIG[offset : offset + (32 << 10)]
            assert await served.kernel.ask(Op.READ, body, at=where) == expected

    run(test)


def test_a_part_is_closed_when_the_kernel_has_it(run: Run, node: FakeNode) -> None:
    """By the read that asked for it, and by one that found it."""
    part_bytes = 128 << 10

    def opened(body: m.Message) -> tuple[m.Message, None]:
        return m.Opened(7, len(BIG), complete=False, has_descriptor=False), None

    def grant(body: m.Message) -> tuple[m.Message, int]:
        assert isinstance(body, m.Ensure)
        fd = os.memfd_create("part")
        end = body.offset + part_bytes
        os.write(fd, BIG[body.offset : end])
        return m.Ensured(body.offset, end, body.offset, segment=True, keep=0), fd

    node.scripts[m.Open], node.scripts[m.Ensure] = opened, grant

    async def test(served: Served) -> None:
        session, sent = served.session, []

        def send(header: bytes, fd: int, position: int, size: int) -> bool:
            sent.append(size)
            return session._device.write(header + os.pread(fd, size, position))

        session._splicer.send = send  # type: ignore[method-assign]
        where, fh = await served.kernel.open("d/big")
        segments = session._vfs.files.table.get(fh).segments
        for offset, size, left in ((0, 128, 0), (128, 64, 1), (192, 64, 0)):
            body = read_body(fh, offset << 10, size << 10)
            expected = BIG[offset << 10 : offset + size << 10]
            assert await served.kernel.ask(Op.READ, body, at=where) == expected
            assert len(segments) == left
        assert sent == [128 << 10, 64 << 10, 64 << 10]
        assert len(node.asked(m.Ensure)) == 2

    run(test)


def test_attributes_of_a_former_file_are_not_those_of_the_one_that_has_its_ino(
    run: Run, node: FakeNode
) -> None:
    """The answer of the server is what tells that the file is another one."""

    async def test(served: Served) -> None:
        where, fh = await served.kernel.open("d/big")
        node.give_again(node.find("d/big"), b"short")
        served.session._vfs.invalidate_everything()
        reply = await served.kernel.ask(Op.GETATTR, bytes(16), at=where)
        assert int.from_bytes(reply[24:32], "little") == len(BIG), "attr_out, ino, size"
        await served.kernel.ask(Op.RELEASE, release_body(fh), at=where)

    run(test)


def test_other_requests(run: Run) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        assert await kernel.ask(Op.READLINK, at=await kernel.look("link")) == b"d/warm"
        assert len(await kernel.ask(Op.STATFS)) == 80
        assert await kernel.ask(Op.ACCESS, u32(os.R_OK) + u32(0)) == b""
        assert len(await kernel.ask(Op.GETATTR, bytes(16))) == 104
        error, data = await kernel.reply(kernel.send(Op.LOOKUP, b"none\0"))
        assert error == 0
        assert data[:8] == bytes(8), "a negative entry, which the kernel keeps"

    run(test)


@pytest.mark.parametrize(
    "op",
    [
        Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2,
        Op.LINK, Op.WRITE, Op.SETXATTR, Op.REMOVEXATTR, Op.CREATE, Op.FALLOCATE, Op.TMPFILE,
        Op.COPY_FILE_RANGE, Op.COPY_FILE_RANGE_64,
    ],
)  # fmt: skip
def test_every_change_is_refused(run: Run, op: Op) -> None:
    async def test(served: Served) -> None:
        assert await served.kernel.fails(op, bytes(64)) == errno.EROFS

    run(test)


def test_ioctls_that_change_a_file_are_refused(run: Run) -> None:
    async def test(served: Served) -> None:
        for command, expected in ((0x40086602, errno.EROFS), (0x5401, errno.ENOTTY)):
            body = codec.IOCTL_IN.pack(0, 0, command, 0, 8, 0)
            assert await served.kernel.fails(Op.IOCTL, body) == expected

    run(test)


def test_an_open_for_writing_never_joins(run: Run) -> None:
    """Of a file that the session serves already, by whichever mode."""

    async def test(served: Served) -> None:
        kernel = served.kernel
        where, _ = await kernel.open("d/warm")
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_CREAT, os.O_ACCMODE):
            assert await kernel.fails(Op.OPEN, open_body(flags), at=where) == errno.EROFS

    run(test)


def test_errors_have_their_errno_and_the_session_goes_on(run: Run) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        where = await kernel.look("d/warm")
        assert await kernel.fails(Op.LSEEK, bytes(24)) == errno.ENOSYS
        assert await kernel.fails(4711, bytes(8)) == errno.ENOSYS
        assert await kernel.fails(Op.INIT, bytes(64)) == errno.EOPNOTSUPP
        assert await kernel.fails(Op.OPEN, open_body(os.O_RDWR), at=where) == errno.EROFS
        assert await kernel.fails(Op.OPEN, open_body(), at=await kernel.look("d")) == errno.EISDIR
        assert await kernel.fails(Op.OPEN, open_body(), at=999) == errno.ESTALE
        assert await kernel.fails(Op.READ, read_body(77, 0, 10), at=where) == errno.ENOENT
        assert await kernel.fails(Op.LOOKUP, b"x" * 256 + b"\0") == errno.ENAMETOOLONG
        assert await kernel.fails(Op.LOOKUP, b"no end") == errno.EIO
        assert await kernel.fails(Op.ACCESS, u32(os.W_OK) + u32(0)) == errno.EROFS
        assert await kernel.fails(Op.OPENDIR, open_body(), at=where) == errno.ENOTDIR
        assert (await kernel.open("d/warm"))[0] == where

    run(test)


def test_requests_without_an_answer(run: Run) -> None:
    async def test(served: Served) -> None:
        served.kernel.send(Op.FORGET, u64(1), at=5)
        served.kernel.send(Op.BATCH_FORGET, u32(1) + u32(0) + u64(5) + u64(1))
        served.kernel.send(Op.INTERRUPT, u64(4711))
        await served.kernel.ask(Op.STATFS)
        assert served.kernel.replies == {}

    run(test)


def test_what_is_no_request_ends_the_session(run: Run) -> None:
    async def test(served: Served) -> None:
        served.kernel.sock.send(request(Op.STATFS)[:-4] + b"more than four")
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        run(test)
    assert caught.group_contains(ProtocolError)


# ---- directories ----


def names(data: bytes, *, plus: bool) -> list[tuple[bytes, int]]:
    """(name, cookie) of a listing."""
    found, at = [], 0
    while at < len(data):
        at += _ENTRY_BYTES * plus
        _, cookie, size, _ = codec.DIRENT.unpack_from(data, at)
        found.append((data[at + 24 : at + 24 + size], cookie))
        at += 24 + size + -size % 8
    return found


@pytest.mark.parametrize("op", [Op.READDIR, Op.READDIRPLUS])
@pytest.mark.parametrize("dies", [False, True])
def test_a_listing_in_small_parts(run: Run, node: FakeNode, op: Op, dies: bool) -> None:
    """`dies`: each part is asked of a session that has never heard of the handle."""
    expected = [b".", b"..", *(f"name-{number:04}".encode() for number in range(2500))]
    node.add_dir("many")
    for name in expected[2:]:
        node.add_link(f"many/{name.decode()}", b"x")

    async def test(served: Served) -> None:
        kernel = served.kernel
        where = await kernel.look("many")
        (fh,) = struct.unpack_from("<Q", await kernel.ask(Op.OPENDIR, open_body(), at=where))
        found: list[bytes] = []
        cookie, number = 0, fh
        while part := await kernel.ask(op, read_body(number, cookie, 4096), at=where):
            rows = names(part, plus=op is Op.READDIRPLUS)
            assert len(part) <= 4096
            found += [name for name, _ in rows]
            cookie = rows[-1][1]
            number += dies
        assert found == expected
        await kernel.ask(Op.RELEASEDIR, release_body(fh), at=where)

    run(test)


def test_entries_of_a_listing_lead_where_names_do(run: Run) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        where = await kernel.look("d")
        await kernel.open("d/big")
        assert served.session.opens.nodes.move_on(await kernel.look("d/big"))
        (fh,) = struct.unpack_from("<Q", await kernel.ask(Op.OPENDIR, open_body(), at=where))
        data = await kernel.ask(Op.READDIRPLUS, read_body(fh, 0, 4096), at=where)
        at = data.index(b"big") - 24 - _ENTRY_BYTES
        (listed,) = struct.unpack_from("<Q", data, at)
        assert listed == await kernel.look("d/big") == nodeid(listed & (1 << 48) - 1, 1)

    run(test)


# ---- waiting ----


def test_nobody_waits_for_another_ones_answer(run: Run, node: FakeNode) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        cold, warm = await kernel.look("d/cold"), await kernel.look("d/warm")
        gate = node.hold(m.Open)
        waiting = [kernel.send(Op.OPEN, open_body(), at=cold) for _ in range(100)]
        await trio.to_thread.run_sync(node.wait_asked, m.Open, 100)
        await kernel.ask(Op.OPEN, open_body(), at=warm)
        assert kernel.replies == {}
        gate.set()
        handles = {struct.unpack_from("<Q", (await kernel.reply(one))[1])[0] for one in waiting}
        assert handles == set(waiting), "a handle is numbered by its request"

    run(test)


def test_a_signal_ends_a_wait_and_not_the_work(run: Run, node: FakeNode) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        cold = await kernel.look("d/cold")
        gate = node.hold(m.Open)
        mine = kernel.send(Op.OPEN, open_body(), at=cold)
        gone = kernel.send(Op.OPEN, open_body(), at=cold, pid=NOBODY)
        await trio.to_thread.run_sync(node.wait_asked, m.Open, 2)
        for unique in (mine, gone):
            kernel.send(Op.INTERRUPT, u64(unique))
            kernel.send(Op.INTERRUPT, u64(unique))  # the kernel may say it again
        assert await kernel.reply(gone) == (errno.EINTR, b"")
        await kernel.ask(Op.STATFS)
        assert mine not in kernel.replies, "this process has no signal that ends something"
        gate.set()
        assert (await kernel.reply(mine))[0] == 0

    run(test)


def test_who_retires_leaves_requests_to_the_successor(run: Run, node: FakeNode) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        cold = await kernel.look("d/cold")
        gate = node.hold(m.Open)
        kernel.send(Op.OPEN, open_body(), at=cold)
        await trio.to_thread.run_sync(node.wait_asked, m.Open)
        served.session.retire()
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        kernel.send(Op.STATFS)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert kernel.replies == {}
        assert len(served.table) == 0

    run(test)


# ---- taking over ----


def test_replies_repeat_the_bit(run: Run) -> None:
    async def test(served: Served) -> None:
        kernel = served.kernel
        await kernel.ask(Op.STATFS, bit=RESENT)
        await kernel.ask(Op.LOOKUP, b"d\0", bit=RESENT)
        where = await kernel.look("d/cold")
        unique = kernel.send(Op.OPEN, open_body(), at=where, bit=RESENT)
        error, body = await kernel.reply(unique)
        assert (error, body[:8]) == (0, u64(unique & ~RESENT))
        data = await kernel.ask(Op.READ, read_body(unique & ~RESENT, 0, 10), at=where, bit=RESENT)
        assert data == b"cold bytes"
        unique = kernel.send(Op.LSEEK, bytes(24), bit=RESENT)
        assert (await kernel.reply(unique))[0] == errno.ENOSYS

    run(test)


def test_a_successor_reads_what_was_open_and_asks_for_the_rest(run: Run, node: FakeNode) -> None:
    cold, big, gone = (node.find(f"d/{name}") for name in ("cold", "big", "warm"))
    table = TakeoverTable.create()
    table.add(700, cold, Mode.CACHED, node.inodes[cold])
    table.add(701, nodeid(big, 3), Mode.CACHED, node.inodes[big])
    table.add(702, gone, Mode.CACHED, node.inodes[gone])
    node.remove("d/warm")
    other = msgspec.structs.replace(node.inodes[cold], size=11)  # another size than the server's
    table.add(703, cold, Mode.CACHED, other)

    async def test(served: Served) -> None:
        kernel = served.kernel
        await kernel.notified(Notify.RESEND)
        await kernel.notified(Notify.INC_EPOCH)
        assert await kernel.ask(Op.READ, read_body(700, 0, 10), at=cold) == b"cold bytes"
        data = await kernel.ask(Op.READ, read_body(701, 5 * MIB, 4096), at=nodeid(big, 3))
        assert data == BIG[5 * MIB : 5 * MIB + 4096]
        reply = await kernel.ask(Op.GETATTR, bytes(16), at=gone)
        assert int.from_bytes(reply[24:32], "little") == 10, "attr_out, ino, size"
        assert await kernel.ask(Op.READ, read_body(702, 0, 10), at=gone) == b"warm bytes"
        assert await kernel.fails(Op.READ, read_body(703, 0, 10), at=cold) == errno.ESTALE
        assert await kernel.look("d/big") == nodeid(big, 4), "never sent back twice"
        for fh, where in ((700, cold), (701, nodeid(big, 3)), (702, gone), (703, cold)):
            await kernel.ask(Op.RELEASE, release_body(fh), at=where)
        assert len(served.table) == 0

    run(test, table)


def test_what_changed_is_told_to_the_kernel(run: Run, node: FakeNode) -> None:
    async def test(served: Served) -> None:
        directory = await served.kernel.look("d")
        node.event(m.Invalidate(NAMESPACE, 1, [(directory, b"warm")]))
        body = await served.kernel.notified(Notify.INVAL_ENTRY)
        assert body == u64(directory) + u32(4) + u32(1) + b"warm\0"

    run(test)
