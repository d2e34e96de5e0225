"""Syncs on demand: what they compare whatever is fresh, what they say of failures, their limits.
Each runs over both engines of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    NotFound,
    OriginError,
    Throttled,
    Unreachable,
)
from cachefs.core.model import ROOT_INO, UfsSpec
from cachefs.core.syncs import CHANGES_PER_REPLY
from connectors.base import Entry
from master.manual_sync import report, service
from master.store.base import Store
from tests.services.memory import MemoryConnector
from tests.unit.master.sync_rig import (
    Clock,
    added,
    content,
    ended,
    gone,
    known,
    master_over,
    orphans,
    replaced,
    run,
    store_of,
    synced,
    until,
)


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = store_of(request.param, tmp_path)
    yield opened
    opened.close()


FILES = {b"a/1": b"one", b"a/2": b"two", b"b/c/3": b"three", b"x": b"ex"}


# ---- what changed --------------------------------------------------------------------------------


def test_what_is_listed_for_the_first_time_is_no_change(store: Store) -> None:
    async def work() -> None:
        async with master_over(store, MemoryConnector(FILES)) as master:
            dry = await synced(master, dry_run=True)
            assert (dry.shown.state, dry.changes) == ("done", [])
            assert (dry.shown.directories, dry.shown.names) == (4, 7)
            real = await synced(master)
            assert (real.shown.directories, real.shown.names, real.changes) == (4, 7, [])
            assert set(known(store)) == {b"a", b"a/1", b"a/2", b"b", b"b/c", b"b/c/3", b"x"}

    run(work())


def test_a_sync_asks_though_all_is_fresh_and_readers_see_it_at_once(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            old = (await master.resolve(b"a/1")).inode
            origin.put(b"a/1", b"another")
            origin.put(b"a/0", b"")
            origin.delete(b"x")
            origin.delete(b"b/c/3")
            origin.put(b"n/m", b"")
            assert (await master.resolve(b"a/1")).inode == old
            found = await synced(master)
            assert found.changes == sorted(
                [
                    *added(b"a/0", b"n/", b"n/m"),
                    *replaced(b"a/1"),
                    *gone(b"b/", b"b/c/", b"b/c/3", b"x"),
                ]
            )
            assert found.shown.seq == master.position
            calls = sum(origin.calls.values())
            new = (await master.resolve(b"a/1")).inode
            assert old is not None
            assert new is not None
            assert (new.ino != old.ino, new.size) == (True, 7)
            assert (await master.resolve(b"x")).inode is None
            assert sum(origin.calls.values()) == calls, "no reader asks again"

    run(work())


def test_without_recursion_only_the_names_of_the_directory_are_compared(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            origin.put(b"a/1", b"another")
            origin.put(b"new/1", b"")
            found = await synced(master, recursive=False)
            assert (found.changes, found.shown.directories) == (added(b"new/"), 1)
            below = await synced(master, b"/a/", recursive=False)
            assert (below.changes, below.shown.path) == (replaced(b"a/1"), b"a")

    run(work())


def test_a_file_is_compared_alone(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            same = await synced(master, b"x")
            assert (same.shown.names, same.shown.directories, same.changes) == (1, 0, [])
            origin.put(b"x", b"other")
            for dry_run in (True, False):
                assert (await synced(master, b"x", dry_run=dry_run)).changes == replaced(b"x")
            origin.delete(b"x")
            for dry_run in (True, False):
                assert (await synced(master, b"x", dry_run=dry_run)).changes == gone(b"x")
            assert origin.calls["list_dir"] == 4, "only the first sync listed"

    run(work())


def test_a_path_that_nobody_has_is_an_error_and_one_that_went_is_a_change(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            origin.delete(b"b/c/3")
            went = await synced(master, b"b", dry_run=True)
            assert (went.shown.state, went.changes) == ("done", gone(b"b/", b"b/c/", b"b/c/3"))
            assert (await synced(master, b"b")).changes == went.changes
            await until(lambda: not orphans(store))
            missing = await synced(master, b"b")
            assert (missing.shown.state, missing.shown.errors) == ("failed", 1)
            assert missing.shown.message == "/b: no such file or directory"
            below = await synced(master, b"x/y")
            assert below.shown.message == "/x/y: a file is on the way"

    run(work())


def test_a_path_never_looked_at_is_found(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            dry = await synced(master, b"b/c", dry_run=True)
            assert (dry.shown.state, dry.shown.names, dry.changes) == ("done", 1, [])
            assert known(store) == {}
            real = await synced(master, b"b/c")
            assert (real.shown.state, real.shown.names, real.changes) == ("done", 1, [])
            assert set(known(store)) == {b"b", b"b/c", b"b/c/3"}

    run(work())


def test_a_dry_run_writes_nothing_and_says_what_a_sync_will(store: Store) -> None:
    async def work() -> None:
        origin, clock = MemoryConnector(FILES), Clock()
        async with master_over(store, origin, clock) as master:
            await synced(master)
            origin.delete(b"x")
            origin.put(b"x/y/z", b"")
            origin.put(b"a/2", b"2")
            clock.now += 10
            before = content(store)
            dry = await synced(master, dry_run=True)
            assert content(store) == before
            assert (await master.resolve(b"x")).inode is not None
            real = await synced(master)
            assert real.changes == dry.changes
            assert dry.changes == sorted(replaced(b"a/2", b"x/") + added(b"x/y/", b"x/y/z"))

    run(work())


def test_each_source_of_the_namespace_is_compared_with_its_own_origin(store: Store) -> None:
    async def work() -> None:
        outer, inner = MemoryConnector({**FILES, b"m/n/hidden": b""}), MemoryConnector({b"i": b"1"})
        async with master_over(store, outer) as master:
            await master.add_ufs(b"m/n", UfsSpec("s3://inner"), inner, 3600.0)
            await synced(master)
            inner.put(b"i", b"other")
            inner.put(b"j", b"")
            outer.put(b"m/n/hidden", b"other")
            outer.put(b"a/1", b"other")
            for dry_run in (True, False):
                within = await synced(master, b"m/n", dry_run=True)
                assert within.changes == added(b"m/n/j") + replaced(b"m/n/i")
                whole = await synced(master, dry_run=dry_run)
                assert whole.changes == sorted(within.changes + replaced(b"a/1"))

    run(work())


# ---- what was asked before -----------------------------------------------------------------------


def test_a_listing_that_began_before_is_not_believed(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES, page_entries=1)
        async with master_over(store, origin) as master:
            origin.block("page")
            reader = asyncio.ensure_future(master.list_dir(ROOT_INO, b"", 1000))
            await asyncio.to_thread(origin.wait_blocked, "page")
            origin.put(b"new", b"")  # the listing under way was taken before
            started = await master.start_sync(b"", recursive=False, dry_run=False)
            origin.unblock()
            assert (await ended(master, started.sync.sync)).changes == added(b"new")
            await reader
            assert (await master.lookup(ROOT_INO, b"new")).inode is not None

    run(work())


class Late(MemoryConnector):
    """Its answers to `stat` are from before the wait."""

    def stat(self, path: bytes) -> Entry:
        answer = self._entry(path)
        self.script.enter("stat", path)
        return answer


def test_an_answer_about_a_name_asked_before_is_not_written_after(store: Store) -> None:
    async def work() -> None:
        origin = Late({b"f": b"old", b"g": b""})
        async with master_over(store, origin) as master:
            origin.block("stat")
            reader = asyncio.ensure_future(master.lookup(ROOT_INO, b"f"))
            await asyncio.to_thread(origin.wait_blocked, "stat")
            new = origin.put(b"f", b"newer")
            started = await master.start_sync(b"", recursive=True, dry_run=False)
            for _ in range(2000):  # turns of the loop, in which it would be over
                await asyncio.sleep(0)
            assert not origin.calls["list_dir"]
            origin.unblock()
            assert (await ended(master, started.sync.sync)).shown.state == "done"
            await reader
            found = (await master.resolve(b"f")).inode
            assert found is not None
            assert found.fingerprint == new

    run(work())


# ---- failures ------------------------------------------------------------------------------------


def test_a_directory_that_may_not_be_listed_is_counted_and_the_others_are_compared(
    store: Store,
) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            for dry_run in (True, False):
                origin.fail("list_dir", b"a", AccessDenied("403 from the origin"))
                origin.put(b"b/new", b"%d" % dry_run)
                found = await synced(master, dry_run=dry_run)
                assert (found.shown.state, found.shown.errors) == ("failed", 1)
                assert found.shown.message == "/a: 403 from the origin"
                assert found.changes == added(b"b/new")
                assert found.shown.directories == 3
            assert (await synced(master)).shown.state == "done"

    run(work())


def test_an_origin_that_fails_in_the_middle_of_a_listing(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES, page_entries=2)
        async with master_over(store, origin) as master:
            await synced(master)
            origin.put(b"a/0", b"")
            origin.put(b"a/3", b"")
            origin.fail("page", b"a", OriginError("500 again and again"))
            found = await synced(master)
            assert (found.shown.state, found.shown.errors) == ("failed", 1)
            assert found.changes == added(b"a/0"), "what was compared before stays"
            assert (await synced(master)).changes == added(b"a/3")

    run(work())


def test_an_origin_that_is_down_is_left_alone_after_some_failures_the_others_are_not(
    store: Store,
) -> None:
    async def work() -> None:
        files = {b"d%03d/f" % n: b"" for n in range(200)}
        outer, inner = MemoryConnector(files), MemoryConnector({b"i": b"1"})
        async with master_over(store, outer) as master:
            await master.add_ufs(b"zz", UfsSpec("s3://inner"), inner, 3600.0)
            await synced(master)
            inner.put(b"j", b"")
            for dry_run in (True, False):
                outer.fail("list_dir", None, Unreachable("no route to host"), times=1000)
                asked = outer.calls["list_dir"]
                found = await synced(master, dry_run=dry_run)
                assert (found.shown.state, found.shown.message) == ("failed", "/: no route to host")
                assert found.changes == [], "what lies below cannot be reached"
                inside = await synced(master, b"zz", dry_run=dry_run)
                assert (inside.shown.state, inside.changes) == ("done", added(b"zz/j"))
                assert outer.calls["list_dir"] - asked <= 20
            assert (await master.resolve(b"d000/f")).inode is not None, "what is known stays"

    run(work())


def test_an_origin_that_goes_down_under_way_is_not_asked_for_every_directory(store: Store) -> None:
    async def work() -> None:
        files = {b"d%03d/f" % n: b"" for n in range(200)}
        origin, inner = MemoryConnector(files), MemoryConnector({b"i": b"1"})
        async with master_over(store, origin) as master:
            await master.add_ufs(b"zz", UfsSpec("s3://inner"), inner, 3600.0)
            await synced(master)
            inner.put(b"j", b"")
            for n in range(200):
                origin.fail("list_dir", b"d%03d" % n, Unreachable("no route to host"))
            asked = origin.calls["list_dir"]
            found = await synced(master)
            assert (found.shown.state, found.changes) == ("failed", added(b"zz/j"))
            assert 3 <= found.shown.errors == origin.calls["list_dir"] - asked - 1 <= 20

    run(work())


def test_a_source_that_is_removed_under_way_is_not_taken_for_gone(store: Store) -> None:
    async def work() -> None:
        outer, inner = MemoryConnector(FILES), MemoryConnector({b"d/i": b"1"}, page_entries=1)
        async with master_over(store, outer) as master:
            await master.add_ufs(b"m", UfsSpec("s3://inner"), inner, 3600.0)
            await synced(master)
            for dry_run in (False, True):
                inner.block("list_dir")
                started = await master.start_sync(b"m", recursive=True, dry_run=dry_run)
                await asyncio.to_thread(inner.wait_blocked, "list_dir")
                await master.mounts.remove(b"m")
                inner.unblock()
                found = await ended(master, started.sync.sync)
                assert (found.shown.state, found.changes) == ("failed", [])
                inner = MemoryConnector({b"d/i": b"1"}, page_entries=1)
                await master.add_ufs(b"m", UfsSpec("s3://inner"), inner, 3600.0)

    run(work())


# ---- limits, the end -----------------------------------------------------------------------------


def test_a_sync_that_is_stopped_counts_no_further(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            origin.put(b"new", b"")
            for dry_run in (True, False):
                origin.block("list_dir")
                started = await master.start_sync(b"", recursive=True, dry_run=dry_run)
                await asyncio.to_thread(origin.wait_blocked, "list_dir")
                stopped = await master.sync(started.sync.sync, 0, stop=True)
                assert stopped.sync.state == "stopped"
                origin.unblock()
                await until(lambda: not len(master._syncs))
                now = await master.sync(started.sync.sync, 0, stop=False)
                assert (now.sync.state, now.sync.names, now.changes) == ("stopped", 0, [])
                assert now.sync.elapsed_s == stopped.sync.elapsed_s
            again = await master.sync(started.sync.sync, 0, stop=True)
            assert again.sync == now.sync

    run(work())


def test_so_many_run_at_a_time_and_stopped_ones_count_until_they_are_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_RUNNING", 2)

    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            origin.block("list_dir")
            first = await master.start_sync(b"", recursive=True, dry_run=True)
            await master.start_sync(b"", recursive=True, dry_run=True)
            await asyncio.to_thread(origin.wait_blocked, "list_dir", 2)
            await master.sync(first.sync.sync, 0, stop=True)
            with pytest.raises(Throttled):
                await master.start_sync(b"", recursive=True, dry_run=True)
            origin.unblock()
            await until(lambda: not len(master._syncs))
            assert (await synced(master)).shown.state == "done"

    run(work())


def test_the_newest_that_ended_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "KEPT_SYNCS", 3)

    async def work() -> None:
        async with master_over(store, MemoryConnector(FILES)) as master:
            numbers = [(await synced(master)).shown.sync for _ in range(5)]
            assert numbers == [*range(numbers[0], numbers[0] + 5)]
            for number in numbers[:2]:
                with pytest.raises(NotFound):
                    await master.sync(number, 0, stop=False)
            for number in numbers[2:]:
                assert (await master.sync(number, 0, stop=False)).sync.state == "done"

    run(work())


def test_changes_come_in_parts_and_those_beyond_a_number_are_counted_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "KEPT_CHANGES", CHANGES_PER_REPLY + 50)

    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            for n in range(CHANGES_PER_REPLY + 100):
                origin.put(b"a/n%d" % n, b"")
            found = await synced(master)
            assert found.shown.added == CHANGES_PER_REPLY + 100
            assert len(found.changes) == found.shown.kept == CHANGES_PER_REPLY + 50
            reply = await master.sync(found.shown.sync, 0, stop=False)
            assert len(reply.changes) == CHANGES_PER_REPLY

    run(work())


def test_lists_of_changes_take_bounded_memory_and_the_oldest_make_room(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = report.CHANGE_BYTES + len(b"a/n0")
    monkeypatch.setattr(service, "KEPT_BYTES", 10 * size)

    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            found = []
            for batch in range(3):
                for n in range(4 * batch, 4 * batch + 4):
                    origin.put(b"a/n%d" % (n % 10), b"%d" % n)
                found.append((await synced(master)).shown.sync)
            kept = [(await master.sync(one, 0, stop=False)).sync.kept for one in found]
            assert kept == [0, 4, 4]
            for n in range(12):
                origin.put(b"b/n%d" % n, b"")
            last = await synced(master)
            assert (last.shown.added, last.shown.kept <= 10, last.shown.kept > 7) == (
                12,
                True,
                True,
            )

    run(work())


def test_paths_that_nothing_can_have_are_refused(store: Store) -> None:
    async def work() -> None:
        async with master_over(store, MemoryConnector(FILES)) as master:
            for path in (b"a/../b", b"a\0b", b"n" * 300, b"a/" * 3000):
                with pytest.raises(BadConfig):
                    await master.start_sync(path, recursive=True, dry_run=False)
            assert (await synced(master, b"//a/./")).shown.path == b"a"

    run(work())


def test_a_master_that_closes_ends_its_syncs(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector({b"d%03d/f" % n: b"" for n in range(500)})
        async with master_over(store, origin) as master:
            for dry_run in (True, False):
                await master.start_sync(b"", recursive=True, dry_run=dry_run)
            await until(lambda: origin.calls["list_dir"] > 3)

    run(work())


def test_a_directory_that_goes_under_way_is_gone(store: Store) -> None:
    class Going(MemoryConnector):
        """`a` goes once the root was listed."""

        def list_dir(self, path: bytes):  # type: ignore[no-untyped-def]
            pages = [*super().list_dir(path)]
            if not path and self.goes:
                self.goes = False
                self.delete(b"a")
            return iter(pages)

        goes = False

    async def work() -> None:
        origin = Going(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            origin.goes = True
            found = await synced(master)
            assert (found.shown.state, found.changes) == ("done", gone(b"a/", b"a/1", b"a/2"))
            assert b"a" not in known(store)
            await until(lambda: not orphans(store))

    run(work())


def test_what_another_kind_of_error_says_of_the_root(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES)
        async with master_over(store, origin) as master:
            await synced(master)
            for dry_run in (True, False):
                origin.fail("list_dir", b"", NotFound("no such bucket"))
                found = await synced(master, dry_run=dry_run)
                assert (found.shown.state, found.shown.message) == ("failed", "/: no such bucket")
            assert b"a" in known(store), "a bucket that is not there takes nothing away"

    run(work())


def test_symbolic_links_and_attributes(store: Store) -> None:
    async def work() -> None:
        origin = MemoryConnector(FILES, posix=True)
        origin.symlink(b"l", b"a/1")
        async with master_over(store, origin) as master:
            await synced(master)
            origin.symlink(b"l", b"a/2")
            origin.put(b"s", b"")
            for dry_run in (True, False):
                found = await synced(master, dry_run=dry_run)
                assert found.changes == added(b"s") + replaced(b"l")

    run(work())
