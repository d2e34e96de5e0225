"""Names that an event says to check: what changed is announced once the check ends, what is not
known costs nothing, and an origin that does not answer makes a name untrusted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, Stale, Unreachable
from cachefs.core.model import UfsSpec
from connectors.base import Entry
from master.namespace import Master
from master.origins.syncer import MOST_STATS
from master.push.work_budget import WorkBudget
from master.state.health import PROBE_EVERY_S
from tests.integration.test_master import Clock, names_of, run, until
from tests.integration.test_mount_table import Origin, cluster, inode_of

X = UfsSpec("s3://x")


class CountingOrigin(Origin):
    stats = 0

    def stat(self, path: bytes) -> Entry:
        self.stats += 1
        return super().stat(path)


def play(
    directory: Path, origin: Origin, script: Callable[[Master, Clock], Awaitable[None]]
) -> None:
    async def work() -> None:
        clock = Clock()
        async with cluster(directory, clock, origin) as master:
            await master.add_ufs(b"/data", X, origin, 3600.0)
            await script(master, clock)

    run(work())


async def size_of(master: Master, path: bytes) -> int | None:
    found = (await master.resolve(path)).inode
    return None if found is None else found.size


def test_what_changed_is_seen_long_before_the_interval_ends(tmp_path: Path) -> None:
    origin = Origin({b"d/f": b"1", b"d/gone": b"1", b"d/same": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        listed = (await inode_of(master, b"/data/d")).ino
        assert await names_of(master, listed) == [b"f", b"gone", b"same"]
        same, position = await inode_of(master, b"/data/d/same"), master.position
        origin.put(b"d/f", b"longer")
        origin.put(b"d/new", b"22")
        origin.put(b"d/e/f", b"333")
        origin.delete(b"d/gone")
        assert await size_of(master, b"/data/d/f") == 1, "the interval has not ended"
        await master.mounts.look_again(b"/data", [b"d/f", b"d/new", b"d/e/f", b"d/gone", b"d/same"])
        assert master.position > position
        assert await size_of(master, b"/data/d/f") == 6
        assert await size_of(master, b"/data/d/new") == 2
        assert await size_of(master, b"/data/d/gone") is None
        assert await size_of(master, b"/data/d/e/f") == 3
        assert await inode_of(master, b"/data/d/same") == same
        assert await names_of(master, listed) == [b"e", b"f", b"new", b"same"]
        row = master.mounts.rows()[0]
        assert (row.pushed, row.pushed_at) == (5, clock.now)

    play(tmp_path, origin, script)


def test_a_name_that_was_asked_for_in_vain_appears(tmp_path: Path) -> None:
    origin = Origin({b"d/f": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        assert await size_of(master, b"/data/new") is None
        origin.put(b"new", b"1")
        await master.mounts.look_again(b"/data", [b"new"])
        assert await size_of(master, b"/data/new") == 1

    play(tmp_path, origin, script)


def test_a_directory_ends_with_its_last_name(tmp_path: Path) -> None:
    origin = Origin({b"a/b/f": b"1", b"keep": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        await inode_of(master, b"/data/a/b/f")
        origin.delete(b"a/b/f")
        await master.mounts.look_again(b"/data", [b"a/b/f"])
        assert (await master.resolve(b"/data/a")).inode is None

    play(tmp_path, origin, script)


def test_a_directory_ends_though_a_reader_noticed_first_that_its_last_name_is_gone(
    tmp_path: Path,
) -> None:
    origin = Origin({b"a/b/f": b"1", b"keep": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        opened = await inode_of(master, b"/data/a/b/f")
        origin.delete(b"a/b/f")
        await master.report_changed(opened.ino)
        assert (await master.resolve(b"/data/a/b")).inode is not None
        await master.mounts.look_again(b"/data", [b"a/b/f"])
        assert (await master.resolve(b"/data/a")).inode is None

    play(tmp_path, origin, script)


def test_names_of_which_nothing_is_known_cost_no_request(tmp_path: Path) -> None:
    origin = Origin({b"d/f": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        origin.fail("stat", None, AssertionError("no request"), times=100)  # type: ignore[arg-type]
        origin.fail("list_dir", None, AssertionError("no request"), times=100)  # type: ignore[arg-type]
        await master.mounts.look_again(b"/data", [b"d/f", b"other", b"x/y/z"])

    play(tmp_path, origin, script)


def test_an_origin_that_fails_makes_the_name_untrusted(tmp_path: Path) -> None:
    origin = Origin({b"f": b"1", b"g": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        await inode_of(master, b"/data/f")
        position = master.position
        origin.put(b"f", b"longer")
        origin.fail("stat", b"f", Unreachable("no route"))
        await master.mounts.look_again(b"/data", [b"f"])
        assert master.position > position, "clients forget it"
        clock.now += PROBE_EVERY_S  # an origin that is down may have its former names meanwhile

        async def is_seen() -> None:
            while await size_of(master, b"/data/f") != 6:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(is_seen(), 10.0)

    play(tmp_path, origin, script)


def test_a_check_in_flight_is_older_than_the_event(tmp_path: Path) -> None:
    """Its reply may be from before the change: another check follows."""
    origin = CountingOrigin({b"f": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        await inode_of(master, b"/data/f")
        clock.now += 3601
        origin.stats = 0
        origin.block("stat")
        older = asyncio.ensure_future(master.resolve(b"/data/f"))
        await asyncio.to_thread(origin.script.wait_blocked, "stat")
        event = asyncio.ensure_future(master.mounts.look_again(b"/data", [b"f"]))
        await asyncio.sleep(0)
        origin.script.unblock()
        await asyncio.gather(older, event)
        assert origin.stats == 2

    play(tmp_path, origin, script)


# ---- requests in flight, which may have read the origin before the change ------------------------


class SlowOrigin(Origin):
    """Holds replies about one path back after they were read."""

    def __init__(self, files: dict[bytes, bytes], held: bytes) -> None:
        super().__init__(files, page_entries=1)
        self.held = held
        self.was_read, self.go_on = threading.Event(), threading.Event()

    def stat(self, path: bytes) -> Entry:
        try:
            return super().stat(path)
        finally:
            if path == self.held and not self.was_read.is_set():
                self.was_read.set()
                self.go_on.wait(30.0)


class EachReplySlow(Origin):
    """Holds each reply about one path back after it was read, until `passed` is released."""

    def __init__(self, files: dict[bytes, bytes], held: bytes) -> None:
        super().__init__(files, page_entries=1)
        self.held = held
        self.replies, self.passed = threading.Semaphore(0), threading.Semaphore(0)

    def stat(self, path: bytes) -> Entry:
        try:
            return super().stat(path)
        finally:
            if path == self.held:
                self.replies.release()
                self.passed.acquire(timeout=30.0)


@contextlib.asynccontextmanager
async def listing_in_flight(
    master: Master, origin: Origin, directory: bytes
) -> AsyncIterator[None]:
    """The whole directory was read; its names after the first page are written on leaving."""
    ino = (await inode_of(master, directory)).ino
    origin.block("page")
    listing = asyncio.ensure_future(names_of(master, ino))
    await asyncio.to_thread(origin.script.wait_blocked, "page")
    yield
    origin.unblock("page")
    with contextlib.suppress(Stale):
        await listing
    await until(lambda: master.status()["listings"] > 0)


def test_a_name_appears_beside_the_first_listing(tmp_path: Path) -> None:
    origin = Origin({b"d/a": b"1", b"d/b": b"1"}, page_entries=1)

    async def script(master: Master, clock: Clock) -> None:
        async with listing_in_flight(master, origin, b"/data/d"):
            origin.put(b"d/new", b"22")
            await master.mounts.look_again(b"/data", [b"d/new"])
        assert await size_of(master, b"/data/d/new") == 2

    play(tmp_path, origin, script)


def test_a_listing_brings_nothing_back_that_an_event_removed_or_changed(tmp_path: Path) -> None:
    origin = Origin({b"d/a": b"1", b"d/gone": b"1", b"d/longer": b"1"}, page_entries=1)

    async def script(master: Master, clock: Clock) -> None:
        async with listing_in_flight(master, origin, b"/data/d"):
            origin.delete(b"d/gone")
            origin.put(b"d/longer", b"22")
            await master.mounts.look_again(b"/data", [b"d/gone", b"d/longer"])
        assert await size_of(master, b"/data/d/gone") is None
        assert await size_of(master, b"/data/d/longer") == 2
        assert await names_of(master, (await inode_of(master, b"/data/d")).ino) == [b"a", b"longer"]

    play(tmp_path, origin, script)


def test_a_directory_is_there_again_before_an_older_listing_ends(tmp_path: Path) -> None:
    """That listing read the directory above while the other one had no names."""
    origin = Origin({b"0": b"1", b"1": b"1", b"d/f": b"1"}, page_entries=1)

    async def script(master: Master, clock: Clock) -> None:
        await inode_of(master, b"/data/d/f")
        origin.delete(b"d/f")
        async with listing_in_flight(master, origin, b"/data"):
            origin.put(b"d/g", b"22")
            await master.mounts.look_again(b"/data", [b"d/g"])
        assert await size_of(master, b"/data/d/g") == 2

    play(tmp_path, origin, script)


def test_a_listing_brings_back_no_directory_whose_names_are_all_gone(tmp_path: Path) -> None:
    origin = Origin({b"0": b"1", b"1": b"1", b"d/f": b"1"}, page_entries=1)

    async def script(master: Master, clock: Clock) -> None:
        async with listing_in_flight(master, origin, b"/data"):
            origin.delete(b"d/f")
            await master.mounts.look_again(b"/data", [b"d/f"])
        assert (await master.resolve(b"/data/d")).inode is None

    play(tmp_path, origin, script)


def test_a_name_appears_beside_the_first_question_for_it(tmp_path: Path) -> None:
    origin = SlowOrigin({b"f": b"1"}, held=b"new")

    async def script(master: Master, clock: Clock) -> None:
        older = asyncio.ensure_future(master.resolve(b"/data/new"))
        await asyncio.to_thread(origin.was_read.wait)
        origin.put(b"new", b"22")
        event = asyncio.ensure_future(master.mounts.look_again(b"/data", [b"new"]))
        await asyncio.sleep(0)
        origin.go_on.set()
        await asyncio.gather(older, event)
        assert await size_of(master, b"/data/new") == 2

    play(tmp_path, origin, script)


@pytest.mark.parametrize("after", [b"", b"22"], ids=["removed", "replaced"])
def test_no_reply_from_before_a_listing_is_written_after_it(tmp_path: Path, after: bytes) -> None:
    origin = SlowOrigin({b"d/a": b"1", b"d/f": b"1"}, held=b"d/f")

    async def script(master: Master, clock: Clock) -> None:
        listed = (await inode_of(master, b"/data/d")).ino
        older = asyncio.ensure_future(size_of(master, b"/data/d/f"))
        await asyncio.to_thread(origin.was_read.wait)
        origin.delete(b"d/f")
        if after:
            origin.put(b"d/f", after)
        clock.now += 1
        assert await names_of(master, listed) == ([b"a", b"f"] if after else [b"a"])
        origin.go_on.set()
        await older
        assert await size_of(master, b"/data/d/f") == (len(after) or None)

    play(tmp_path, origin, script)


def test_a_stat_that_listings_always_overtake_ends_and_is_not_trusted(tmp_path: Path) -> None:
    origin = EachReplySlow({b"d/a": b"1", b"d/f": b"1"}, held=b"d/f")

    async def script(master: Master, clock: Clock) -> None:
        listed = (await inode_of(master, b"/data/d")).ino
        older = asyncio.ensure_future(size_of(master, b"/data/d/f"))
        for number in range(MOST_STATS):
            assert await asyncio.to_thread(origin.replies.acquire, timeout=30.0)
            origin.put(b"d/f", bytes(number + 2))
            clock.now += 3601
            assert await names_of(master, listed) == [b"a", b"f"]
            origin.passed.release()
        await asyncio.wait_for(older, 30.0)
        origin.held = b""
        assert await size_of(master, b"/data/d/f") == MOST_STATS + 1

    play(tmp_path, origin, script)


def test_no_reply_from_before_an_event_follows_the_listing_that_handled_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing, which began after the event, ended the mark of its name."""
    monkeypatch.setattr(WorkBudget, "take", lambda *_: False)
    monkeypatch.setattr(WorkBudget, "wait_s", lambda *_: 30.0)
    origin = SlowOrigin({b"d/a": b"1"}, held=b"d/new")

    async def script(master: Master, clock: Clock) -> None:
        listed = (await inode_of(master, b"/data/d")).ino
        older = asyncio.ensure_future(size_of(master, b"/data/d/new"))
        await asyncio.to_thread(origin.was_read.wait)
        origin.put(b"d/new", b"22")
        await master.mounts.look_again(b"/data", [b"d/new"])
        clock.now += 1
        assert await names_of(master, listed) == [b"a", b"new"]
        assert len(master._sync.unchecked) == 0
        origin.go_on.set()
        await older
        assert await size_of(master, b"/data/d/new") == 2

    play(tmp_path, origin, script)


def test_a_reader_of_an_unchecked_name_gets_no_reply_from_before_the_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkBudget, "take", lambda *_: False)
    monkeypatch.setattr(WorkBudget, "wait_s", lambda *_: 30.0)
    origin = SlowOrigin({b"f": b"1"}, held=b"f")

    async def script(master: Master, clock: Clock) -> None:
        older = asyncio.ensure_future(master.resolve(b"/data/f"))
        await asyncio.to_thread(origin.was_read.wait)
        origin.put(b"f", b"22")
        await master.mounts.look_again(b"/data", [b"f"])
        newer = asyncio.ensure_future(size_of(master, b"/data/f"))
        await asyncio.sleep(0)
        origin.go_on.set()
        await older
        assert await newer == 2

    play(tmp_path, origin, script)


def test_a_reader_that_met_another_version_gets_no_reply_from_before_it(tmp_path: Path) -> None:
    """A read has found that the file changed, while a request for its name is in flight."""
    origin = SlowOrigin({b"f": b"1"}, held=b"f")

    async def script(master: Master, clock: Clock) -> None:
        origin.was_read.set()  # holds nothing back yet
        opened = await inode_of(master, b"/data/f")
        clock.now += 3601
        origin.was_read.clear()
        older = asyncio.ensure_future(master.resolve(b"/data/f"))
        await asyncio.to_thread(origin.was_read.wait)
        origin.put(b"f", b"22")
        report = asyncio.ensure_future(master.report_changed(opened.ino))
        await asyncio.sleep(0)
        origin.go_on.set()
        await asyncio.gather(older, report)
        assert await size_of(master, b"/data/f") == 2

    play(tmp_path, origin, script)


def test_a_name_that_was_not_trusted_for_a_while_leaves_nothing(tmp_path: Path) -> None:
    """Neither it nor its inode, which another one replaces."""
    origin = Origin({b"f": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        opened = await inode_of(master, b"/data/f")
        origin.put(b"f", b"22")
        origin.fail("stat", b"f", AccessDenied("for now"))
        await master.report_changed(opened.ino)
        assert len(master._answers._distrusted) == 1
        assert await size_of(master, b"/data/f") == 2
        assert not master._answers._distrusted

    play(tmp_path, origin, script)


def test_names_of_an_origin_that_is_down_take_no_turn_of_others(tmp_path: Path) -> None:
    origin = CountingOrigin({b"d/f": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        assert await size_of(master, b"/data/d/f") == 1
        (mount,) = master._tree.mounts()
        mount.health.failed(Unreachable("no route"), clock())
        origin.put(b"d/f", b"22")
        origin.stats = 0
        await master.mounts.look_again(b"/data", [b"d/f"])
        assert origin.stats == 0
        mount.health.succeeded()
        assert await size_of(master, b"/data/d/f") == 2, "it is not trusted"

    play(tmp_path, origin, script)


def test_an_error_is_not_forgotten_when_an_older_listing_ends(tmp_path: Path) -> None:
    origin = Origin({b"d/a": b"1", b"d/f": b"1"}, page_entries=1)

    async def script(master: Master, clock: Clock) -> None:
        async with listing_in_flight(master, origin, b"/data/d"):
            origin.put(b"d/f", b"22")
            origin.fail("stat", b"d/f", AccessDenied("for now"))
            event = asyncio.ensure_future(master.mounts.look_again(b"/data", [b"d/f"]))
            await until(lambda: origin.script.calls_by_path["stat", b"d/f"] > 0)
            await event  # does not wait for the listing
        assert await size_of(master, b"/data/d/f") == 2

    play(tmp_path, origin, script)


def test_names_that_are_the_same_as_their_directory(tmp_path: Path) -> None:
    origin = Origin({b"d/d": b"1"})

    async def script(master: Master, clock: Clock) -> None:
        assert await size_of(master, b"/data/d/d") == 1
        origin.put(b"d/d", b"22")
        await master.mounts.look_again(b"/data", [b"d/d"])
        assert await size_of(master, b"/data/d/d") == 2

    play(tmp_path, origin, script)


def test_a_path_whose_directory_is_removed_meanwhile_is_resolved_again(tmp_path: Path) -> None:
    origin = SlowOrigin({b"d/f": b"1"}, held=b"d/f")

    async def script(master: Master, clock: Clock) -> None:
        await inode_of(master, b"/data/d")
        size = asyncio.ensure_future(size_of(master, b"/data/d/f"))
        await asyncio.to_thread(origin.was_read.wait)
        origin.delete(b"d/f")
        await master.mounts.look_again(b"/data", [b"d"])
        origin.go_on.set()
        assert await size is None

    play(tmp_path, origin, script)
