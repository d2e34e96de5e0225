"""A master over LMDB and a scripted origin: freshness, streaming, failures, events, restarts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.core import messages
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CacheFSError,
    CredentialsMissing,
    DeadlineExceeded,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    PositionGone,
    Stale,
    Throttled,
    Unreachable,
    Unsupported,
)
from cachefs.core.messages import Invalidate, Listing
from cachefs.core.model import ROOT_INO, ContentId, Inode, Kind, UfsSpec
from master import answers
from master.namespace import Master
from master.state.freshness import DEGRADED_VALID_S, MAX_VALID_S
from master.state.health import PROBE_EVERY_S
from master.store import transaction
from tests.services.memory import MemoryConnector, SyntheticConnector

UFS = UfsSpec("s3://bucket/prefix")
DEADLINE_S = 60.0
PATIENCE_S = answers.LISTING_PATIENCE_S  # which most tests here replace


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not turn a lookup's wait for a listing into a stat."""
    monkeypatch.setattr(answers, "LISTING_PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr(answers, "SLOW_LISTING_S", DEADLINE_S)


class Clock:
    """Wall time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds; the test's deadline bounds it."""
    while not condition():
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(
    directory: Path,
    origin: Any,
    clock: Clock,
    interval_s: float = 60.0,
    ufs: UfsSpec = UFS,
) -> AsyncIterator[Master]:
    master = Master.open(directory / "meta", ufs, origin, interval_s, clock)
    try:
        yield master
    finally:
        origin.script.unblock()
        await master.close()


async def ino_of(master: Master, path: bytes) -> int:
    found = await master.resolve(path)
    assert found.inode is not None, path
    return found.inode.ino


async def names_of(master: Master, ino: int = ROOT_INO, limit: int = 1000) -> list[bytes]:
    names: list[bytes] = []
    after = b""
    while True:
        page = await master.list_dir(ino, after, limit)
        names += [entry.name for entry in page.entries]
        after = page.next
        if not after:
            return names


async def raises(expected: type[CacheFSError], work: Awaitable[object]) -> CacheFSError:
    with pytest.raises(expected) as caught:
        await work
    return caught.value


def inode(entry: messages.Dentry) -> Inode:
    return msgspec.msgpack.decode(entry.inode, type=Inode)


# ---- lookups -----------------------------------------------------------------------------------


def test_two_lookups_are_stats_the_third_lists_and_then_nothing_is_asked(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"n%d" % n: b"x" for n in range(10)})
        async with opened(tmp_path, origin, clock) as master:
            assert master.lookup_nowait(ROOT_INO, b"n0") is None
            found = [await master.lookup(ROOT_INO, b"n%d" % n) for n in range(10)]
            assert (origin.calls["stat"], origin.calls["list_dir"]) == (2, 1)
            assert [f.inode is not None for f in found] == [True] * 10
            assert all(f.valid_for_s == 60.0 for f in found)
            absent = await master.lookup(ROOT_INO, b"absent")
            assert (absent.inode, absent.valid_for_s) == (None, 60.0)
            clock.now += 20
            assert master.lookup_nowait(ROOT_INO, b"absent") == messages.Found(None, 40.0)
            again = master.lookup_nowait(ROOT_INO, b"n5")
            assert again is not None
            assert (again.inode, again.valid_for_s) == (found[5].inode, 40.0)
            assert (origin.calls["stat"], origin.calls["list_dir"]) == (2, 1)

    run(work())


def test_a_stale_name_is_asked_for_and_keeps_its_ino(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            first = await master.lookup(ROOT_INO, b"x")
            clock.now += 61
            assert master.lookup_nowait(ROOT_INO, b"x") is None
            assert (await master.lookup(ROOT_INO, b"x")).inode == first.inode
            assert origin.calls["stat"] == 2

    run(work())


def test_a_changed_object_gets_a_new_ino_and_an_event(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            old = (await master.lookup(ROOT_INO, b"x")).inode
            origin.put(b"x", b"2")
            same = await master.lookup(ROOT_INO, b"x")
            assert same.inode == old, "within the interval what is known is served"
            clock.now += 61
            new = (await master.lookup(ROOT_INO, b"x")).inode
            assert old is not None
            assert new is not None
            assert new.ino != old.ino
            assert new.nonce != old.nonce
            await raises(Stale, master.getattr(old.ino))
            await raises(Stale, master.locate(old.ino))
            event = await anext(master.events(0))
            assert (event.seq, event.entries) == (1, [(ROOT_INO, b"x")])

    run(work())


def test_new_objects_appear_within_the_interval_and_take_back_their_absence(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            assert (await master.lookup(ROOT_INO, b"new")).inode is None
            origin.put(b"new", b"1")
            assert (await master.lookup(ROOT_INO, b"new")).inode is None
            clock.now += 60
            assert (await master.lookup(ROOT_INO, b"new")).inode is not None
            event = await anext(master.events(0))
            assert event.entries == [(ROOT_INO, b"new")]

    run(work())


def test_interval_zero_asks_at_every_access(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock, interval_s=0.0) as master:
            for calls in range(1, 6):
                found = await master.lookup(ROOT_INO, b"x")
                assert found.valid_for_s == 0.0
                assert master.lookup_nowait(ROOT_INO, b"x") is None
                assert (origin.calls["stat"], origin.calls["list_dir"]) == (calls, 0)
            assert await names_of(master) == [b"x"]
            origin.put(b"y", b"1")
            assert await names_of(master) == [b"x", b"y"]

    run(work())


def test_interval_minus_one_never_asks_again(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock, interval_s=-1.0) as master:
            assert await names_of(master) == [b"x"]
            origin.put(b"y", b"1")
            clock.now += 1e8
            assert await names_of(master) == [b"x"]
            found = await master.lookup(ROOT_INO, b"y")
            assert (found.inode, found.valid_for_s) == (None, MAX_VALID_S)
            assert (await master.getattr(ROOT_INO)).valid_for_s == MAX_VALID_S
            assert (origin.calls["stat"], origin.calls["list_dir"]) == (0, 1)

    run(work())


def test_a_clock_set_back_makes_everything_stale(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await names_of(master)
            clock.now -= 10
            assert master.lookup_nowait(ROOT_INO, b"x") is None
            assert (await master.lookup(ROOT_INO, b"x")).valid_for_s == 60.0

    run(work())


def test_lookups_of_one_name_share_a_stat_and_survive_a_cancelled_caller(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            origin.block("stat")
            callers = [asyncio.ensure_future(master.lookup(ROOT_INO, b"x")) for _ in range(2)]
            await asyncio.to_thread(origin.wait_blocked, "stat")
            callers[0].cancel()
            origin.unblock()
            assert (await callers[1]).inode is not None
            assert origin.calls["stat"] == 1
            assert callers[0].cancelled()

    run(work())


def test_a_lookup_waits_for_a_listing_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LISTING_PATIENCE_S", 0.001)

    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            origin.block("list_dir")
            listing = asyncio.ensure_future(names_of(master))
            await asyncio.to_thread(origin.wait_blocked, "list_dir")
            found = await master.lookup(ROOT_INO, b"x")
            assert found.inode is not None
            assert origin.calls["stat"] == 1
            origin.unblock()
            assert await listing == [b"x"]
            assert (await master.lookup(ROOT_INO, b"x")).inode == found.inode

    run(work())


def test_a_refused_listing_leaves_lookups_to_stats(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"n%d" % n: b"x" for n in range(9)})
        origin.fail("list_dir", None, AccessDenied("no listing"), 100)
        async with opened(tmp_path, origin, clock) as master:
            for n in range(9):
                assert (await master.lookup(ROOT_INO, b"n%d" % n)).inode is not None
            assert (origin.calls["stat"], origin.calls["list_dir"]) == (9, 1)
            await raises(AccessDenied, master.list_dir(ROOT_INO, b"", 10))

    run(work())


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b"])
def test_names_that_cannot_be(tmp_path: Path, name: bytes) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, Clock()) as master:
            assert (await master.lookup(ROOT_INO, name)).inode is None
            await raises(NameTooLong, master.lookup(ROOT_INO, b"x" * 256))
            assert not origin.calls

    run(work())


def test_parents_that_are_files_or_gone(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1", b"d/e/f": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            file, deep = await ino_of(master, b"x"), await ino_of(master, b"d/e")
            await raises(NotADirectory, master.lookup(file, b"y"))
            await raises(NotADirectory, master.list_dir(file, b"", 10))
            await raises(NotADirectory, master.resolve(b"x/y"))
            await raises(Stale, master.lookup(999, b"y"))
            await raises(IsADirectory, master.locate(deep))
            origin.delete(b"d")
            clock.now += 61
            assert (await master.lookup(ROOT_INO, b"d")).inode is None
            for gone in (master.lookup(deep, b"f"), master.list_dir(deep, b"", 9)):
                await raises(Stale, gone)
            await until(lambda: master.status()["names"] == 1)

    run(work())


# ---- attributes and paths ----------------------------------------------------------------------


def test_locate_names_the_bytes(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"d/e/f": b"123"})
        async with opened(tmp_path, origin, Clock()) as master:
            found = (await master.resolve(b"/d//e/f")).inode
            assert found is not None
            at = await master.locate(found.ino)
            assert (at.ufs, at.path, at.size, at.etag) == (UFS.key, b"d/e/f", 3, found.etag)
            assert at.content == ContentId.of(master.namespace, found)
            assert master.ufs(at.ufs) == UFS
            with pytest.raises(NotFound):
                master.ufs("s3://other")

    run(work())


def test_posix_origins_show_modes_owners_and_links(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({}, posix=True, ordered=False)
        origin.put(b"x", b"1", mode=0o640, uid=7, gid=8)
        origin.symlink(b"link", b"x")
        async with opened(tmp_path, origin, clock, ufs=UfsSpec("file:///data")) as master:
            assert sorted(await names_of(master)) == [b"link", b"x"]
            file = (await master.resolve(b"x")).inode
            link = (await master.resolve(b"link")).inode
            assert file is not None
            assert link is not None
            assert (file.mode, file.uid, file.gid) == (0o640, 7, 8)
            assert (link.kind, link.target) == (Kind.SYMLINK, b"x")
            await raises(Unsupported, master.locate(link.ino))
            calls = origin.calls["stat"]
            assert (await master.getattr(ROOT_INO)).valid_for_s == 60.0
            assert origin.calls["stat"] == calls + 1, "the root's attributes are the origin's"

    run(work())


def test_report_changed_looks_again_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1", b"y": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await names_of(master)
            changed, gone = await ino_of(master, b"x"), await ino_of(master, b"y")
            origin.put(b"x", b"2")
            origin.delete(b"y")
            await master.report_changed(changed)
            await master.report_changed(gone)
            await raises(Stale, master.getattr(changed))
            assert (await master.lookup(ROOT_INO, b"y")).inode is None
            assert await ino_of(master, b"x") != changed
            await master.report_changed(gone)
            seen = await collect(master, 0, 4)
            assert {name for e in seen for _, name in e.entries} == {b"x", b"y"}

    run(work())


def test_report_changed_while_the_origin_is_down_makes_the_next_access_ask(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await names_of(master)
            ino = await ino_of(master, b"x")
            origin.fail("stat", b"x", Unreachable("down"))
            await master.report_changed(ino)
            assert master.lookup_nowait(ROOT_INO, b"x") is None
            clock.now += PROBE_EVERY_S
            await master.lookup(ROOT_INO, b"x")
            await until(lambda: master.lookup_nowait(ROOT_INO, b"x") is not None)

    run(work())


# ---- listings ----------------------------------------------------------------------------------


def test_a_listing_streams_while_the_origin_is_being_listed(tmp_path: Path) -> None:
    async def work() -> None:
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()
        origin = GatedPages(3000, stop_after=2)
        async with opened(tmp_path, origin, Clock()) as master:
            ino = await ino_of(master, b"d000000")
            page = await master.list_dir(ino, b"", 1000)
            assert len(page.entries) >= 900
            assert page.next == page.entries[-1].name
            assert not origin.finished
            loop.call_soon(gate.set)
            await gate.wait()
            origin.gate_open.set()
            rest = []
            while page.next:
                page = await master.list_dir(ino, page.next, 1000)
                rest += page.entries
            assert rest[-1].name == b"f002999"

    run(work())


class GatedPages(SyntheticConnector):
    """One directory whose listing stops after some pages until the test lets it go on."""

    def __init__(self, files: int, stop_after: int) -> None:
        import threading

        super().__init__(directories=1, files_per_directory=files)
        self.gate_open = threading.Event()
        self.finished = False
        self._stop_after = stop_after

    def list_dir(self, path: bytes) -> Any:
        for n, page in enumerate(super().list_dir(path)):
            if n == self._stop_after and path and not self.gate_open.wait(DEADLINE_S):
                raise Unreachable("the test forgot the gate")
            yield page
        self.finished = self.finished or bool(path)


def test_pages_are_bounded_by_entries_and_by_bytes(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"%0250d" % n: b"x" for n in range(2000)})
        async with opened(tmp_path, origin, Clock()) as master:
            expected = [b"%0250d" % n for n in range(2000)]
            assert await names_of(master) == expected, "while the listing runs"
            page = await master.list_dir(ROOT_INO, b"", 1000)
            assert len(page.entries) < 1000
            assert len(messages.encode(1, page)) <= messages.MAX_FRAME_BYTES
            assert len((await master.list_dir(ROOT_INO, b"", 7)).entries) == 7
            assert await names_of(master, limit=1000) == expected
            assert await names_of(master, limit=1) == expected
            assert inode(page.entries[0]) == (await master.lookup(ROOT_INO, expected[0])).inode

    run(work())


def test_a_page_that_ends_with_the_directory_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"%d" % n: b"x" for n in range(5)})
        async with opened(tmp_path, origin, Clock()) as master:
            await names_of(master)
            page = await master.list_dir(ROOT_INO, b"", 5)
            assert (len(page.entries), page.next, page.valid_for_s) == (5, b"", 60.0)
            assert (await master.list_dir(ROOT_INO, b"4", 5)).entries == []

    run(work())


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("page_entries", [1, 2, 1000])
def test_a_directory_wins_over_an_object_in_another_page(
    tmp_path: Path, ordered: bool, page_entries: int
) -> None:
    async def work() -> None:
        origin = CrossPage(page_entries, ordered)
        async with opened(tmp_path, origin, Clock()) as master:
            assert await names_of(master) == [b"a!", b"a.txt", b"a", b"ab"]
            found = (await master.lookup(ROOT_INO, b"a")).inode
            assert found is not None
            assert found.kind is Kind.DIRECTORY
            assert master.status()["hidden_keys"] == 1
            assert master.status()["names"] == 4
            assert await names_of(master, found.ino) == [b"f"]

    run(work())


class CrossPage(MemoryConnector):
    """Yields the object `a` beside the directory `a/`, as a store of flat keys does."""

    def __init__(self, page_entries: int, ordered: bool) -> None:
        super().__init__({b"a!": b"1", b"a.txt": b"2", b"a/f": b"3", b"ab": b"4"}, ordered=ordered)
        self._size = page_entries

    def list_dir(self, path: bytes) -> Any:
        from connectors.base import Entry, Page, order_key

        entries = [entry for page in super().list_dir(path) for entry in page.entries]
        if not path:
            entries.append(Entry(b"a", entries[0].fingerprint.__class__(Kind.FILE, 1, 5, "o")))
        if self.capabilities.ordered_listings:
            entries.sort(key=lambda e: order_key(e.name, e.fingerprint.kind is Kind.DIRECTORY))
        for start in range(0, len(entries), self._size):
            page = entries[start : start + self._size]
            directories = {e.name for e in page if e.fingerprint.kind is Kind.DIRECTORY}
            shown = [
                e for e in page if e.fingerprint.kind is Kind.DIRECTORY or e.name not in directories
            ]
            yield Page(shown, len(page) - len(shown))


def test_one_listing_serves_all_who_ask(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"%d" % n: b"x" for n in range(50)})
        async with opened(tmp_path, origin, Clock()) as master:
            every = await asyncio.gather(*[names_of(master) for _ in range(10)])
            assert all(len(names) == 50 for names in every)
            assert origin.calls["list_dir"] == 1

    run(work())


def test_a_directory_gone_at_the_origin_goes(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"d/f": b"1", b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            ino = await ino_of(master, b"d")
            origin.delete(b"d/f")
            with pytest.raises((Stale, NotFound)):
                await names_of(master, ino)
            assert (await master.lookup(ROOT_INO, b"d")).inode is None

    run(work())


# ---- failures ----------------------------------------------------------------------------------


def test_a_failed_listing_leaves_names_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        clock = Clock()
        origin = BreakingListing({b"n%04d" % n: b"x" for n in range(3000)})
        async with opened(tmp_path, origin, clock) as master:
            before = await names_of(master)
            inos = [await ino_of(master, name) for name in before[::500]]
            for name in before[::3]:
                if name > b"n2000":
                    origin.delete(name)
            clock.now += 61
            origin.break_after = 2
            served = await names_of(master)
            assert served == before, "names that were not listed again stay, half is never removed"
            assert [await ino_of(master, name) for name in before[::500]] == inos
            assert (await master.list_dir(ROOT_INO, b"", 10)).valid_for_s == DEGRADED_VALID_S
            origin.break_after = None
            clock.now += PROBE_EVERY_S
            await names_of(master)
            await until(lambda: master.status()["sources"][0]["origin_down"] is False)
            assert len(await names_of(master)) < 3000

    run(work())
    assert "cut" in caplog.text


class BreakingListing(MemoryConnector):
    """A listing that fails after some pages."""

    break_after: int | None = None

    def list_dir(self, path: bytes) -> Any:
        for n, page in enumerate(super().list_dir(path)):
            if n == self.break_after:
                raise Unreachable("the listing was cut")
            yield page


def test_no_directory_stream_goes_on_in_a_listing_that_failed_to_be_renewed(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"%d" % n: b"x" for n in range(9)})
        async with opened(tmp_path, origin, clock) as master:
            await names_of(master)
            clock.now += 61
            assert len((await master.list_dir(ROOT_INO, b"4", 9)).entries) == 4
            assert origin.calls["list_dir"] == 1, "a slow reader goes on in the listing it began"
            origin.fail("list_dir", None, AccessDenied("no"))
            await raises(AccessDenied, master.list_dir(ROOT_INO, b"", 9))
            await master.list_dir(ROOT_INO, b"4", 9)
            assert origin.calls["list_dir"] == 3

    run(work())


def test_an_origin_that_is_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1", b"d/f": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            known = (await master.lookup(ROOT_INO, b"x")).inode
            await names_of(master)
            clock.now += 61
            origin.fail("stat", None, Unreachable("no route"), 1000)
            origin.fail("list_dir", None, Throttled("slow down"), 1000)
            assert await master.lookup(ROOT_INO, b"x") == messages.Found(known, DEGRADED_VALID_S)
            for name in (b"y", b"z"):
                await raises(Unreachable, master.lookup(ROOT_INO, name))
            asked = origin.calls["stat"] + origin.calls["list_dir"]
            for _ in range(50):
                assert (await master.lookup(ROOT_INO, b"x")).inode == known
                assert await names_of(master) == [b"d", b"x"]
            assert origin.calls["stat"] + origin.calls["list_dir"] == asked, "nobody waits again"
            ino = await ino_of(master, b"d")
            await raises(CacheFSError, master.list_dir(ino, b"", 10))
            source = master.status()["sources"][0]
            assert source["origin_down"] is True
            assert source["origin_errors"] >= 3
            assert source["last_warning"]
            origin.script._faults.clear()
            clock.now += PROBE_EVERY_S
            await master.lookup(ROOT_INO, b"x")
            await until(lambda: master.lookup_nowait(ROOT_INO, b"x") is not None)
            assert master.status()["sources"][0]["origin_down"] is False

    with caplog.at_level(logging.WARNING):
        run(work())
    assert len(caplog.records) == 1, "one line, not one per access"
    assert "s3://bucket/prefix/x" in caplog.text


def test_an_origin_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-origin-down] What is known is answered at the deadline, and at once after that."""
    monkeypatch.setattr(answers, "LISTING_PATIENCE_S", PATIENCE_S)  # the listing never ends

    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1", b"d/f": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            master.limit_waits(0.2)
            known = (await master.lookup(ROOT_INO, b"x")).inode
            names = await names_of(master)
            ino = await ino_of(master, b"d")
            clock.now += 61
            origin.script.block("stat")
            origin.script.block("list_dir")
            assert await names_of(master) == names
            assert await master.lookup(ROOT_INO, b"x") == messages.Found(known, DEGRADED_VALID_S)
            assert master.status()["sources"][0]["origin_down"] is True
            await raises(DeadlineExceeded, master.lookup(ROOT_INO, b"y"))
            await raises(DeadlineExceeded, master.list_dir(ino, b"", 10))

    run(work())


def test_interval_zero_has_no_answer_while_the_origin_is_down(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, Clock(), interval_s=0.0) as master:
            await master.lookup(ROOT_INO, b"x")
            await names_of(master)
            origin.fail("stat", None, Unreachable("no route"), 1000)
            origin.fail("list_dir", None, Unreachable("no route"), 1000)
            await raises(Unreachable, master.lookup(ROOT_INO, b"x"))
            await raises(Unreachable, master.list_dir(ROOT_INO, b"", 10))

    run(work())


def test_expired_credentials_are_an_origin_that_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            known = (await master.lookup(ROOT_INO, b"x")).inode
            await names_of(master)
            clock.now += 61
            expired = CredentialsMissing("the credentials have expired", remedy="renew them")
            origin.fail("stat", None, expired, 1000)
            origin.fail("list_dir", None, expired, 1000)
            assert await master.lookup(ROOT_INO, b"x") == messages.Found(known, DEGRADED_VALID_S)
            assert await names_of(master) == [b"x"]
            await raises(CredentialsMissing, master.lookup(ROOT_INO, b"unknown"))
            source = master.status()["sources"][0]
            assert source["origin_down"] is True
            assert "the credentials have expired" in source["last_warning"]

    with caplog.at_level(logging.WARNING):
        run(work())
    assert "the credentials have expired; renew them" in caplog.text


def test_access_denied_is_never_hidden_by_what_is_known(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await names_of(master)
            clock.now += 61
            origin.fail("stat", None, AccessDenied("no"), 1000)
            await raises(AccessDenied, master.lookup(ROOT_INO, b"x"))

    run(work())


# ---- life --------------------------------------------------------------------------------------


def test_the_first_use_must_reach_the_origin_and_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        origin.fail("check", None, Unreachable("no route"))
        master = Master.open(tmp_path / "meta", UFS, origin, 60.0, Clock())
        await raises(Unreachable, master.check_source())
        assert not (tmp_path / "meta").exists()
        async with opened(tmp_path, origin, Clock()) as again:
            assert await again.check_source() == ""

    run(work())


def test_a_later_use_serves_what_it_has_and_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1", b"d/f": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await master.check_source()
            namespace, before = master.namespace, await names_of(master)
            file = await ino_of(master, b"d/f")
        clock.now += 1e6
        for verb in ("check", "stat", "list_dir"):
            origin.fail(verb, None, Unreachable("no route"), 1000)
        async with opened(tmp_path, origin, clock) as master:
            warning = await master.check_source()
            assert "no route" in warning
            assert "\n" not in warning
            assert master.namespace == namespace
            assert await names_of(master) == before
            assert await ino_of(master, b"d/f") == file
            assert (await master.getattr(file)).valid_for_s == DEGRADED_VALID_S
            assert (await master.locate(file)).path == b"d/f"

    run(work())


def test_a_store_belongs_to_one_source(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, Clock()) as master:
            await master.check_source()
        with pytest.raises(BadConfig) as caught:
            Master.open(tmp_path / "meta", UfsSpec("s3://other"), origin, 60.0)
        assert caught.value.remedy
        async with opened(tmp_path, origin, Clock()) as master:
            assert master.root.ino == ROOT_INO

    run(work())


def test_closing_while_the_origin_is_being_asked(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        master = Master.open(tmp_path / "meta", UFS, origin, 60.0, Clock())
        origin.block("list_dir")
        listing = asyncio.ensure_future(master.list_dir(ROOT_INO, b"", 10))
        await asyncio.to_thread(origin.wait_blocked, "list_dir")
        closing = asyncio.ensure_future(master.close())
        await asyncio.sleep(0)
        origin.unblock()
        await closing
        with pytest.raises(CacheFSError):
            await listing
        await master.close()

    run(work())


def test_what_lay_below_a_removed_directory_is_collected_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1", b"d/e/f": b"1", b"d/g": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await master.check_source()
            assert len(await paths(master.walk(ROOT_INO))) == 3
            origin.delete(b"d")
            clock.now += 61
            master._sync._gardening = True  # as if the process ended before it could
            await names_of(master)
            assert master.status()["names"] == 4
        async with opened(tmp_path, origin, clock) as master:
            await master.check_source()
            await until(lambda: master.status()["names"] == 1)

    run(work())


# ---- events ------------------------------------------------------------------------------------


async def collect(master: Master, after: int, count: int) -> list[Invalidate]:
    found = []
    async for event in master.events(after):
        found.append(event)
        if len(found) == count:
            break
    return found


def test_events_wake_those_who_wait_and_go_on_from_a_position(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1", b"y": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await names_of(master)
            waiting = asyncio.ensure_future(collect(master, 0, 2))
            await asyncio.sleep(0)
            for turn in range(2):
                origin.put(b"x", b"%d" % turn)
                clock.now += 61
                await names_of(master)
            first, second = await waiting
            assert (first.seq, second.seq) == (1, 2)
            assert first.entries == second.entries == [(ROOT_INO, b"x")]
            assert await collect(master, 1, 1) == [second]
            assert first.namespace == master.namespace

    run(work())


def test_a_stat_wakes_those_who_wait_for_events(tmp_path: Path) -> None:
    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await master.lookup(ROOT_INO, b"x")
            waiting = asyncio.ensure_future(collect(master, 0, 1))
            await asyncio.sleep(0)
            origin.put(b"x", b"2")
            clock.now += 61
            await master.lookup(ROOT_INO, b"x")
            assert (await waiting)[0].entries == [(ROOT_INO, b"x")]

    run(work())


def test_too_old_a_position_is_gone_and_so_is_one_from_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "EVENTS_KEPT", 2)

    async def work() -> None:
        clock, origin = Clock(), MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, clock) as master:
            await names_of(master)
            for turn in range(4):
                origin.put(b"x", b"%d" % turn)
                clock.now += 61
                await names_of(master)
            await raises(PositionGone, collect(master, 0, 1))
            await raises(PositionGone, collect(master, 5, 1))
            assert [e.seq for e in await collect(master, 2, 2)] == [3, 4]

    run(work())


def test_closing_ends_event_streams(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        master = Master.open(tmp_path / "meta", UFS, origin, 60.0, Clock())
        waiting = asyncio.ensure_future(collect(master, 0, 1))
        await asyncio.sleep(0)
        await master.close()
        assert await waiting == []

    run(work())


# ---- walks -------------------------------------------------------------------------------------


async def paths(walk: AsyncIterator[list[tuple[bytes, Inode]]]) -> list[bytes]:
    return [path for path, _ in [item async for batch in walk for item in batch]]


@pytest.mark.parametrize("interval_s", [-1.0, 0.0, 60.0])
def test_a_walk_lists_the_origin_and_known_files_never_do(
    tmp_path: Path, interval_s: float
) -> None:
    async def work() -> None:
        tree = {b"%s/%d/f%d" % (top, sub, n): b"x" for top in (b"a", b"b") for sub in range(9)
                for n in range(3)}  # fmt: skip
        tree[b"top"] = b"1"
        origin = MemoryConnector(tree)
        async with opened(tmp_path, origin, Clock(), interval_s) as master:
            assert await paths(master.known_files(ROOT_INO)) == []
            assert not origin.calls
            assert sorted(await paths(master.walk(ROOT_INO))) == sorted(tree)
            calls = origin.calls["list_dir"]
            assert calls == 21, "each directory once"
            assert sorted(await paths(master.known_files(ROOT_INO))) == sorted(tree)
            assert origin.calls["list_dir"] == calls
            below = await ino_of(master, b"a/3")
            assert await paths(master.known_files(below)) == [b"a/3/f0", b"a/3/f1", b"a/3/f2"]
            file = await ino_of(master, b"a/3/f1")
            assert await paths(master.walk(file)) == [b"a/3/f1"]
            await raises(Stale, paths(master.walk(12345)))

    run(work())


def test_eviction_is_permitted_where_no_policy_says_otherwise(tmp_path: Path) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"x": b"1"})
        async with opened(tmp_path, origin, Clock()) as master:
            found = (await master.lookup(ROOT_INO, b"x")).inode
            assert found is not None
            content = ContentId.of(master.namespace, found)
            assert (await master.permit_eviction([content])).allowed == {content.name}

    run(work())


# ---- size --------------------------------------------------------------------------------------


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


def test_a_directory_of_100_000_names_streams_in_little_memory(tmp_path: Path) -> None:
    async def work() -> None:
        origin = SyntheticConnector(directories=1, files_per_directory=100_000)
        async with opened(tmp_path, origin, Clock()) as master:
            ino = await ino_of(master, b"d000000")
            before, began = _anonymous_bytes(), time.process_time()
            page: Listing | None = None
            count = 0
            while page is None or page.next:
                page = await master.list_dir(ino, page.next if page else b"", 1000)
                count += len(page.entries)
            assert count == 100_000
            assert _anonymous_bytes() - before < 16 << 20
            assert time.process_time() - began < 6.0, "about 0.5 s on a quiet machine"

    run(work())
