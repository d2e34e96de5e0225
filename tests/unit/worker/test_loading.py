"""Loads into a worker's cache for a master of the test's making: what is brought, held, refused."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.core.cluster import Work, Worked
from cachefs.core.errors import AccessDenied
from cachefs.core.jobs import FileProgress, Task, TaskFile, TaskKind, TaskResult
from cachefs.core.policies import Rule
from tests.unit.worker.rig import (
    LIMIT_S,
    MIB,
    Rig,
    only,
    open_reader,
    read,
    recorded,
    run,
    until,
)
from worker.cache.cache import Cache
from worker.fill.segment import Segment, no_room
from worker.fill.segments import Segments
from worker.loads.loader import Loader
from worker.store.records import HELD_READ
from worker.tier.admission import Admission

SIZE = 100_000
DAY_S = 86400.0


class FakeMaster:
    """Hands out what is put into `tasks`, and keeps what it is told."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.tasks: list[Task] = []
        self.told: dict[int, TaskResult] = {}
        self.progress: list[FileProgress] = []  # of the last call
        self.running = {1: 0}
        self.calls = 0
        self._numbers = 0
        self._news = asyncio.Event()

    async def work(self, call: Work) -> Worked:
        self.calls += 1
        self.progress = call.progress
        for one in call.outcomes:
            assert one.number not in self.told, "told twice"
            self.told[one.number] = one
        if not self.tasks and call.wait_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), call.wait_s)
        self._news.clear()
        tasks, self.tasks = self.tasks, []
        return Worked("run", tasks, dict(self.running))

    async def do(
        self,
        inos: Sequence[int],
        kind: TaskKind = TaskKind.LOAD,
        *,
        hold_s: float = DAY_S,
        hold_read: bool = False,
        block: int = -1,
    ) -> TaskResult:
        """What becomes of one task of these files."""
        self._numbers += 1
        number = self._numbers
        files = [TaskFile(self.rig.space.origins[ino], block) for ino in inos]
        hold_until_s = self.rig.wall_s + hold_s if hold_s else 0.0
        self.tasks.append(Task(number, 1, kind, files, hold_until_s, hold_read))
        self._news.set()
        await until(lambda: number in self.told)
        return self.told[number]

    async def check(self, inos: Sequence[int], kind: TaskKind = TaskKind.CHECK) -> list[int]:
        """The files that are not complete."""
        outcome = await self.do(inos, kind)
        assert all(one.code == "missing" for one in outcome.failures)
        return [inos[one.place] for one in outcome.failures]


@contextlib.asynccontextmanager
async def loading(rig: Rig) -> AsyncIterator[tuple[Cache, FakeMaster]]:
    async with rig.worker() as worker:
        master = FakeMaster(rig)
        loader = Loader(worker.loading, master.work, "w")
        loader.start()
        try:
            yield worker, master
        finally:
            await loader.close()


def test_a_file_does_not_fail_because_its_reader_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-load-failures] The cache refuses the reader, and the scratch area is full; the load, which
    waits for the reader's fill, makes room."""
    real_make, is_refused = Segments.make, asyncio.Event()

    async def refuse(*_: Any) -> bool:
        return False

    async def make(segments: Segments, *args: Any, whole: bool = False, **rest: Any) -> Segment:
        if whole:
            await is_refused.wait()
            raise no_room(in_memory=False, whole=True)
        return await real_make(segments, *args, **rest)

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        ino = rig.put(1, SIZE)
        async with loading(rig) as (worker, master):
            monkeypatch.setattr(Admission, "reserve", refuse)
            monkeypatch.setattr(Admission, "reserve_nowait", lambda *_, **__: False)
            monkeypatch.setattr(Segments, "make", make)
            reading = asyncio.create_task(read(worker, ino))
            await until(lambda: _users(worker) == [1])
            job = asyncio.create_task(master.do([ino]))
            await until(lambda: _users(worker) == [2])
            is_refused.set()
            assert await job == TaskResult(1, SIZE)
            assert await reading == rig.data[ino]

    run(script())


def _users(worker: Cache) -> list[int]:
    """Returns the numbers of users of the files that are being filled."""
    return [entry.users for entry in only(worker)._catalog.entries() if entry.inflight]


def test_small_files_take_one_request_each_and_are_complete_at_once(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        inos = [rig.put(ino, SIZE) for ino in range(1, 101)]
        inos.append(rig.put(200, 0))
        async with loading(rig) as (worker, master):
            commits = only(worker).disk.writer.commits
            outcome = await master.do(inos)
            assert outcome == TaskResult(1, 100 * SIZE)
            assert worker.status()["origin_requests"] == 100
            assert only(worker).disk.writer.commits - commits < 40, "commits are shared"
            assert rig.published() == {rig.name(ino) for ino in inos[:-1]}
            assert await master.check(inos) == []
            assert await master.do(inos) == TaskResult(3, 0), "what is here is not brought again"
            for ino in inos[:3]:
                assert await read(worker, ino) == rig.data[ino]
        assert worker.status()["origin_requests"] == 100

    run(script())


def test_a_large_file_is_brought_in_pieces_all_of_it(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 256 * MIB)
        rig.put(1, 40 * MIB + 5)
        async with loading(rig) as (worker, master):
            assert (await master.do([1])).fetched_bytes == 40 * MIB + 5
            assert await master.check([1]) == []
            assert rig.published() == {rig.name(1)}
            assert await read(worker, 1) == rig.data[1]

    run(script())


def test_failures_say_their_causes_and_the_others_go_on(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        inos = [rig.put(ino, SIZE) for ino in range(1, 6)]
        rig.origin.delete(b"dir/2")
        rig.origin.put(b"dir/3", b"another version")
        rig.origin.fail("read", b"dir/4", AccessDenied("no access"))
        async with loading(rig) as (_, master):
            outcome = await master.do(inos)
            codes = {one.place: (one.code, bool(one.cause)) for one in outcome.failures}
            assert codes == {
                1: ("not-found", True),
                2: ("stale", True),
                3: ("access-denied", True),
            }
            assert sorted(rig.space.changed) == [2, 3], "the master is to look again"
            assert await master.check(inos) == [2, 3, 4]

    run(script())


def test_what_was_loaded_is_not_evicted_before_it_was_read(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 4 * MIB, admission="always")
        loaded = [rig.put(ino, SIZE) for ino in range(1, 11)]
        others = [rig.put(ino, SIZE) for ino in range(101, 151)]
        async with loading(rig) as (worker, master):
            assert (await master.do(loaded)).failures == []
            for ino in others:
                await read(worker, ino)
            assert await master.check(loaded) == []
        # A restart knows of it, too.
        async with loading(rig) as (worker, master):
            for ino in reversed(others):
                await read(worker, ino)
            assert await master.check(loaded) == []
            for ino in loaded:
                await read(worker, ino)
            for _ in range(3):
                for ino in others:
                    await read(worker, ino)
            assert await master.check(loaded) == loaded, "it was read: it goes as others do"

    run(script())


def test_a_read_ends_a_hold_for_good_unless_it_was_asked_for_a_time(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        for ino in (1, 2, 3):
            rig.put(ino, SIZE)
        async with loading(rig) as (worker, master):
            await master.do([1, 2])
            await master.do([3], hold_s=50, hold_read=True)
            for ino in (1, 3):
                await read(worker, ino)
        async with rig.worker() as worker:
            order = only(worker).contents.order
            held = {ino: order.held(rig.content(ino).key) for ino in (1, 2, 3)}
            assert held[1] == (0, False)
            assert held[2][0] > 0
            assert held[3][1]
            record = only(worker).disk.directory.index.get(rig.content(3).key)
            assert record is not None
            assert (record.held_until_s, record.flags) == (int(rig.wall_s) + 50, HELD_READ)
            record = only(worker).disk.directory.index.get(rig.content(1).key)
            assert record is not None
            assert record.held_until_s == 0

    run(script())


def test_a_hold_ends_with_its_time(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 4 * MIB, admission="always")
        loaded = [rig.put(ino, SIZE) for ino in range(1, 11)]
        async with loading(rig) as (worker, master):
            await master.do(loaded, hold_s=5.0)
            order, now = only(worker).contents.order, only(worker).context.clocks.monotonic()
            assert order.held_count == 10
            assert order.first_release_s <= now + 5
            order.release_due(int(now) + 6, int(rig.wall_s))
            for ino in range(101, 151):
                await read(worker, rig.put(ino, SIZE))
            assert await master.check(loaded) == loaded

    run(script())


def test_a_load_makes_room_whatever_admission_says(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 8 * MIB, admission="fill")
        old = [rig.put(ino, SIZE) for ino in range(1, 81)]
        wanted = [rig.put(ino, SIZE) for ino in range(101, 131)]
        async with loading(rig) as (worker, master):
            for ino in old:
                await read(worker, ino)
            await recorded(worker)
            assert (await master.do(wanted)).failures == []
            assert await master.check(wanted) == []

    run(script())


def test_what_cannot_fit_stops_with_figures_and_evicts_nothing_that_is_protected(
    tmp_path: Path,
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 8 * MIB, admission="fill")
        pinned = [rig.put(ino, SIZE) for ino in range(1, 21)]
        held = [rig.put(ino, SIZE) for ino in range(31, 41)]
        wanted = [rig.put(ino, SIZE) for ino in range(101, 201)]
        async with loading(rig) as (worker, master):
            for ino in pinned:
                await read(worker, ino)
            rig.space.protected = {rig.name(ino) for ino in pinned}
            await master.do(held)
            outcome = await master.do(wanted)
            room = outcome.room
            assert room is not None
            assert room.pinned_bytes >= 20 * SIZE
            done = 100 - len(outcome.failures)
            brought_bytes = room.held_bytes + room.busy_bytes  # the last file may not be closed
            assert brought_bytes >= (10 + done) * SIZE, "what this job brought is held"
            assert room.limit_bytes < 8 * MIB
            assert {one.code for one in outcome.failures} == {"no-space"}
            assert 0 < done < 70
            assert await master.check([*pinned, *held]) == []

    run(script())


def test_what_a_quota_refuses_fails_with_its_figures_and_the_rest_comes(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        quota_bytes = 5 * 102_400  # as they lie on disk
        inos = [rig.put(ino, SIZE) for ino in range(1, 9)]
        rule = Rule(quotas=((b"dir", quota_bytes),))
        for ino in inos:
            rig.space.origins[ino] = msgspec.structs.replace(rig.space.origins[ino], rule=rule)
        others = [rig.put(ino, SIZE) for ino in range(11, 14)]
        async with loading(rig) as (_worker, master):
            outcome = await master.do([*inos, *others])
            assert outcome.room is None
            assert {one.code for one in outcome.failures} == {"no-space"}
            first = outcome.failures[0]
            assert first.quota is not None
            assert (first.quota.path, first.quota.quota_bytes) == (b"dir", quota_bytes)
            assert first.quota.limit_bytes == quota_bytes
            assert quota_bytes - 102_400 < first.quota.used_bytes <= quota_bytes
            figures = "the quota of /dir has no room for it: .* KiB of 500 KiB are used; give"
            assert re.match(figures, first.cause), first.cause
            refused = {one.place for one in outcome.failures}
            assert len(refused) == 3
            assert refused < set(range(8)), "those without a quota come"
            assert len(await master.check([*inos, *others])) == 3

    run(script())


def test_a_master_that_does_not_say_what_may_go_is_no_want_of_room(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 8 * MIB, admission="fill")
        async with loading(rig) as (worker, master):
            for ino in range(1, 81):
                await read(worker, rig.put(ino, SIZE))
            await recorded(worker)
            rig.space.answers = False
            outcome = await master.do([rig.put(101, 2 * MIB)])
            assert [one.code for one in outcome.failures] == ["unavailable"]
            assert outcome.room is None

    run(script())


def test_bytes_that_went_bad_are_found_by_verify_and_dropped(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        inos = [rig.put(1, SIZE), rig.put(2, 3 * MIB)]
        async with loading(rig) as (_, master):
            await master.do(inos)
            assert await master.check(inos, TaskKind.VERIFY) == []
            name = rig.name(2)
            with open(rig.tier / "files" / name[-2:] / name, "r+b") as file:
                file.seek(2 * MIB + 7)
                file.write(b"wrong")
            assert await master.check(inos) == [], "a check reads nothing"
            assert await master.check(inos, TaskKind.VERIFY) == [2]
            assert await master.check(inos) == [2]
            assert (await master.do(inos)).fetched_bytes == 3 * MIB
            assert await master.check(inos, TaskKind.VERIFY) == []

    run(script())


def test_a_job_that_was_cancelled_is_not_gone_on_with(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 256 * MIB)
        async with loading(rig) as (worker, master):
            master.running = {1: 1_000_000}
            files = [TaskFile(rig.space.origins[rig.put(ino, MIB)], -1) for ino in range(1, 65)]
            master._numbers = 50
            master.tasks.append(Task(50, 1, TaskKind.LOAD, files))
            master._news.set()
            await until(lambda: worker.status()["origin_requests"] > 0)
            master.running = {}
            calls = master.calls
            await until(lambda: master.calls > calls + 1)
            brought = worker.status()["origin_requests"]
            assert brought < 10, "as fast as its bandwidth lets it"
            master.running = {1: 0}
            await master.do([rig.put(100, SIZE)])
            assert 50 not in master.told
            assert worker.status()["origin_requests"] <= brought + 2

    run(script())


def test_a_reader_and_a_load_of_one_file_bring_it_once(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 256 * MIB)
        rig.put(1, 24 * MIB)
        async with loading(rig) as (worker, master):
            reader = await open_reader(worker, 1)
            first = await reader.at(0, 128 << 10)
            outcome = await asyncio.wait_for(master.do([1]), LIMIT_S)
            assert outcome.failures == []
            assert await reader.at(0, 24 * MIB) == rig.data[1]
            assert rig.data[1].startswith(first)
            reader.close()
            assert worker.status()["origin_bytes"] == 24 * MIB

    run(script())


def test_a_poll_has_the_cached_bytes_of_files_in_progress(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 256 * MIB)
        rig.put(1, 40 * MIB + 5)
        async with loading(rig) as (worker, master):
            reader = await open_reader(worker, 1)
            await reader.at(40 * MIB, 5)
            reader.close()
            rig.origin.script.block("read")
            task = asyncio.ensure_future(master.do([1]))
            await until(lambda: master.progress)
            ((number, place, cached_bytes),) = map(msgspec.structs.astuple, master.progress)
            assert (number, place) == (1, 0)
            assert 5 <= cached_bytes < 40 * MIB
            rig.origin.script.unblock("read")
            assert (await asyncio.wait_for(task, LIMIT_S)).failures == []
            assert master.progress == [], "its result replaces it"

    run(script())


def test_what_is_loaded_again_just_after_a_read_is_held_also_for_the_next_start(
    tmp_path: Path,
) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        rig.put(1, SIZE)
        async with loading(rig) as (worker, master):
            await master.do([1])
            await read(worker, 1)
            await master.do([1])
        async with rig.worker() as worker:
            assert only(worker).contents.order.held(rig.content(1).key)[0]

    run(script())
