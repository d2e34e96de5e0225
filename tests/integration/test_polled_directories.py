"""Changes that the times of directories report: what is seen before the sync interval ends, what
that costs the store, and what only the push interval shows."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, NotFound, Stale
from cachefs.core.model import UfsSpec
from cachefs.core.ufs import SetUfs, UfsRow
from master.namespace import Master
from master.push import directory_feed, feeds
from master.state.directory_times import SKEW_S
from tests.integration.test_event_queues import until
from tests.integration.test_look_again import size_of
from tests.integration.test_master import Clock, names_of, run
from tests.integration.test_mount_table import inode_of
from tests.integration.test_reported_names import CountingOrigin

X = UfsSpec("file:///x")
INTERVAL_S = 3600.0
NOW_S = 1_800_000_000.0  # long after all changes of the store
SEEDS = range(8)
STEPS = 60

Script = Callable[[Master, Clock, CountingOrigin], Awaitable[None]]


def play(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Script,
    *,
    interval_s: float = INTERVAL_S,
) -> None:
    monkeypatch.setattr(feeds, "poll_s", lambda value: 0.004)

    async def work() -> None:
        clock, origin = Clock(), CountingOrigin({b"d/a": b"1", b"d/b": b"1", b"e/c/f": b"1"})
        master = Master.open_empty(directory / "meta", clock)
        try:
            await master.add_ufs(b"/data", X, origin, interval_s, "poll")
            await master.mounts.check(1.0)
            await script(master, clock, origin)
        finally:
            origin.script.unblock()
            await master.close()

    run(work())


async def rounds(master: Master, clock: Clock) -> None:
    """Waits until two rounds began after this moment, and what they marked is compared."""
    for _ in range(2):
        clock.now += 0.001
        await until(lambda: master.mounts.rows()[0].feed_current_at >= clock())
    await until(lambda: not len(master._sync.unchecked))


async def names(master: Master, path: bytes) -> list[bytes]:
    return await names_of(master, (await inode_of(master, path)).ino)


def test_changed_names_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        assert await names(master, b"/data/d") == [b"a", b"b"]
        await rounds(master, clock)
        origin.put(b"d/new", b"22")
        origin.delete(b"d/b")
        await rounds(master, clock)
        assert await names(master, b"/data/d") == [b"a", b"new"]
        assert await size_of(master, b"/data/d/new") == 2
        origin.delete(b"d/a")
        origin.put(b"d/a", b"another")
        await rounds(master, clock)
        assert await size_of(master, b"/data/d/a") == 7
        (row,) = master.mounts.rows()
        assert (row.push, row.feed_error) == ("poll:5s", "")
        assert row.pushed > 0

    play(tmp_path, monkeypatch, script)


def test_directories_of_other_sources_count_for_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_feed, "MAX_DIRECTORIES", 6)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        def source() -> UfsRow:
            return master.mounts.rows()[0]

        other = CountingOrigin({b"o%d/f" % n: b"x" for n in range(9)})
        await master.add_ufs(b"/other", UfsSpec("s3://other"), other, INTERVAL_S)
        for n in range(9):
            assert await names(master, b"/other/o%d" % n) == [b"f"]
        assert await names(master, b"/data/d") == [b"a", b"b"]
        clock.now += 0.001
        await until(lambda: source().feed_current_at >= clock() or source().feed_error)
        assert source().feed_error == ""
        monkeypatch.setattr(directory_feed, "MAX_DIRECTORIES", 1)
        await until(lambda: source().feed_error)
        assert "more than 1 directories of the source" in source().feed_error
        assert "--push none" in source().feed_error

    play(tmp_path, monkeypatch, script)


def test_names_of_directories_that_were_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        origin.mkdir(b"empty")
        await rounds(master, clock)
        assert await size_of(master, b"/data/e/c/f") == 1, "by its path alone"
        assert await size_of(master, b"/data/d/later") is None
        assert await names(master, b"/data/empty") == []
        await rounds(master, clock)
        origin.delete(b"e/c/f")
        origin.put(b"e/c/f", b"another")
        origin.put(b"d/later", b"22")
        origin.put(b"empty/first", b"1")
        await rounds(master, clock)
        assert await size_of(master, b"/data/e/c/f") == 7
        assert await size_of(master, b"/data/d/later") == 2
        assert await names(master, b"/data/empty") == [b"first"]

    play(tmp_path, monkeypatch, script)


def test_an_hour_of_readers_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await rounds(master, clock)
        assert await names(master, b"/data/d") == [b"a", b"b"]
        await rounds(master, clock)
        origin.lists = 0
        for _ in range(58):
            clock.now += 60.0
            await rounds(master, clock)
            assert await names(master, b"/data/d") == [b"a", b"b"]
            assert await size_of(master, b"/data/d/a") == 1
        assert origin.lists == 0

    play(tmp_path, monkeypatch, script, interval_s=60.0)


def test_a_file_that_is_changed_in_place_is_seen_after_the_push_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-push-poll] [C-feed-times]"""

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await rounds(master, clock)
        assert await size_of(master, b"/data/d/a") == 1
        await rounds(master, clock)  # since the directory changed a short time ago
        origin.put(b"d/a", b"longer")
        await rounds(master, clock)
        clock.now += 120.0
        await rounds(master, clock)
        assert await size_of(master, b"/data/d/a") == 1, "no name changed"
        clock.now += 3600.0
        await rounds(master, clock)
        assert await size_of(master, b"/data/d/a") == 6

    play(tmp_path, monkeypatch, script, interval_s=60.0)


def test_while_times_cannot_be_read_names_are_valid_for_the_sync_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await rounds(master, clock)
        assert await size_of(master, b"/data/d/a") == 1
        assert await size_of(master, b"/data/e/c/f") == 1
        (row,) = master.mounts.rows()
        origin.fail("stat", b"e", AccessDenied("not yours"), times=10_000)
        await until(lambda: "not yours" in master.mounts.rows()[0].feed_error)
        origin.put(b"d/a", b"longer")
        clock.now += 61.0
        assert master.mounts.rows()[0].feed_current_at <= row.feed_current_at + 1.0
        assert await size_of(master, b"/data/d/a") == 6

    play(tmp_path, monkeypatch, script, interval_s=60.0)


def test_a_change_while_times_cannot_be_read_is_seen_though_the_options_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other options the poll begins again, and knows no times of before."""

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        clock.now = NOW_S
        await rounds(master, clock)
        assert await names(master, b"/data/d") == [b"a", b"b"]
        assert await size_of(master, b"/data/e/c/f") == 1
        await rounds(master, clock)
        origin.fail("stat", b"e", AccessDenied("not yours"), times=10_000)
        await until(lambda: "not yours" in master.mounts.rows()[0].feed_error)
        origin._next_mtime_s = int(clock.now)
        origin.delete(b"d/b")
        clock.now += 2 * SKEW_S
        origin.script._faults.clear()
        call = SetUfs(b"/data", {"option": "other"}, (), None, None, None)
        await master.mounts.change(call, lambda _: origin)
        await rounds(master, clock)
        assert await names(master, b"/data/d") == [b"a"]

    play(tmp_path, monkeypatch, script, interval_s=60.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_namespace_follows_the_store(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random changes beside readers; files are always replaced by others of a new name."""
    chance = random.Random(seed)
    directories = [b"a", b"b", b"b/c", b"b/c/d"]

    async def step(master: Master, origin: CountingOrigin, files: dict[bytes, bytes]) -> None:
        directory = chance.choice(directories)
        name = b"%s/%d" % (directory, chance.randrange(4))
        match chance.randrange(5):
            case 0 | 1:
                if name in files:
                    origin.delete(name)
                files[name] = chance.randbytes(chance.randint(1, 9))
                origin.put(name, files[name])
            case 2 if name in files:
                del files[name]
                origin.delete(name)
            case 3:
                await size_of(master, b"/data/" + name)
            case _:
                found = (await master.resolve(b"data/" + directory)).inode
                if found is not None:
                    await names_of(master, found.ino)
        await asyncio.sleep(chance.choice((0, 0, 0.002)))

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        files: dict[bytes, bytes] = {b"d/a": b"1", b"d/b": b"1", b"e/c/f": b"1"}
        for _ in range(STEPS):
            clock.now += chance.choice((0.0, 1.0, 100.0))
            with contextlib.suppress(Stale, NotFound):
                await step(master, origin, files)
        for _ in range(3):
            await rounds(master, clock)
        for name, data in files.items():
            assert await size_of(master, b"/data/" + name) == len(data), name
        found = {path async for batch in master.walk(1) for path, _ in batch}
        assert found == {b"data/" + name for name in files}

    play(tmp_path, monkeypatch, script)
