"""A master with many sources: nested, added and removed at run time, and after restarts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cachefs.core.cluster import UfsRow
from cachefs.core.errors import (
    BadConfig,
    CredentialsMissing,
    InUse,
    NotADirectory,
    NotFound,
    Stale,
    Unavailable,
    Unreachable,
)
from cachefs.core.messages import Invalidate
from cachefs.core.model import ROOT_INO, Inode, Kind, UfsSpec
from connectors.file.connector import FileConnector
from master.namespace import Master
from master.state.health import PROBE_EVERY_S
from tests.integration.test_master import Clock, collect, names_of, raises, run, until
from tests.services.memory import MemoryConnector

X = UfsSpec("s3://x", {"profile": "data"})
Y = UfsSpec("s3://y")


class Origin(MemoryConnector):
    """Says when it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def cluster(
    directory: Path, clock: Clock, *origins: MemoryConnector
) -> AsyncIterator[Master]:
    master = Master.open_empty(directory / "meta", clock)
    try:
        yield master
    finally:
        for origin in origins:
            origin.script.unblock()
        await master.close()


async def inode_of(master: Master, path: bytes) -> Inode:
    found = (await master.resolve(path)).inode
    assert found is not None, path
    return found


async def paths(walk: AsyncIterator[list[tuple[bytes, Inode]]]) -> set[bytes]:
    return {path async for batch in walk for path, _ in batch}


# ---- many sources --------------------------------------------------------------------------------


def test_a_cluster_starts_empty_and_shows_what_is_added(tmp_path: Path) -> None:
    async def work() -> None:
        x, y = Origin({b"d/f": b"1", b"g": b"22"}), Origin({b"h": b"333"})
        async with cluster(tmp_path, Clock()) as master:
            assert await names_of(master) == []
            assert (await master.resolve(b"/data/x")).inode is None
            added = await master.add_ufs(b"/data/x", X, x, 30.0)
            assert (added.root, added.warning) == (await inode_of(master, b"/data/x"), "")
            await master.add_ufs(b"data/y/", Y, y, 60.0)
            assert await names_of(master) == [b"data"]
            assert await names_of(master, (await inode_of(master, b"data")).ino) == [b"x", b"y"]
            walked = await paths(master.walk(ROOT_INO))
            assert walked == {b"data/x/d/f", b"data/x/g", b"data/y/h"}
            assert await paths(master.known_files(ROOT_INO)) == walked
            assert (await master.resolve(b"/data/x/g")).valid_for_s == 30.0
            assert master.mounts.rows() == [
                UfsRow(b"/data/x", X, 30.0),
                UfsRow(b"/data/y", Y, 60.0),
            ]
            assert master.ufs(Y.key) == Y
        assert x.closed
        assert y.closed

    run(work())


def test_origins_are_located_across_borders_many_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/x", X, Origin({b"d/f": b"1"}), 60.0)
            await master.add_ufs(b"/x/d/y", Y, Origin({b"f": b"22"}), 60.0)
            inner, outer = await inode_of(master, b"/x/d/y/f"), await inode_of(master, b"/x/d/f")
            places = master.locate_many([inner.ino, ROOT_INO, outer.ino, 4711])
            origins = [place.origin and (place.origin.ufs, place.origin.path) for place in places]
            assert origins == [(Y.key, b"f"), None, (X.key, b"d/f"), None]
            codes = [place.failure and place.failure.code for place in places]
            assert codes == [None, "is-a-directory", None, "stale"]
            assert places[0].origin == await master.locate(inner.ino)

    run(work())


def test_a_source_wins_over_what_an_origin_has_there_and_survives_every_sync(
    tmp_path: Path,
) -> None:
    """[S-sources] Nothing that comes or goes at the outer origin changes that."""

    async def work() -> None:
        clock, x = Clock(), Origin({b"a/b/hidden": b"1", b"a/f": b"2", b"c": b"3"})
        async with cluster(tmp_path, clock) as master:
            await master.add_ufs(b"/", X, x, 60.0)
            await paths(master.walk(ROOT_INO))
            kept = await inode_of(master, b"a/f")
            gone = await inode_of(master, b"a/b/hidden")
            added = await master.add_ufs(b"/a/b", Y, Origin({b"n": b"1"}), 60.0)
            assert added.warning == "it hides s3://x/a/b"
            assert await paths(master.walk(ROOT_INO)) == {b"a/b/n", b"a/f", b"c"}
            assert await inode_of(master, b"a/f") == kept
            await raises(Stale, master.getattr(gone.ino))
            x.delete(b"a")
            x.put(b"a", b"a file now")
            clock.now += 61
            assert await paths(master.walk(ROOT_INO)) == {b"a/b/n", b"c"}
            assert (await inode_of(master, b"a")).kind is Kind.DIRECTORY
            assert await names_of(master) == [b"a", b"c"]
            assert (await inode_of(master, b"a/b")) == added.root

    run(work())


def test_directories_made_in_a_source_need_nothing_at_its_origin(tmp_path: Path) -> None:
    """A file system says that the directory is not there."""

    async def work() -> None:
        clock, folder = Clock(), tmp_path / "origin"
        folder.mkdir(mode=0o751)
        (folder / "f").write_bytes(b"1")
        async with cluster(tmp_path, clock) as master:
            added = await master.add_ufs(
                b"/o", UfsSpec("file:///o"), FileConnector(str(folder)), 60
            )
            assert (added.root.mode, added.root.uid) == (0o751, os.getuid())
            await master.add_ufs(b"/o/made/y", Y, Origin({b"n": b"1"}), 60.0)
            for _ in range(2):
                assert await paths(master.walk(ROOT_INO)) == {b"o/f", b"o/made/y/n"}
                clock.now += 61
            folder.chmod(0o700)
            assert (await inode_of(master, b"o")).mode == 0o700
            (folder / "made").mkdir(mode=0o705)
            (folder / "made" / "g").write_bytes(b"1")
            clock.now += 61
            assert await paths(master.walk(ROOT_INO)) == {b"o/f", b"o/made/g", b"o/made/y/n"}
            assert (await inode_of(master, b"o/made")).mode == 0o705
            await master.mounts.remove(b"/o/made/y")
            assert await paths(master.walk(ROOT_INO)) == {b"o/f", b"o/made/g"}

    run(work())


def test_a_source_between_two_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/a", X, Origin({b"b/f": b"1", b"g": b"2"}), 60.0)
            await master.add_ufs(b"/a/b/c", Y, Origin({b"n": b"1"}), 60.0)
            await paths(master.walk(ROOT_INO))
            inner = await inode_of(master, b"/a/b/c/n")
            await master.add_ufs(b"/a/b", UfsSpec("s3://z"), Origin({b"m": b"1"}), 60.0)
            assert await paths(master.walk(ROOT_INO)) == {b"a/b/c/n", b"a/b/m", b"a/g"}
            await master.mounts.remove(b"/a")
            assert await paths(master.walk(ROOT_INO)) == {b"a/b/c/n", b"a/b/m"}
            await master.mounts.remove(b"/a/b")
            assert await paths(master.walk(ROOT_INO)) == {b"a/b/c/n"}
            assert await inode_of(master, b"/a/b/c/n") == inner

    run(work())


# ---- what is refused -----------------------------------------------------------------------------


def test_adding_again_changes_nothing_and_another_source_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        first, second, third = Origin({b"f": b"1"}), Origin({b"f": b"1"}), Origin({b"f": b"1"})
        async with cluster(tmp_path, Clock()) as master:
            added = await master.add_ufs(b"/x", X, first, 60.0)
            again = await master.add_ufs(b"x", X, second, 30.0)
            assert again.root == added.root
            assert again.warning == "it keeps its sync interval of 1m00s"
            err = await raises(InUse, master.add_ufs(b"/x", Y, third, 60.0))
            assert "s3://x" in err.one_line()
            assert err.remedy
            assert [origin.closed for origin in (first, second, third)] == [False, True, True]
            await raises(NotADirectory, master.add_ufs(b"/x/f/y", Y, third, 60.0))
            assert master.mounts.recorded() == [(b"/x", X)]

    run(work())


@pytest.mark.parametrize("path", [b"/a/../b", b"/a/.", b"/a\0", b"/" + b"n" * 256, b"/a" * 65])
def test_paths_that_cannot_be(tmp_path: Path, path: bytes) -> None:
    async def work() -> None:
        origin = Origin({b"f": b"1"})
        async with cluster(tmp_path, Clock()) as master:
            await raises(BadConfig, master.add_ufs(path, X, origin, 60.0))
            assert origin.closed

    run(work())


def test_the_first_use_must_reach_the_origin_and_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        origin = Origin({b"f": b"1"})
        origin.fail("check", None, NotFound("no such bucket"))
        async with cluster(tmp_path, Clock()) as master:
            await raises(NotFound, master.add_ufs(b"/data/x", X, origin, 60.0))
            assert await names_of(master) == []
            assert master.mounts.recorded() == []
            assert origin.closed

    run(work())


# ---- removal -------------------------------------------------------------------------------------


def test_a_removed_source_leaves_no_name_and_its_inos_are_stale(tmp_path: Path) -> None:
    """[S-sources] Other sources keep theirs."""

    async def work() -> None:
        x, y = Origin({b"d/f%d" % n: b"1" for n in range(5)}), Origin({b"f": b"1"})
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/data/x", X, x, 60.0)
            await master.add_ufs(b"/y", Y, y, 60.0)
            await paths(master.walk(ROOT_INO))
            gone = [
                await inode_of(master, path) for path in (b"data/x", b"data/x/d", b"data/x/d/f1")
            ]
            kept = await inode_of(master, b"y/f")
            await master.mounts.remove(b"/data/x")
            for inode in gone:
                await raises(Stale, master.getattr(inode.ino))
            await raises(Stale, master.list_dir(gone[1].ino, b"", 10))
            await raises(Stale, master.locate(gone[2].ino))
            assert await names_of(master) == [b"y"]
            assert (await master.resolve(b"/data")).inode is None
            assert await inode_of(master, b"y/f") == kept
            await until(lambda: master.status()["names"] == 2)
            await until(lambda: x.closed)
            assert not y.closed
            with pytest.raises(NotFound):
                master.ufs(X.key)
            await raises(NotFound, master.mounts.remove(b"/data/x"))

    run(work())


def test_a_source_that_comes_back_has_new_inos(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.add_ufs(b"/x", X, Origin({b"f": b"1"}), 60.0)
            old = await inode_of(master, b"x/f")
            await master.mounts.remove(b"/x")
            await master.add_ufs(b"/x", X, Origin({b"f": b"1"}), 60.0)
            new = await inode_of(master, b"x/f")
            assert (old.ino != new.ino, old.nonce != new.nonce) == (True, True)

    run(work())


@pytest.mark.parametrize("path", [b"/", b"/x"])
def test_nothing_comes_of_a_listing_under_way_of_a_removed_source(
    tmp_path: Path, path: bytes
) -> None:
    async def work() -> None:
        x, y = Origin({b"old": b"1"}), Origin({b"new": b"1"})
        async with cluster(tmp_path, Clock(), x) as master:
            root = (await master.add_ufs(path, X, x, 60.0)).root
            x.block("list_dir")
            listing = asyncio.ensure_future(master.list_dir(root.ino, b"", 10))
            await until(lambda: x.calls["list_dir"] > 0)
            await master.mounts.remove(path)
            await master.add_ufs(path, Y, y, 60.0)
            assert not x.closed, "it is being asked"
            seen = await paths(master.walk(ROOT_INO))
            x.unblock()
            await raises(Stale, listing)
            await until(lambda: x.closed)
            assert (
                seen
                == await paths(master.walk(ROOT_INO))
                == {path[1:] + b"/new" if path != b"/" else b"new"}
            )

    run(work())


def test_nothing_comes_of_a_stat_under_way_of_a_removed_source(tmp_path: Path) -> None:
    async def work() -> None:
        x, y = Origin({b"old": b"1"}), Origin({b"new": b"1"})
        async with cluster(tmp_path, Clock(), x) as master:
            await master.add_ufs(b"/", X, x, 60.0)
            x.block("stat")
            asking = asyncio.ensure_future(master.lookup(ROOT_INO, b"old"))
            await until(lambda: x.calls["stat"] > 0)
            await master.mounts.remove(b"/")
            await master.add_ufs(b"/", Y, y, 60.0)
            assert await names_of(master) == [b"new"]
            x.unblock()
            await raises(Stale, asking)
            assert await names_of(master) == [b"new"]
            assert (await master.lookup(ROOT_INO, b"old")).inode is None

    run(work())


def test_what_a_source_hid_is_seen_when_it_goes_though_a_listing_passed_it_by(
    tmp_path: Path,
) -> None:
    """[S-sources] What it hid is seen again."""

    async def work() -> None:
        clock, x = Clock(), Origin({b"a/f": b"1", b"b": b"1"}, page_entries=1)
        async with cluster(tmp_path, clock, x) as master:
            await master.add_ufs(b"/", X, x, 60.0)
            await master.add_ufs(b"/a", Y, Origin({b"n": b"1"}), 60.0)
            x.block("page")
            listing = asyncio.ensure_future(names_of(master))
            await until(lambda: x.calls["page"] > 0)
            await master.mounts.remove(b"/a")
            x.unblock()
            await listing
            await until(lambda: not master._sync._tasks)
            assert await paths(master.walk(ROOT_INO)) == {b"a/f", b"b"}

    run(work())


def test_who_asks_may_be_cancelled_and_the_change_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        x = Origin({b"f": b"1"})
        async with cluster(tmp_path, Clock(), x) as master:
            x.block("check")
            adding = asyncio.ensure_future(master.add_ufs(b"/x", X, x, 60.0))
            await until(lambda: x.calls["check"] > 0)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            x.unblock()
            await until(lambda: bool(master.mounts.recorded()))
            assert await paths(master.walk(ROOT_INO)) == {b"x/f"}

    run(work())


# ---- events --------------------------------------------------------------------------------------


def test_clients_hear_of_what_comes_and_goes(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, Clock()) as master:
            await master.resolve(b"/data")
            await master.add_ufs(b"/data/x", X, Origin({b"f": b"1"}), 60.0)
            await master.mounts.remove(b"/data/x")
            added, removed = await collect(master, 0, 2)
            assert (ROOT_INO, b"data") in added.entries
            assert removed == Invalidate(master.namespace, 2, everything=True)

    run(work())


# ---- restarts ------------------------------------------------------------------------------------


async def filled(directory: Path, clock: Clock) -> None:
    """A store that knows two sources."""
    async with cluster(directory, clock) as master:
        await master.add_ufs(b"/a/x", X, Origin({b"d/f": b"1", b"e/f": b"1"}), 30.0)
        await master.add_ufs(b"/a/x/y", Y, Origin({b"n": b"1"}), 60.0)
        await names_of(master, (await inode_of(master, b"/a/x")).ino)
        assert (await inode_of(master, b"/a/x/d/f")).size == 1


def test_a_restart_knows_its_sources_and_names(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        await filled(tmp_path, clock)
        async with cluster(tmp_path, clock) as master:
            assert master.mounts.recorded() == [(b"/a/x", X), (b"/a/x/y", Y)]
            master.mounts.attach(b"/a/x", Origin({b"d/f": b"1"}))
            master.mounts.attach(b"/a/x/y", Origin({b"n": b"1"}))
            assert await master.mounts.check() == []
            clock.now += 61
            assert await paths(master.walk(ROOT_INO)) == {b"a/x/d/f", b"a/x/y/n"}
            assert master.mounts.rows()[0] == UfsRow(b"/a/x", X, 30.0)
            with pytest.raises(NotFound):
                master.mounts.attach(b"/b", Origin())

    run(work())


def test_a_source_that_cannot_be_opened_is_served_from_what_is_known(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        await filled(tmp_path, clock)
        async with cluster(tmp_path, clock) as master:
            master.mounts.attach(b"/a/x", CredentialsMissing("no profile 'data'", remedy="make it"))
            down = Origin({b"n": b"1"})
            down.fail("check", None, Unreachable("no route"))
            master.mounts.attach(b"/a/x/y", down)
            lines = await master.mounts.check()
            assert ["no profile 'data'; make it" in lines[0], "no route" in lines[1]] == [True] * 2
            assert [row.origin_down for row in master.mounts.rows()] == [True, True]
            assert "no profile" in master.mounts.rows()[0].warning
            clock.now += 1000
            known = await master.resolve(b"/a/x/d/f")
            assert known.inode is not None
            assert known.valid_for_s == 5.0
            await raises(Unavailable, names_of(master, (await inode_of(master, b"/a/x/e")).ino))
            assert (await inode_of(master, b"/a/x/y/n")).size == 1
            await raises(Unreachable, again(master, down))
            again_there = await master.add_ufs(b"/a/x", X, Origin({b"e/g": b"1"}), 30.0)
            assert again_there.warning == ""
            clock.now += 61
            assert await paths(master.walk(ROOT_INO)) == {b"a/x/e/g", b"a/x/y/n"}
            assert master.mounts.rows()[0].warning == ""

    async def again(master: Master, down: Origin) -> None:
        down.fail("stat", None, Unreachable("no route"))
        await master.resolve(b"/a/x/y/unknown")

    run(work())


def test_the_root_of_a_source_that_is_down_is_there_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        clock, x = Clock(), Origin({b"f": b"1"}, posix=True)
        async with cluster(tmp_path, clock, x) as master:
            root = (await master.add_ufs(b"/x", X, x, 60.0)).root
            clock.now += 61
            x.fail("stat", b"", Unreachable("no route"))
            assert (await master.resolve(b"/x")).valid_for_s == 5.0
            asked = x.calls["stat"]
            x.block("stat")
            for found in (await master.lookup(ROOT_INO, b"x"), await master.getattr(root.ino)):
                assert (found.inode, found.valid_for_s) == (root, 5.0)
            assert x.calls["stat"] == asked
            clock.now += PROBE_EVERY_S
            assert (await master.resolve(b"/x")).valid_for_s == 5.0
            await until(lambda: x.calls["stat"] == asked + 1)
            x.unblock()
            await until(lambda: not master.mounts.rows()[0].origin_down)
            assert (await master.resolve(b"/x")).valid_for_s == 60.0

    run(work())


def test_an_origin_that_hangs_does_not_keep_a_restart_waiting(tmp_path: Path) -> None:
    async def work() -> None:
        clock, hangs = Clock(), Origin({b"n": b"1"})
        await filled(tmp_path, clock)
        async with cluster(tmp_path, clock, hangs) as master:
            hangs.block("check")
            master.mounts.attach(b"/a/x", hangs)
            master.mounts.attach(b"/a/x/y", Origin({b"n": b"1"}))
            lines = await master.mounts.check(within_s=0.05)
            assert lines == ["serving what is known of s3://x: no answer yet"]

    run(work())


def test_what_a_removal_left_to_be_deleted_goes_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        await filled(tmp_path, clock)
        async with cluster(tmp_path, clock) as master:
            master._sync._gardening = True  # as if the process ended before it could
            await master.mounts.remove(b"/a/x")
            assert master.status()["names"] > 3
        async with cluster(tmp_path, clock) as master:
            assert master.mounts.recorded() == [(b"/a/x/y", Y)]
            master.mounts.attach(b"/a/x/y", Origin({b"n": b"1"}))
            await master.mounts.check()
            await paths(master.walk(ROOT_INO))
            await until(lambda: master.status()["names"] == 4)  # a, x, y, n

    run(work())


def test_a_silent_source_holds_up_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        x, y = Origin({b"d%02d/f" % n: b"1" for n in range(40)}), Origin({b"h": b"333"})
        async with cluster(tmp_path, Clock(), x, y) as master:
            await master.add_ufs(b"/x", X, x, 60.0)
            await master.add_ufs(b"/y", Y, y, 60.0)
            above = [await inode_of(master, b"/x/d%02d" % n) for n in range(40)]
            asked = list[asyncio.Future[object]]()
            for verb, ask in (
                ("stat", lambda ino: master.lookup(ino, b"f")),
                ("list_dir", lambda ino: master.list_dir(ino, b"", 9)),
            ):
                x.script.block(verb)
                asked += [asyncio.ensure_future(ask(one.ino)) for one in above]
                await asyncio.to_thread(x.script.wait_blocked, verb, 8)
            async with asyncio.timeout(10.0):
                assert (await inode_of(master, b"/y/h")).size == 3
                assert await names_of(master, (await inode_of(master, b"/y")).ino) == [b"h"]
            x.script.unblock()
            await asyncio.gather(*asked)

    run(work())
