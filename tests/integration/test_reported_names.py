"""Names that a store reported: many of them at once, over a restart, and how long names are valid
while a store reports its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, Throttled, Unreachable
from cachefs.core.model import UfsSpec
from cachefs.core.ufs import SetUfs
from connectors.base import Entry, Page
from master.namespace import Master
from master.push import look_again, recent_reports, work_budget
from master.push.look_again import CROWD, LookAgain
from master.push.work_budget import STAT_S, WorkBudget, listing_cost_s
from master.state import unchecked
from master.store.transaction import Transaction
from tests.integration.test_look_again import size_of
from tests.integration.test_master import Clock, names_of, run
from tests.integration.test_mount_table import Origin, inode_of

X = UfsSpec("s3://x")
NAMES = [b"d/%03d" % number for number in range(200)]
INTERVAL_S = 60.0
MINUTES = 60


class CountingOrigin(Origin):
    stats = lists = 0

    def stat(self, path: bytes) -> Entry:
        self.stats += 1
        return super().stat(path)

    def list_dir(self, path: bytes) -> Iterator[Page]:
        self.lists += 1
        return super().list_dir(path)


Script = Callable[[Master, Clock, CountingOrigin], Awaitable[None]]


def play(directory: Path, *scripts: Script, interval_s: float = 3600.0) -> None:
    """Runs each script with a master of its own, over one store and one origin."""

    async def work() -> None:
        clock, origin = Clock(), CountingOrigin(dict.fromkeys(NAMES, b"1"))
        for turn, script in enumerate(scripts):
            master = Master.open_empty(directory / "meta", clock)
            try:
                if turn == 0:
                    await master.add_ufs(b"/data", X, origin, interval_s)
                for path, _ in master.mounts.recorded():
                    master.mounts.attach(path, origin)
                await master.mounts.check(1.0)
                await script(master, clock, origin)
            finally:
                origin.script.unblock()
                await master.close()

    run(work())


async def listed(master: Master) -> list[bytes]:
    return await names_of(master, (await inode_of(master, b"/data/d")).ino)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async def wait() -> None:
        while not await condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 20.0)


def change_all(origin: Origin) -> None:
    for name in NAMES[1:]:
        origin.put(name, b"longer")
    origin.delete(NAMES[0])
    origin.put(b"d/new", b"22")


CHANGED = [*NAMES, b"d/new"]


def test_many_names_are_right_at_once_and_cost_one_listing(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        assert len(await listed(master)) == len(NAMES)
        change_all(origin)
        origin.stats = origin.lists = 0
        position = master.position
        await master.mounts.look_again(b"/data", CHANGED)
        assert master.position > position, "clients forget them"
        assert await size_of(master, b"/data/d/new") == 2
        assert await size_of(master, b"/data/" + NAMES[0]) is None
        assert await size_of(master, b"/data/" + NAMES[-1]) == 6

        async def all_listed() -> bool:
            return await listed(master) == [b"%03d" % n for n in range(1, 200)] + [b"new"]

        await until(all_listed)
        await until(lambda: nothing_unchecked(master))
        assert origin.lists == 1
        assert origin.stats < len(NAMES), "not each by itself"
        assert await size_of(master, b"/data/" + NAMES[150]) == 6
        assert origin.lists == 1

    play(tmp_path, script)


def test_a_few_names_of_a_directory_are_compared_at_once(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        origin.stats = origin.lists = 0
        await master.mounts.look_again(b"/data", NAMES[: CROWD - 1])
        assert await nothing_unchecked(master)
        assert (origin.stats, origin.lists) == (CROWD - 1, 0)

    play(tmp_path, script)


def test_directories_end_with_the_names_that_a_listing_compares(tmp_path: Path) -> None:
    """The directory of the names, and the one above it of which it was the only name."""
    inside = [b"a/b/%d" % number for number in range(2 * CROWD)]

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        for name in inside:
            origin.put(name, b"1")
        assert len(await names_of(master, (await inode_of(master, b"/data/a/b")).ino)) == 2 * CROWD
        origin.delete(b"a")
        await master.mounts.look_again(b"/data", inside)

        async def has_ended() -> bool:
            return (await master.resolve(b"/data/a")).inode is None

        await until(has_ended)

    play(tmp_path, script)


def gather(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Makes recorded names wait for this event, and not for a quarter of a second: a busy machine
    may take longer to record them all."""
    reported, gathered = asyncio.Event(), LookAgain._gathered

    async def wait(self: LookAgain, gather_s: float) -> list[int]:
        assert gather_s > 0
        await reported.wait()
        return await gathered(self, 0.0)

    monkeypatch.setattr(LookAgain, "_gathered", wait)
    return reported


def test_names_that_are_reported_one_by_one_soon_cost_one_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_reports, "PERIOD_S", 60.0)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        change_all(origin)
        origin.stats = origin.lists = 0
        reported = gather(monkeypatch)
        for name in CHANGED[: 4 * CROWD]:
            await master.mounts.look_again(b"/data", [name])
        reported.set()
        assert await size_of(master, b"/data/" + NAMES[2 * CROWD]) == 6
        await until(lambda: nothing_unchecked(master))
        assert origin.lists == 1
        assert origin.stats < 2 * CROWD, "the first ones each by itself, then one for a reader"

    play(tmp_path, script)


def test_names_that_gather_in_a_directory_cost_one_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of several reports, too."""

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        change_all(origin)
        origin.stats = origin.lists = 0
        reported = gather(monkeypatch)
        for first in range(0, 4 * CROWD, CROWD):
            await master.mounts.look_again(b"/data", CHANGED[first : first + CROWD])
        assert len(master._sync.unchecked) == 4 * CROWD
        reported.set()
        await until(lambda: nothing_unchecked(master))
        assert (origin.stats, origin.lists) == (0, 1)
        assert await size_of(master, b"/data/" + NAMES[4 * CROWD - 1]) == 6
        assert (origin.stats, origin.lists) == (0, 1)

    play(tmp_path, script)


def test_names_that_are_recorded_while_the_last_records_are_deleted_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        later = [NAMES[CROWD : 2 * CROWD]]

        async def clean(self: LookAgain) -> None:
            if later:
                await master.mounts.look_again(b"/data", later.pop())
            await clean_up(self)

        clean_up = LookAgain._clean
        monkeypatch.setattr(LookAgain, "_clean", clean)
        await master.mounts.look_again(b"/data", NAMES[:CROWD])
        origin.lists = 0

        async def both_listed() -> bool:
            return origin.lists == 2 and await nothing_unchecked(master)

        await until(both_listed)

    play(tmp_path, script)


def test_reported_names_make_no_first_listing_of_a_directory(tmp_path: Path) -> None:
    """How many names that would read is not known."""

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        origin.fail("list_dir", b"d", AccessDenied("no right to list"), times=1000)
        for name in NAMES[: 2 * CROWD]:
            await inode_of(master, b"/data/" + name)
        change_all(origin)
        origin.stats = origin.lists = 0
        await master.mounts.look_again(b"/data", NAMES[: 2 * CROWD])
        assert await nothing_unchecked(master)
        assert (origin.stats, origin.lists) == (2 * CROWD, 0)
        assert await size_of(master, b"/data/" + NAMES[1]) == 6

    play(tmp_path, script)


async def nothing_unchecked(master: Master) -> bool:
    return len(master._sync.unchecked) == 0


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every name wait."""
    monkeypatch.setattr(WorkBudget, "take", lambda *_: False)
    monkeypatch.setattr(WorkBudget, "wait_s", lambda *_: 3600.0)


def test_reported_names_outlive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def before(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        change_all(origin)
        position = master.position
        await master.mounts.look_again(b"/data", CHANGED)
        assert master.position > position, "clients forget them"
        assert len(master._sync.unchecked) == len(CHANGED)

    async def after(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        assert not await nothing_unchecked(master)
        origin.stats = origin.lists = 0
        for _ in range(2):
            assert await size_of(master, b"/data/d/new") == 2
            assert await size_of(master, b"/data/" + NAMES[7]) == 6
        assert (origin.stats, origin.lists) == (2, 0), "a reader's own request ends the mark"
        monkeypatch.undo()
        await master.mounts.look_again(b"/data", [b"d/new"])
        assert await size_of(master, b"/data/" + NAMES[0]) is None

    async def later(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await until(lambda: nothing_unchecked(master))
        assert len(await listed(master)) == len(NAMES)

    async def last(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        assert await nothing_unchecked(master), "the records are deleted"

    never(monkeypatch)
    play(tmp_path, before, after, later, last)


def test_a_name_that_is_reported_while_its_former_record_is_deleted_outlives_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_again, "PAGE", 50)

    async def before(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        write, cleaned, deletions = master._sync.write, asyncio.Event(), 0

        async def write_and_report(function: Callable[[Transaction], object]) -> object:
            nonlocal deletions
            written = await write(function)
            if getattr(function, "func", None) is Transaction.end_unchecked:
                deletions += 1
                if deletions == 1:
                    never(monkeypatch)
                    await master.mounts.look_again(b"/data", [NAMES[-1]])
                if deletions == len(NAMES) // 50:
                    cleaned.set()
            return written

        monkeypatch.setattr(master._sync, "write", write_and_report)
        await master.mounts.look_again(b"/data", NAMES)
        await asyncio.wait_for(cleaned.wait(), 20.0)

    async def after(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        assert len(master._sync.unchecked) == 1

    play(tmp_path, before, after)


def test_the_rest_is_paid_for_though_reports_took_all_that_was_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a store that reports without a pause has its directories listed all the time."""
    monkeypatch.setattr(look_again, "CROWD", len(NAMES) + 1)
    monkeypatch.setattr(work_budget, "SHARE", 1e-9)
    monkeypatch.setattr(WorkBudget, "wait_s", lambda *_: 0.0)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        origin.lists = 0
        await master.mounts.look_again(b"/data", NAMES)
        await until(lambda: nothing_unchecked(master))
        assert origin.lists == 1
        budget = master.mounts._feeds._look_again._budget
        assert budget._free_s == pytest.approx(-listing_cost_s(len(NAMES)), abs=2 * STAT_S)

    play(tmp_path, script)


def test_an_origin_that_is_down_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_again, "RETRY_S", 0.01)
    monkeypatch.setattr(look_again, "LONGEST_GATHER_S", 0.01)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        origin.fail("list_dir", b"d", Unreachable("no route"), times=3)
        await master.mounts.look_again(b"/data", NAMES)
        await until(lambda: nothing_unchecked(master))
        assert origin.lists == 1 + 3 + 1

    play(tmp_path, script)


def test_a_source_that_fails_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories of both have their turns without a pause between them."""
    pauses: list[float] = []
    gathered = LookAgain._gathered

    async def count(self: LookAgain, gather_s: float) -> list[int]:
        pauses.append(gather_s)
        return await gathered(self, 0.05)

    monkeypatch.setattr(LookAgain, "_gathered", count)
    monkeypatch.setattr(look_again, "RETRY_S", 3600.0)
    monkeypatch.setattr(WorkBudget, "take", lambda *_: False)
    monkeypatch.setattr(WorkBudget, "wait_s", lambda *_: 0.0)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        names = [b"%d/%d" % (number, n) for number in range(20) for n in range(CROWD)]
        other = CountingOrigin(dict.fromkeys(names, b"1"))
        await master.add_ufs(b"/other", UfsSpec("s3://other"), other, 3600.0)
        for name in names:
            origin.put(name, b"1")
        for path in (b"/data/%d", b"/other/%d"):
            for number in range(20):
                await names_of(master, (await inode_of(master, path % number)).ino)
        origin.fail("list_dir", None, Unreachable("no route"), times=100_000)
        pauses.clear()
        await master.mounts.look_again(b"/data", names)
        await master.mounts.look_again(b"/other", names)
        assert len(master._sync.unchecked) == 2 * len(names)

        async def others_are_compared() -> bool:
            return len(master._sync.unchecked) == len(names)

        await until(others_are_compared)
        assert len(pauses) < 20, "not one for each directory"

    play(tmp_path, script)


def test_a_page_of_an_unchecked_directory_is_valid_for_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never(monkeypatch)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        ino = (await inode_of(master, b"/data/d")).ino
        assert (await master.list_dir(ino, b"", 10)).valid_for_s > 3000
        await master.mounts.look_again(b"/data", [NAMES[0]])
        assert (await master.list_dir(ino, b"", 10)).valid_for_s == 1.0

    play(tmp_path, script)


def test_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never(monkeypatch)
    monkeypatch.setattr(unchecked, "MAX_NAMES", 100)
    monkeypatch.setattr("master.push.look_again.MAX_NAMES", 100)

    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        with pytest.raises(Throttled, match="more than 100 names"):
            await master.mounts.look_again(b"/data", NAMES)
        await master.mounts.look_again(b"/data", NAMES[:100])

    play(tmp_path, script)


# ---- for how long names are valid ----------------------------------------------------------------


async def an_hour_of_readers(
    master: Master, clock: Clock, origin: CountingOrigin, *, reports: bool
) -> int:
    """Returns how many requests the origin had while every name was read each minute."""
    await listed(master)
    await master.mounts.look_again(b"/data", [NAMES[0]])
    clock.now += INTERVAL_S + 1
    await listed(master)
    origin.stats = origin.lists = 0
    for minute in range(MINUTES - 2):
        clock.now += 60.0
        if reports and minute % 10 == 0:
            await master.mounts.look_again(b"/data", [b"elsewhere"])
        await listed(master)
        for name in NAMES[:20]:
            await inode_of(master, b"/data/" + name)
    return origin.stats + origin.lists


def test_an_hour_of_readers_costs_nothing_while_changes_are_reported(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        asked = SetUfs(b"/data", {}, (), None, None, None)
        assert (await master.mounts.change(asked, lambda _: origin)).push_interval_s == 3600.0
        assert await an_hour_of_readers(master, clock, origin, reports=True) == 0
        found = await master.resolve(b"/data/" + NAMES[0])
        assert 0 < found.valid_for_s <= INTERVAL_S, "nodes ask the master again: reports may end"

    play(tmp_path, script, interval_s=INTERVAL_S)


def test_a_store_that_ceases_to_report_is_asked_again(tmp_path: Path) -> None:
    async def script(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        asked = SetUfs(b"/data", {}, (), None, None, 600.0)
        await master.mounts.change(asked, lambda _: origin)
        assert await an_hour_of_readers(master, clock, origin, reports=False) >= MINUTES - 12

    play(tmp_path, script, interval_s=INTERVAL_S)


def test_what_was_checked_before_a_gap_is_valid_for_the_sync_interval(tmp_path: Path) -> None:
    """[S-push-webhook]"""

    async def before(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        await listed(master)
        await master.mounts.look_again(b"/data", [NAMES[0]])

    async def after(master: Master, clock: Clock, origin: CountingOrigin) -> None:
        clock.now += 1
        await master.mounts.look_again(b"/data", [b"elsewhere"])
        clock.now += INTERVAL_S
        origin.lists = 0
        await listed(master)
        assert origin.lists == 1, "the master was away in between"
        clock.now += 10 * INTERVAL_S
        await listed(master)
        assert origin.lists == 1

    play(tmp_path, before, after, interval_s=INTERVAL_S)
