"""The file system without FUSE, on a scripted server behind a socket pair."""

from __future__ import annotations

import errno
import os
import random
import resource
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from cachefs.client.connection import Connection
from cachefs.core import messages as m
from cachefs.core.errors import (
    BadBody,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    ProtocolError,
    ReadOnly,
    Stale,
)
from cachefs.core.messages import MOST_KEPT
from cachefs.core.model import ROOT_INO, Inode, Kind, UfsSpec, nodeid
from cachefs.fuse import pread
from cachefs.fuse.attributes import Defaults, blocks, kernel_time
from cachefs.fuse.directories import FIRST
from cachefs.fuse.files import MAX_USES
from cachefs.fuse.pread import IN_THREAD, INLINE, FileReader
from cachefs.fuse.published import ANY_TIER
from cachefs.fuse.server_calls import MUST_WAIT
from cachefs.fuse.vfs import Vfs
from tests.unit.fuse.fake_node import NAMESPACE, FakeNode, assert_no_more_descriptors, descriptors

MIB = 1 << 20
LIMIT_S = 20.0
BIG = random.Random(5).randbytes(9 * MIB + 77)
DEFAULTS = Defaults(uid=10, gid=20)
Test = Callable[[Vfs], Awaitable[None]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(node: FakeNode, clock: Clock, tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test on a file system; no descriptor of a cache file is left after it."""

    async def main(test: Test) -> None:
        with trio.fail_after(30):
            hello = m.Hello(role="fuse", pid=os.getpid())
            conn = await Connection.connect(str(tmp_path / "node.sock"), hello)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conn.run)
                attached = await conn.attach(m.Attach(UfsSpec("s3://b")))
                vfs = Vfs(conn, attached, DEFAULTS, clock=clock, max_inodes=4000)
                conn.on_event = vfs.on_event
                conn.on_reconnected = vfs.on_reconnected
                await test(vfs)
                vfs.files.table.check_invariants()
                vfs.close()
                nursery.cancel_scope.cancel()

    def start(test: Test) -> None:
        before = descriptors()
        trio.run(main, test)
        assert_no_more_descriptors(before)

    return start


async def look(vfs: Vfs, path: str) -> int:
    """The nodeid at a path, as the kernel walks it."""
    ino = ROOT_INO
    for part in path.encode().split(b"/"):
        found = vfs.lookup_nowait(ino, part)
        if found is MUST_WAIT:
            found = await vfs.lookup(ino, part)
        assert found.inode is not None
        ino = nodeid(found.inode.ino)
    return ino


async def open_file(vfs: Vfs, path: str) -> int:
    node_id = await look(vfs, path)
    fh = vfs.open_nowait(node_id, os.O_RDONLY)
    return await vfs.open(node_id, os.O_RDONLY) if fh is MUST_WAIT else fh


def release_now(vfs: Vfs, ino: int) -> None:
    """Opens a file that needs no message, and closes it."""
    fh = vfs.open_nowait(ino, os.O_RDONLY)
    assert fh is not MUST_WAIT
    vfs.files.release(fh)


async def read(vfs: Vfs, fh: int, offset: int, size: int) -> bytes:
    data = vfs.files.read_nowait(fh, offset, size)
    return bytes(await vfs.files.read(fh, offset, size) if data is MUST_WAIT else data)


async def names(vfs: Vfs, fh: int, cookie: int = 0, take: int = 10**9) -> list[bytes]:
    found: list[bytes] = []
    while True:
        entries = vfs.readdir_nowait(fh, cookie)
        part = list(await vfs.readdir(fh, cookie) if entries is MUST_WAIT else entries)[:take]
        if not part:
            return found
        found += [entry.name for entry in part]
        cookie = part[-1].cookie


# ---- names -------------------------------------------------------------------------------------


def test_lookups_are_kept_for_as_long_as_they_hold(
    node: FakeNode, clock: Clock, run: Callable[[Test], None]
) -> None:
    node.valid_for_s = 60.0

    async def test(vfs: Vfs) -> None:
        first = await vfs.lookup(ROOT_INO, b"d")
        assert first.valid_for_s == 60.0
        clock.now += 20
        again = vfs.lookup_nowait(ROOT_INO, b"d")
        assert again == m.Found(first.inode, 40.0), "the kernel gets the time that is left"
        clock.now += 40
        assert vfs.lookup_nowait(ROOT_INO, b"d") is MUST_WAIT

    run(test)


def test_missing_names_are_kept_too(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        assert (await vfs.lookup(ROOT_INO, b"none")).inode is None
        assert vfs.lookup_nowait(ROOT_INO, b"none") == m.Found(None, 60.0)
        with pytest.raises(NameTooLong):
            vfs.lookup_nowait(ROOT_INO, b"n" * 256)

    run(test)


def test_an_invalidation_ends_it_and_reaches_the_kernel(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        told: list[tuple[list[tuple[int, bytes]], bool]] = []
        vfs.on_invalidated = lambda entries, everything: told.append((entries, everything))
        await look(vfs, "d/warm")
        vfs.on_event(m.Invalidate(NAMESPACE, 1, [(ROOT_INO, b"d")]))
        assert vfs.lookup_nowait(ROOT_INO, b"d") is MUST_WAIT
        assert told == [([(ROOT_INO, b"d")], False)]
        vfs.on_event(m.Invalidate(NAMESPACE, 2, everything=True))
        assert vfs.lookup_nowait(node.find("d"), b"warm") is MUST_WAIT
        assert told[1][1]
        assert (node.find("d"), b"warm") in told[1][0]

    run(test)


def test_an_answer_overtaken_by_its_invalidation_is_not_kept(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    gate = node.hold(m.Lookup)

    async def test(vfs: Vfs) -> None:
        async with trio.open_nursery() as nursery:

            async def slow() -> None:
                found = await vfs.lookup(ROOT_INO, b"d")
                assert found.valid_for_s == 0.0

            nursery.start_soon(slow)
            await trio.to_thread.run_sync(node.wait_asked, m.Lookup)
            vfs.on_event(m.Invalidate(NAMESPACE, 1, [(ROOT_INO, b"d")]))
            gate.set()
        assert vfs.lookup_nowait(ROOT_INO, b"d") is MUST_WAIT

    run(test)


def test_attributes(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/warm")
        found = vfs.getattr_nowait(ino)
        assert found is not MUST_WAIT
        assert found.inode is not None
        assert DEFAULTS.mode(found.inode) == 0o100644
        assert DEFAULTS.owner(found.inode) == (10, 20)
        assert await vfs.getattr(ino) == found
        root = await vfs.getattr(ROOT_INO)
        assert root.inode is not None
        assert DEFAULTS.mode(root.inode) == 0o40755

    run(test)


def test_what_is_shown() -> None:
    own = Inode(2, Kind.FILE, size=513, mode=0o4755, uid=1, gid=2)
    assert (DEFAULTS.mode(own), DEFAULTS.owner(own), blocks(own)) == (0o104755, (1, 2), 2)
    assert DEFAULTS.mode(Inode(2, Kind.SYMLINK)) == 0o120777
    assert blocks(Inode(2, Kind.FILE)) == 0
    assert kernel_time(-1) > 1e6
    assert kernel_time(0.0) == 0.0


def test_getattr_of_a_replaced_file(
    node: FakeNode, clock: Clock, run: Callable[[Test], None]
) -> None:
    """ESTALE for a name (the kernel looks it up again), the old attributes for who has it open."""

    async def test(vfs: Vfs) -> None:
        warm, cold = await look(vfs, "d/warm"), await look(vfs, "d/cold")
        fh = await open_file(vfs, "d/warm")
        node.remove("d/warm")
        node.remove("d/cold")
        vfs.invalidate_everything()
        with pytest.raises(Stale):
            await vfs.getattr(cold)
        found = await vfs.getattr(warm)
        assert found.inode is not None
        assert found.inode.size == 10
        vfs.files.release(fh)

    run(test)


@pytest.mark.parametrize("path", ["empty", "d/warm", "d/cold"])
def test_an_open_file_that_is_gone_has_its_attributes_until_it_is_closed(
    node: FakeNode, run: Callable[[Test], None], path: str
) -> None:
    """Also after the metadata cache has dropped them, here by an open that failed."""

    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, path)
        inode = node.inodes[ino]
        first, last = await open_file(vfs, path), await open_file(vfs, path)
        node.remove(path)
        with pytest.raises(Stale):
            await vfs.open(ino, os.O_RDONLY)
        for fh in (first, last):
            assert (await vfs.getattr(ino)).inode == inode
            vfs.files.release(fh)
        with pytest.raises(Stale):
            await vfs.getattr(ino)

    run(test)


def test_links_access_and_writes(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        link = await look(vfs, "link")
        assert vfs.readlink_nowait(link) == b"d/warm"
        assert await vfs.readlink(link) == b"d/warm"
        vfs.access(os.R_OK | os.X_OK)
        with pytest.raises(ReadOnly):
            vfs.access(os.W_OK)
        warm = await look(vfs, "d/warm")
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_RDWR | os.O_APPEND, os.O_CREAT):
            with pytest.raises(ReadOnly):
                vfs.open_nowait(warm, flags)
            with pytest.raises(ReadOnly):
                await vfs.open(warm, flags)

    run(test)


# ---- opening -----------------------------------------------------------------------------------


def test_a_warm_open_needs_no_message(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/warm")
        before = len(node.requests)
        fh = vfs.open_nowait(ino, os.O_RDONLY)
        assert fh is not MUST_WAIT
        assert bytes(vfs.files.read_nowait(fh, 0, 100)) == b"warm bytes"  # type: ignore[arg-type]
        vfs.files.release(fh)
        assert len(node.requests) == before
        vfs.files.report_uses()
        await trio.to_thread.run_sync(node.wait_asked, m.Used)
        assert node.asked(m.Used) == [m.Used([node.content_name(ino)], 10)]

    run(test)


def test_uses_are_reported_in_batches(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/warm")
        for _ in range(MAX_USES):
            fh = vfs.open_nowait(ino, os.O_RDONLY)
            assert fh is not MUST_WAIT
            vfs.files.release(fh)
        await trio.to_thread.run_sync(node.wait_asked, m.Used)
        assert [len(used.names) for used in node.asked(m.Used)] == [MAX_USES]  # type: ignore[attr-defined]

    run(test)


def test_what_is_not_surely_published_is_asked(node: FakeNode, run: Callable[[Test], None]) -> None:
    """A single link (being evicted), another size, a symbolic link: none of them is opened."""

    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/warm")
        published = node.pub / node.content_name(ino)
        (node.cache / node.content_name(ino)).unlink()
        assert vfs.open_nowait(ino, os.O_RDONLY) is MUST_WAIT
        published.unlink()
        published.write_bytes(b"warm bytes, too long")
        os.link(published, node.cache / node.content_name(ino))
        assert vfs.open_nowait(ino, os.O_RDONLY) is MUST_WAIT
        published.unlink()
        published.symlink_to("/etc/passwd")
        assert vfs.open_nowait(ino, os.O_RDONLY) is MUST_WAIT

    run(test)


def test_an_empty_file_needs_nothing(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        before = descriptors()
        fh = await open_file(vfs, "empty")
        assert descriptors() == before
        assert await read(vfs, fh, 0, 100) == b""
        assert node.asked(m.Open) == []
        vfs.files.release(fh)

    run(test)


def test_a_cold_small_file(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/cold")
        await trio.to_thread.run_sync(node.wait_asked, m.Release)
        assert node.open_handles == {}, "a complete file needs no handle at the server"
        assert await read(vfs, fh, 5, 100) == b"bytes"
        assert node.asked(m.Ensure) == []
        vfs.files.release(fh)

    run(test)


def test_a_stale_open_is_forgotten(node: FakeNode, run: Callable[[Test], None]) -> None:
    """So that the lookup that follows does not answer the same again."""

    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/cold")
        node.remove("d/cold")
        new = node.add_file("d/cold", b"new", published=False)
        with pytest.raises(Stale):
            await vfs.open(ino, os.O_RDONLY)
        assert await look(vfs, "d/cold") == new

    run(test)


def test_an_unknown_ino_is_opened_by_the_server(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    """The kernel remembers more names than this process."""

    async def test(vfs: Vfs) -> None:
        ino = node.find("d/warm")
        assert vfs.open_nowait(ino, os.O_RDONLY) is MUST_WAIT
        fh = await vfs.open(ino, os.O_RDONLY)
        assert await read(vfs, fh, 0, 4) == b"warm"
        vfs.files.release(fh)

    run(test)


def test_directories_and_unknown_handles(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        directory = await look(vfs, "d")
        with pytest.raises(IsADirectory):
            vfs.open_nowait(directory, os.O_RDONLY)
        with pytest.raises(NotADirectory):
            vfs.opendir(await look(vfs, "d/warm"))
        for call in (vfs.files.release, vfs.opener, vfs.directory_opener):
            with pytest.raises(NotFound):
                call(99)
        with pytest.raises(NotFound):
            vfs.files.read_nowait(99, 0, 1)

    run(test)


@pytest.mark.parametrize("opened_before", [False, True])
def test_no_descriptor_left(
    node: FakeNode, run: Callable[[Test], None], opened_before: bool
) -> None:
    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/warm")
        if opened_before:
            release_now(vfs, ino)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises(OSError) as caught:
                vfs.open_nowait(ino, os.O_RDONLY)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caught.value.errno == errno.EMFILE
        release_now(vfs, ino)

    run(test)


# ---- reading -----------------------------------------------------------------------------------


def test_a_partial_file_is_read_as_it_is_granted(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    """Grants of one page at a time: exact bytes, nothing asked twice."""

    def grant(body: m.Message) -> tuple[m.Message, None]:
        assert isinstance(body, m.Ensure)
        end = min((body.offset // MIB + 1) * MIB, len(BIG))
        return m.Ensured(body.offset // MIB * MIB if body.offset % MIB else body.offset, end), None

    node.scripts[m.Ensure] = grant

    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/big")
        rng = random.Random(1)
        for _ in range(60):
            offset, size = rng.randrange(len(BIG) + 100), rng.randrange(3 * MIB)
            assert await read(vfs, fh, offset, size) == BIG[offset : offset + size]
        assert await read(vfs, fh, 0, len(BIG) + 5) == BIG
        asked = len(node.asked(m.Ensure))
        assert asked <= 10
        assert await read(vfs, fh, 0, len(BIG)) == BIG
        assert len(node.asked(m.Ensure)) == asked
        assert isinstance(vfs.files.read_nowait(fh, 100, 100), memoryview)
        vfs.files.release(fh)
        await trio.to_thread.run_sync(node.wait_asked, m.Release)

    run(test)


def test_a_grant_of_the_whole_file_ends_the_questions(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    node.scripts[m.Ensure] = lambda _: (m.Ensured(0, 1, complete=True), None)

    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/big")
        assert await read(vfs, fh, 0, 10) == BIG[:10]
        assert await read(vfs, fh, 5 * MIB, 10) == BIG[5 * MIB :][:10]
        assert len(node.asked(m.Ensure)) == 1
        vfs.files.release(fh)

    run(test)


def test_segments_of_what_the_cache_refused(
    node: FakeNode, run: Callable[[Test], None], tmp_path: Path
) -> None:
    """No cache file; every MiB comes as a segment of its own; few of them stay open."""

    def opened(body: m.Message) -> tuple[m.Message, None]:
        return m.Opened(7, len(BIG), complete=False, has_descriptor=False), None

    def grant(body: m.Message) -> tuple[m.Message, int]:
        assert isinstance(body, m.Ensure)
        start = body.offset // MIB * MIB
        path = tmp_path / f"segment-{start}"
        path.write_bytes(BIG[start : start + MIB])
        fd = os.open(path, os.O_RDONLY)
        path.unlink()
        return m.Ensured(start, min(start + MIB, len(BIG)), start, segment=True), fd

    node.scripts[m.Open], node.scripts[m.Ensure] = opened, grant

    async def test(vfs: Vfs) -> None:
        before = descriptors()
        fh = await open_file(vfs, "d/big")
        for offset, size in [(0, 100), (MIB - 5, 10), (3 * MIB + 1, 2 * MIB), (len(BIG) - 9, 50)]:
            assert await read(vfs, fh, offset, size) == BIG[offset : offset + size]
            assert len(vfs.files.table.get(fh).segments) <= MOST_KEPT
        asked = len(node.asked(m.Ensure))
        assert await read(vfs, fh, len(BIG) - 20, 5) == BIG[-20:-15]
        assert len(node.asked(m.Ensure)) == asked, "the most recent segments are kept"
        vfs.files.release(fh)
        await trio.to_thread.run_sync(assert_no_more_descriptors, before)

    run(test)


def test_what_is_to_be_read_once_is_closed_by_the_read_of_its_last_byte(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    """Also where that read asks the server for nothing."""
    part_bytes = 128 << 10

    def opened(body: m.Message) -> tuple[m.Message, None]:
        return m.Opened(7, len(BIG), complete=False, has_descriptor=False), None

    def grant(body: m.Message) -> tuple[m.Message, int]:
        assert isinstance(body, m.Ensure)
        fd = os.memfd_create("part")
        os.write(fd, BIG[body.offset : body.offset + part_bytes])
        end = body.offset + part_bytes
        return m.Ensured(body.offset, end, body.offset, segment=True, keep=0), fd

    node.scripts[m.Open], node.scripts[m.Ensure] = opened, grant

    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/big")
        segments = vfs.files.table.get(fh).segments
        half = part_bytes // 2
        assert await vfs.files.read(fh, 0, half) == BIG[:half]
        assert len(segments) == 1
        assert vfs.files.read_nowait(fh, half, half) == BIG[half:part_bytes]
        assert not segments
        await vfs.files.make_readable(fh, part_bytes, part_bytes)
        assert vfs.files.in_memory(fh, part_bytes, part_bytes) is not None
        vfs.files.answered(fh, 2 * part_bytes)
        assert not segments
        assert len(node.asked(m.Ensure)) == 2
        vfs.files.release(fh)

    run(test)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("path", ["d/warm", "d/big"])
def test_bytes_that_the_disk_does_not_give_are_asked_anew(
    node: FakeNode, run: Callable[[Test], None], path: str, told: bool
) -> None:
    """Of a file that was complete, and of a partial one; once the server said that the disk hangs,
    nobody waits for it."""
    data = b"warm bytes" if path == "d/warm" else BIG
    go_on = threading.Event()

    def hang(*_: object) -> bytes:
        go_on.wait(LIMIT_S)
        return b""

    def past(body: m.Message) -> tuple[m.Message, int | None]:
        if isinstance(body, m.Open) and body.past_tier:
            return m.Opened(7, len(data), complete=False, has_descriptor=False), None
        if not isinstance(body, m.Ensure) or not body.past_tier:
            return node.default(body)
        fd = os.memfd_create("segment")
        os.write(fd, data[:MIB])
        return m.Ensured(0, min(MIB, len(data)), segment=True), fd

    node.scripts[m.Open] = node.scripts[m.Ensure] = past

    async def test(vfs: Vfs) -> None:
        vfs.files._reader.limit_s = 0.05 if not told else LIMIT_S
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileReader, "flags_of", _as_on_a_disk)
            patch.setattr(pread, "_read_all", hang)
            fh = await open_file(vfs, path)
            if told:
                assert await read(vfs, fh, 0, 0) == b""
                vfs.on_event(m.TierState(False))
                assert vfs.open_nowait(await look(vfs, "d/warm"), os.O_RDONLY) is MUST_WAIT
            with trio.fail_after(LIMIT_S / 2):
                assert await read(vfs, fh, 3, 5) == data[3:8]
            go_on.set()
        asked = node.asked(m.Ensure)[-1]
        assert isinstance(asked, m.Ensure)
        assert asked.past_tier
        vfs.files.release(fh)

    run(test)


@pytest.mark.parametrize("path", ["d/warm", "d/big"])
def test_an_open_file_of_a_tier_that_lost_bytes_is_read_past_it(
    node: FakeNode, run: Callable[[Test], None], path: str
) -> None:
    """[S-lost-writes] Also what was granted before."""
    data = b"warm bytes" if path == "d/warm" else BIG

    def past(body: m.Message) -> tuple[m.Message, int | None]:
        if isinstance(body, m.Open) and body.past_tier:
            return m.Opened(7, len(data), complete=False, has_descriptor=False), None
        if not isinstance(body, m.Ensure) or not body.past_tier:
            return node.default(body)
        fd = os.memfd_create("segment")
        os.write(fd, data[:MIB])
        return m.Ensured(0, min(MIB, len(data)), segment=True), fd

    node.scripts[m.Open] = node.scripts[m.Ensure] = past

    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, path)
        assert await read(vfs, fh, 3, 5) == data[3:8]
        vfs.on_event(m.TierState(True, tier=1, doubtful=True))
        assert not node.asked(m.Ensure) or not node.asked(m.Ensure)[-1].past_tier
        vfs.on_event(m.TierState(True, tier=0, doubtful=True))
        assert not vfs.keeps_pages
        assert await read(vfs, fh, 3, 5) == data[3:8]
        assert node.asked(m.Ensure)[-1].past_tier
        vfs.files.release(fh)

    run(test)


def test_what_one_tier_has_is_read_while_another_one_hangs(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        inode = await look(vfs, "d/warm")
        vfs.on_event(m.TierState(False, tier=1))
        assert not vfs.files.published.in_service(ANY_TIER)
        handle = vfs.open_nowait(inode, os.O_RDONLY)
        assert handle is not MUST_WAIT
        assert await read(vfs, handle, 0, 100) == b"warm bytes"
        vfs.files.release(handle)
        vfs.on_event(m.TierState(False, tier=0))
        assert vfs.open_nowait(inode, os.O_RDONLY) is MUST_WAIT
        for tier in (0, 1):
            vfs.on_event(m.TierState(True, tier=tier))
        assert vfs.files.published.in_service(ANY_TIER)

    run(test)


def _as_on_a_disk(reader: FileReader, device: int, fd: int) -> int:
    """Wherever the test's files lie."""
    in_memory = os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:")
    return INLINE if in_memory else IN_THREAD


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (m.Ensured(5, 5), ProtocolError),
        (m.Ensured(100, 200), ProtocolError),
        (m.Failure("stale", "changed"), Stale),
        (m.Done(), ProtocolError),
    ],
)
def test_grants_that_make_no_sense(
    node: FakeNode, run: Callable[[Test], None], answer: m.Message, error: type[Exception]
) -> None:
    node.scripts[m.Ensure] = lambda _: (answer, None)

    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/big")
        with pytest.raises(error):
            await vfs.files.read(fh, 0, 10)
        vfs.files.release(fh)

    run(test)


def test_a_cache_file_cut_short_is_an_error_and_never_zeros(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/warm")
        os.truncate(node.cache / node.content_name(node.find("d/warm")), 4)
        assert vfs.files.read_nowait(fh, 0, 10) is MUST_WAIT
        with pytest.raises(BadBody):
            await vfs.files.read(fh, 0, 10)
        vfs.files.release(fh)

    run(test)


def test_parallel_reads_of_one_handle(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/big")

        async def check(offset: int) -> None:
            assert await read(vfs, fh, offset, 100_000) == BIG[offset : offset + 100_000]

        async with trio.open_nursery() as nursery:
            for number in range(90):
                nursery.start_soon(check, number * 100_000)
        vfs.files.release(fh)

    run(test)


def test_an_interrupted_read_leaves_the_handle_usable(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    gate = node.hold(m.Ensure)

    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/big")
        with trio.move_on_after(0.05):
            await vfs.files.read(fh, 0, 10)
        await trio.to_thread.run_sync(node.wait_asked, m.Cancel)
        gate.set()
        assert await read(vfs, fh, 0, 10) == BIG[:10]
        vfs.files.release(fh)

    run(test)


def test_what_the_server_does_not_keep_is_not_released(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    node.keeps_complete = False

    async def test(vfs: Vfs) -> None:
        cold, big = await open_file(vfs, "d/cold"), await open_file(vfs, "d/big")
        assert await read(vfs, cold, 0, 100) == b"cold bytes"
        vfs.files.release(cold)
        vfs.files.release(big)
        await trio.to_thread.run_sync(node.wait_asked, m.Release)
        assert node.asked(m.Release) == [m.Release(1)], "the partial one"

    run(test)


def test_a_new_session_opens_partial_files_again(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        big, warm = await open_file(vfs, "d/big"), await open_file(vfs, "d/warm")
        assert await read(vfs, big, 0, 10) == BIG[:10]
        node.cut()
        await trio.to_thread.run_sync(node.wait_asked, m.Attach, 2)
        assert await read(vfs, warm, 0, 4) == b"warm"

        async def check(offset: int) -> None:
            assert await read(vfs, big, offset, 10) == BIG[offset : offset + 10]

        async with trio.open_nursery() as nursery:
            for number in range(1, 9):
                nursery.start_soon(check, number * MIB)
        assert len(node.open_handles) <= 1 or await settled(node)
        vfs.files.release(big)
        vfs.files.release(warm)

    async def settled(node: FakeNode) -> bool:
        opened = len(node.asked(m.Open)) - 1  # in the first session
        await trio.to_thread.run_sync(node.wait_asked, m.Release, opened - 1)
        return len(node.open_handles) == 1

    run(test)


def test_a_read_that_is_cut_off_never_uses_its_old_handle_in_the_next_session(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    """A server that starts again counts its handles from 1: the old number is another file's."""

    async def test(vfs: Vfs) -> None:
        big = await open_file(vfs, "d/big")
        gate = node.hold(m.Ensure)

        async def check() -> None:
            assert await read(vfs, big, MIB, 10) == BIG[MIB : MIB + 10]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(check)
            await trio.to_thread.run_sync(node.wait_asked, m.Ensure)
            asked = len(node.requests)
            node.cut()
            gate.set()
        after = [type(body) for body in node.requests[asked:]]
        assert after.index(m.Open) < after.index(m.Ensure), after
        vfs.files.release(big)

    run(test)


def test_files_of_a_lost_namespace_end(node: FakeNode, run: Callable[[Test], None]) -> None:
    """In another namespace the same ino is another file: nothing of it is read as the old one."""

    async def test(vfs: Vfs) -> None:
        big = await open_file(vfs, "d/big")
        assert await read(vfs, big, 0, 10) == BIG[:10]
        ino = node.find("d/big")
        node.scripts[m.Attach] = lambda _: (m.Attached(b"n" * 16, node.inodes[ROOT_INO]), None)
        node.scripts[m.Open] = lambda body: node.default(m.Open(NAMESPACE, ino))
        node.cut()
        await trio.to_thread.run_sync(node.wait_asked, m.Attach, 2)
        with pytest.raises(Stale):
            await read(vfs, big, 5 * MIB, 10)
        vfs.files.release(big)

    run(test)


# ---- inode numbers that are given again ----


def test_an_open_says_which_content_it_means(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        ino = node.find("d/cold")
        vfs.files.release(await open_file(vfs, "d/cold"))
        vfs._cache.forget_inode(ino)  # as after a client's death: the kernel knows the nodeid
        vfs.files.release(await vfs.open(ino, os.O_RDONLY))
        opens = node.asked(m.Open)
        assert [body.nonce for body in opens] == [node.inodes[ino].nonce] * 2  # type: ignore[attr-defined]

    run(test)


def test_an_open_file_is_not_opened_again_as_another_of_its_size(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    """Nor is one that a predecessor had open."""

    async def test(vfs: Vfs) -> None:
        big = await open_file(vfs, "d/big")
        assert await read(vfs, big, 0, 10) == BIG[:10]
        ino = node.find("d/big")
        vfs.adopt(1 << 40, node.inodes[ino])
        node.give_again(ino, BIG[::-1])
        node.cut()
        await trio.to_thread.run_sync(node.wait_asked, m.Attach, 2)
        for fh in (big, 1 << 40):
            with pytest.raises(Stale):
                await read(vfs, fh, 5 * MIB, 10)
            vfs.files.release(fh)

    run(test)


@pytest.mark.parametrize("by_a_predecessor", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_an_open_file_that_lost_its_name_is_opened_again_where_it_is_cached(
    node: FakeNode, run: Callable[[Test], None], by_a_predecessor: bool, cached: bool
) -> None:
    """[S-open-handles] The server refuses to open it."""

    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/big")
        fh = 1 << 40
        if by_a_predecessor:
            vfs.adopt(fh, node.inodes[ino])
        else:
            fh = await open_file(vfs, "d/big")
            assert await read(vfs, fh, 0, 10) == BIG[:10]
            node.cut()
            await trio.to_thread.run_sync(node.wait_asked, m.Attach, 2)
        if cached:
            node.publish(ino)
        node.remove("d/big")
        if cached:
            assert await read(vfs, fh, 5 * MIB, len(BIG)) == BIG[5 * MIB :]
        else:
            with pytest.raises(Stale):
                await read(vfs, fh, 5 * MIB, 10)
        with pytest.raises(Stale):
            await vfs.open(ino, os.O_RDONLY)
        vfs.files.release(fh)

    run(test)


def test_a_name_whose_ino_is_another_file_is_looked_up_again(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        given: list[int] = []
        vfs.on_given_again = given.append
        ino = await look(vfs, "d/cold")
        node.give_again(ino, b"other bytes")
        with pytest.raises(Stale):
            await vfs.open(ino, os.O_RDONLY)
        assert given == [], "nothing of it is open"
        assert await look(vfs, "d/cold") == ino
        fh = await vfs.open(ino, os.O_RDONLY)
        assert await read(vfs, fh, 0, 99) == b"other bytes"
        vfs.files.release(fh)

    run(test)


@pytest.mark.parametrize("how", ["lookup", "listing"])
def test_a_valid_name_of_an_ino_that_is_another_file_is_looked_up_again(
    node: FakeNode, run: Callable[[Test], None], how: str
) -> None:
    """The name's own validity has not ended when another name leads to the ino."""

    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "d/cold")
        assert vfs.lookup_nowait(node.find("d"), b"cold") is not MUST_WAIT
        node.give_again(ino, b"other bytes")
        node.rename("d/cold", "d/other")
        if how == "lookup":
            assert await look(vfs, "d/other") == ino
        else:
            await vfs._page(node.find("d"), FIRST)
        assert vfs.lookup_nowait(node.find("d"), b"cold") is MUST_WAIT
        assert (await vfs.lookup(node.find("d"), b"cold")).inode is None

    run(test)


def test_valid_names_of_an_ino_that_is_another_directory_are_looked_up_again(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        await look(vfs, "d/cold")
        ino = node.find("d")
        node.give_again(ino, b"")
        node.rename("d", "e")
        node.children[ino] = []
        assert await look(vfs, "e") == ino
        assert vfs.lookup_nowait(ino, b"cold") is MUST_WAIT

    run(test)


@pytest.mark.parametrize("how", ["lookup", "listing", "open"])
def test_who_keeps_nodeids_hears_of_an_ino_that_is_given_again(
    node: FakeNode, run: Callable[[Test], None], how: str
) -> None:
    async def test(vfs: Vfs) -> None:
        given: list[int] = []
        vfs.on_given_again = given.append
        big = await open_file(vfs, "d/big")
        ino = node.find("d/big")
        former = node.inodes[ino]
        node.give_again(ino, b"short")
        if how == "open":
            with pytest.raises(Stale):
                await vfs.open(ino, os.O_RDONLY)
        else:
            vfs.invalidate_everything()
            await (look(vfs, "d/big") if how == "lookup" else vfs._page(node.find("d"), FIRST))
        assert given == [ino]
        assert vfs.getattr_former(ino).inode == former, "an open file keeps its attributes"
        with pytest.raises(Stale):
            vfs.getattr_former(ino + 1)
        vfs.files.release(big)

    run(test)


@pytest.mark.parametrize("how", ["lookup", "getattr", "listing", "open"])
def test_a_successor_knows_what_it_adopted_from_what_has_its_ino_now(
    node: FakeNode, run: Callable[[Test], None], how: str
) -> None:
    """It has met no inode, but the nonces of open files."""

    async def test(vfs: Vfs) -> None:
        given: list[int] = []
        vfs.on_given_again = given.append
        big, same = node.find("d/big"), node.find("d/cold")
        former = node.inodes[big]
        vfs.adopt(1 << 40, former)
        vfs.adopt(2 << 40, node.inodes[same])
        node.give_again(big, b"short")
        if how == "lookup":
            await look(vfs, "d/big")
            await look(vfs, "d/cold")
        elif how == "listing":
            await vfs._page(node.find("d"), FIRST)
        elif how == "getattr":
            await vfs.getattr(big)
            await vfs.getattr(same)
        else:
            vfs.files.release(await vfs.open(big, os.O_RDONLY))
            vfs.files.release(await vfs.open(same, os.O_RDONLY))
        assert given == [big], "the same file keeps its nodeid"
        assert vfs.getattr_former(big).inode == former

    run(test)


def test_of_two_files_that_had_an_ino_before_a_takeover_neither_is_taken_for_the_other(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        given: list[int] = []
        vfs.on_given_again = given.append
        big = node.find("d/big")
        inode = node.inodes[big]
        vfs.adopt(1 << 40, msgspec.structs.replace(inode, nonce=inode.nonce - 1))
        vfs.adopt(2 << 40, inode)
        await vfs.getattr(big)
        assert given == [big]

    run(test)


def test_a_request_under_way_when_the_server_dies_is_made_again(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    gate = node.hold(m.Lookup)

    async def test(vfs: Vfs) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look, vfs, "d")
            await trio.to_thread.run_sync(node.wait_asked, m.Lookup)
            gate.set()
            del node.gates[m.Lookup]
            node.cut()

    run(test)


def test_the_largest_thread_read(node: FakeNode, run: Callable[[Test], None]) -> None:
    """More than the inline buffer holds goes through a thread, and is as exact."""

    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/big")
        await vfs.files.read(fh, 0, len(BIG))
        assert vfs.files.read_nowait(fh, 0, 3 * MIB) is MUST_WAIT
        assert await vfs.files.read(fh, 1, 3 * MIB) == BIG[1 : 3 * MIB + 1]
        vfs.files.release(fh)

    run(test)


# ---- directories -------------------------------------------------------------------------------


def test_listing_with_dots(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        root = vfs.opendir(ROOT_INO)
        assert await names(vfs, root) == [b".", b"..", b"d", b"empty", b"link"]
        fh = vfs.opendir(await look(vfs, "d"))
        for take in (1, 2, 100):
            assert await names(vfs, fh, take=take) == [b".", b"..", b"big", b"cold", b"warm"]
        dots = list(await vfs.readdir(fh, 0))[:2]
        assert [entry.inode.ino for entry in dots] == [node.find("d"), ROOT_INO]
        vfs.releasedir(fh)
        vfs.releasedir(root)

    run(test)


def test_a_listing_fills_the_cache(node: FakeNode, run: Callable[[Test], None]) -> None:
    async def test(vfs: Vfs) -> None:
        fh = vfs.opendir(node.find("d"))
        await names(vfs, fh)
        ino = await look(vfs, "d/warm")
        assert vfs.open_nowait(ino, os.O_RDONLY) is not MUST_WAIT
        assert [body for body in node.asked(m.Lookup) if body.name == b"warm"] == []  # type: ignore[attr-defined]

    run(test)


def test_a_large_directory_needs_a_message_a_page_and_little_memory(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    for number in range(3500):
        node._add("d", f"f{number:05d}", Kind.FILE)
    everything = [row[1] for row in node.children[node.find("d")]]

    async def test(vfs: Vfs) -> None:
        fh = vfs.opendir(await look(vfs, "d"))
        assert (await names(vfs, fh, take=170))[2:] == everything
        assert len(node.asked(m.ListDir)) == 4
        entries = list(await vfs.readdir(fh, 0))
        cookie = entries[500].cookie
        assert (await names(vfs, fh))[2:] == everything, "rewound"
        assert await names(vfs, fh, cookie) == everything[499:], "telldir and seekdir"
        fresh = vfs.opendir(await look(vfs, "d"))
        assert await names(vfs, fresh, cookie) == everything[499:], "a successor's handle"
        assert sum(vfs._cache.sizes()) <= 2 * 4000

    run(test)


def test_names_that_changed_since_their_page_came(
    node: FakeNode, run: Callable[[Test], None]
) -> None:
    async def test(vfs: Vfs) -> None:
        fh = vfs.opendir(node.find("d"))
        entries = await vfs.readdir(fh, 0)
        vfs.on_event(m.Invalidate(NAMESPACE, 1, [(node.find("d"), b"cold")]))
        valid = {entry.name: entry.valid_for_s for entry in entries}
        assert (valid[b"cold"], valid[b"warm"]) == (0.0, 60.0)

    run(test)


def test_many_open_files_are_small(node: FakeNode, run: Callable[[Test], None]) -> None:
    """100,000 open files fit: no descriptor for empty ones here, and little memory."""
    import tracemalloc

    async def test(vfs: Vfs) -> None:
        ino = await look(vfs, "empty")
        tracemalloc.start()
        opened = [vfs.open_nowait(ino, os.O_RDONLY) for _ in range(20_000)]
        used_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert used_bytes / len(opened) < 500
        for fh in opened:
            assert fh is not MUST_WAIT
            vfs.files.release(fh)

    run(test)


def test_threads_are_not_needed_for_what_memory_has(
    node: FakeNode, run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(vfs: Vfs) -> None:
        fh = await open_file(vfs, "d/warm")
        before = {*threading.enumerate()}
        for _ in range(100):
            assert vfs.files.read_nowait(fh, 0, 10) is not MUST_WAIT
        assert {*threading.enumerate()} <= before
        vfs.files.release(fh)

    run(test)
