"""Load jobs of a master over LMDB, with workers that only say what became of their tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefs.core import cluster as c
from cachefs.core.errors import BadConfig, InUse, NoSpace, NotFound, Throttled, Unreachable
from cachefs.core.jobs import JobSpec, JobState, JobStatus, TaskKind
from cachefs.core.model import UfsSpec
from master.jobs import runner, service
from master.namespace import Master
from master.state import job_record
from master.state.window import Position
from master.store import jobs as table
from tests.integration.job_worker import TaskWorker
from tests.services.memory import MemoryConnector

UFS = UfsSpec("s3://bucket/prefix")
DEADLINE_S = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.02)


def origin(**files: int) -> MemoryConnector:
    """Directories by name, with so many files each."""
    made = MemoryConnector()
    for directory, count in files.items():
        for n in range(count):
            made.put(b"%s/f%04d" % (directory.encode(), n), b"x" * 10)
    return made


@asynccontextmanager
async def opened(directory: Path, source: Any, *workers: TaskWorker) -> AsyncIterator[Master]:
    """A master, and workers that serve it."""
    master = Master.open(directory / "meta", UFS, source, 60.0)
    serving = [asyncio.ensure_future(one.serve(master.work)) for one in workers]
    try:
        yield master
    finally:
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await master.close()


async def state(master: Master, job: int, wanted: Callable[[JobStatus], bool]) -> JobStatus:
    while not wanted(shown := (await master.job(job)).job):
        await asyncio.sleep(0.005)
    return shown


async def ended(master: Master, job: int) -> JobStatus:
    return await state(master, job, lambda shown: shown.state.has_ended)


async def load(master: Master, *paths: bytes, **settings: Any) -> JobStatus:
    submitted = await master.submit_job(JobSpec(paths, **settings))
    return await ended(master, submitted.job)


async def failures(master: Master, job: int) -> list[tuple[bytes, str]]:
    return [(one.path, one.code) for one in (await master.job_failures(job, 0)).failures]


def test_everything_below_a_directory_is_loaded_once_and_checked(tmp_path: Path) -> None:
    async def work() -> None:
        worker, source = TaskWorker(), origin(a=70, b=300, c=5)
        source.put(b"a.txt", b"between a and b")
        async with opened(tmp_path, source, worker) as master:
            shown = await load(master, b"/")
            assert shown.state is JobState.SUCCEEDED
            assert shown.files_found == shown.files_done == shown.files_verified == 376
            assert shown.bytes_found == shown.bytes_done == shown.bytes_fetched == 3765
            assert set(worker.fetched.values()) == {1}
            kinds = {task.kind for task in worker.tasks}
            assert kinds == {TaskKind.LOAD, TaskKind.CHECK}

    run(work())


def test_what_paths_and_globs_select(tmp_path: Path) -> None:
    async def work() -> None:
        worker = TaskWorker()
        async with opened(tmp_path, origin(a=20, ab=20, b=20), worker) as master:
            shown = await load(master, b"a*/f*7", b"/b/f0003/", b"b//f0004")
            assert shown.state is JobState.SUCCEEDED
            assert sorted(worker.fetched) == [
                b"a/f0007", b"a/f0017", b"ab/f0007", b"ab/f0017", b"b/f0003", b"b/f0004",
            ]  # fmt: skip

    run(work())


def test_what_is_not_there_fails_and_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=3), TaskWorker()) as master:
            shown = await load(master, b"/a", b"/nix", b"/x*")
            assert shown.state is JobState.FAILED
            assert (shown.files_done, shown.files_failed, shown.files_found) == (3, 2, 5)
            assert await failures(master, shown.job) == [(b"nix", "not-found"), (b"", "not-found")]
            assert "2 of 5" in shown.message

    run(work())


def test_a_job_says_which_origin_it_waits_for(tmp_path: Path) -> None:
    async def work() -> None:
        worker, source = TaskWorker(), origin(a=5)
        worker.gate.clear()
        async with opened(tmp_path, source, worker) as master:
            job = (await master.submit_job(JobSpec((b"/a",)))).job
            await state(master, job, lambda shown: bool(worker.tasks))
            assert (await master.job(job)).job.message == ""
            assert master.status()["waiting_jobs"] == []
            (mount,) = [one for one in master._tree.mounts() if not one.is_void]
            mount.health.failed(Unreachable("no route"), 1.0)
            message = (await master.job(job)).job.message
            assert message == f"waits for {UFS.url} (no route)"
            assert master.status()["waiting_jobs"] == [{"job": job, "message": message}]
            mount.health.succeeded()
            assert (await master.job(job)).job.message == ""
            worker.gate.set()
            assert (await ended(master, job)).state is JobState.SUCCEEDED

    run(work())


def test_the_status_names_jobs_that_failed(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=3), TaskWorker()) as master:
            shown = await load(master, b"/a", b"/nix")
            (one,) = master.status()["failed_jobs"]
            assert (one["job"], one["message"]) == (shown.job, shown.message)
            assert one["ended_at_s"] == shown.ended_at_s > 0

    run(work())


def test_failed_files_are_kept_with_their_cause_and_can_be_retried(tmp_path: Path) -> None:
    async def work() -> None:
        worker = TaskWorker()
        worker.failing = {b"a/f0001": "archived", b"a/f0003": "unreachable"}
        async with opened(tmp_path, origin(a=5), worker) as master:
            master.load_jobs._clocks.now = Hasty()
            shown = await load(master, b"/a")
            assert (shown.state, shown.files_done) == (JobState.FAILED, 3)
            found = (await master.job_failures(shown.job, 0)).failures
            assert {(one.path, one.code, one.attempts) for one in found} == {
                (b"a/f0001", "archived", 1),
                (b"a/f0003", "unreachable", 3),
            }
            del worker.failing[b"a/f0003"]
            await master.control_job(shown.job, "retry")
            shown = await ended(master, shown.job)
            assert (shown.state, shown.files_done, shown.files_failed) == (JobState.FAILED, 4, 1)
            worker.failing.clear()
            await master.control_job(shown.job, "retry")
            shown = await ended(master, shown.job)
            assert (shown.state, shown.files_done) == (JobState.SUCCEEDED, 5)
            assert await failures(master, shown.job) == []
            assert set(worker.fetched.values()) == {1}

    run(work())


class Hasty:
    """A clock on which the waits before another try are short."""

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() * 20


def test_a_file_that_changed_is_loaded_as_it_is_now(tmp_path: Path) -> None:
    async def work() -> None:
        worker, source = TaskWorker(), origin(a=4)
        worker.gate.clear()
        async with opened(tmp_path, source, worker) as master:
            submitted = await master.submit_job(JobSpec((b"/a",)))
            while not worker.tasks:
                await asyncio.sleep(0)
            by_path = {one.origin.path: one.origin for one in worker.tasks[0].files}
            source.put(b"a/f0001", b"other bytes, and more")
            source.delete(b"a/f0002")
            worker.codes = {
                by_path[b"a/f0001"].content.ino: "stale",
                by_path[b"a/f0002"].content.ino: "not-found",
            }
            worker.gate.set()
            shown = await ended(master, submitted.job)
            assert await failures(master, shown.job) == [(b"a/f0002", "not-found")]
            assert (shown.files_done, shown.bytes_done) == (3, 41)
            assert worker.fetched[b"a/f0001"] == 1

    run(work())


def test_what_went_missing_meanwhile_is_loaded_once_more(tmp_path: Path) -> None:
    async def work() -> None:
        worker = TaskWorker()
        async with opened(tmp_path, origin(a=100), worker) as master:
            perform = worker.perform

            def evict_before_the_check(task: Any) -> Any:
                if task.kind is not TaskKind.LOAD and worker.fetched.total() == 100:
                    for one in task.files[:5]:
                        worker.have.discard((one.origin.content.ino, one.block))
                return perform(task)

            worker.perform = evict_before_the_check  # type: ignore[method-assign]
            shown = await load(master, b"/a")
            assert (shown.state, shown.files_done) == (JobState.SUCCEEDED, 100)
            assert worker.fetched.total() >= 105

    run(work())


def test_a_restart_goes_on_from_the_watermark(tmp_path: Path) -> None:
    async def work() -> None:
        worker, source = TaskWorker(), origin(a=6000, b=2000)
        async with opened(tmp_path, source, worker) as master:
            submitted = await master.submit_job(JobSpec((b"/",)))
            await state(master, submitted.job, lambda shown: shown.files_done >= 5000)
        handed = sum(len(task.files) for task in worker.tasks)
        async with opened(tmp_path, source, worker) as master:
            shown = await ended(master, submitted.job)
            assert shown.state is JobState.SUCCEEDED
            assert shown.files_found == shown.files_done == 8000
            assert shown.bytes_done == 80_000
        again = sum(len(task.files) for task in worker.tasks) - handed
        assert again < 8000 + 8000 - 4000, "the check, and what the first run had not done"
        assert set(worker.fetched.values()) == {1}

    run(work())


def test_a_stopped_job_stays_stopped_and_can_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        worker, source = TaskWorker(), origin(a=500)
        worker.gate.clear()
        async with opened(tmp_path, source, worker) as master:
            job = (await master.submit_job(JobSpec((b"/",)))).job
            while not worker.tasks:
                await asyncio.sleep(0)
            reply = await master.control_job(job, "stop")
            assert reply.job.state is JobState.STOPPED
            worker.gate.set()
            await state(master, job, lambda _: job not in worker.running)
        async with opened(tmp_path, source, worker) as master:
            assert (await master.job(job)).job.state is JobState.STOPPED
            worker.gate.clear()
            await master.control_job(job, "resume")
            with pytest.raises(InUse):
                await master.control_job(job, "forget")
            worker.gate.set()
            assert (await ended(master, job)).files_done == 500
            with pytest.raises(InUse):
                await master.control_job(job, "stop")
            await master.control_job(job, "forget")
            with pytest.raises(NotFound):
                await master.job(job)
        async with opened(tmp_path, source, worker) as master:
            assert (await master.jobs(0, 10)).jobs == []

    run(work())


def test_the_same_paths_again_change_the_settings(tmp_path: Path) -> None:
    async def work() -> None:
        worker = TaskWorker()
        worker.gate.clear()
        async with opened(tmp_path, origin(a=5, b=5), worker) as master:
            first = await master.submit_job(JobSpec((b"/a", b"b/")), "key")
            again = await master.submit_job(JobSpec((b"b", b"a//"), bandwidth_bytes_s=16_000))
            assert (again.job, again.updated) == (first.job, True)
            assert (await master.submit_job(JobSpec((b"/a", b"b/")), "key")).job == first.job
            other = await master.submit_job(JobSpec((b"a",)))
            assert other.job != first.job
            worker.gate.set()
            await ended(master, other.job)
            shown = await ended(master, first.job)
            assert shown.spec.bandwidth_bytes_s == 16_000
            table = await master.jobs(0, 1)
            assert ([one.job for one in table.jobs], table.next) == ([other.job], other.job)
            assert [one.job for one in (await master.jobs(table.next, 1)).jobs] == [first.job]
            later = await master.submit_job(JobSpec((b"/a", b"b/")))
            assert later.job not in (first.job, other.job), "an ended job is another"

    run(work())


def test_a_list_of_paths_in_pieces(tmp_path: Path) -> None:
    async def work() -> None:
        worker = TaskWorker()
        async with opened(tmp_path, origin(a=50), worker) as master:
            job = (await master.submit_job(JobSpec((b"a/f0000", b"a/f0001")), more=True)).job
            await state(master, job, lambda shown: shown.files_done == 2)
            with pytest.raises(BadConfig, match="missing"):
                await master.add_job_paths(job, 3, [b"a/f0009"], last=False)
            await master.add_job_paths(job, 2, [b"a/f0002", b"a/f0003"], last=False)
            await master.add_job_paths(job, 2, [b"a/f0002", b"a/f0003"], last=False)
            await master.add_job_paths(job, 4, [b"a/f0004"], last=True)
            await master.add_job_paths(job, 4, [b"a/f0004"], last=True)
            shown = await ended(master, job)
            assert (shown.state, shown.files_done, shown.path_count) == (JobState.SUCCEEDED, 5, 5)

    run(work())


def test_the_same_list_in_pieces_updates_the_job_that_runs(tmp_path: Path) -> None:
    """Whatever the pieces and their order: the job gets the later settings, and answers to the
    number and the key of the later one, also after a restart."""
    paths = [b"a/f%04d" % n for n in range(30)]

    async def submit(master: Master, listed: list[bytes], key: str, **settings: Any) -> int:
        spec = JobSpec(tuple(listed[:5]), **settings)
        job = (await master.submit_job(spec, key, more=True)).job
        await master.add_job_paths(job, 5, listed[5:17], last=False)
        await master.add_job_paths(job, 17, listed[17:], last=True)
        return job

    async def work() -> None:
        async with opened(tmp_path, origin(a=50)) as master:
            first = await submit(master, paths, "one")
            second = await submit(master, paths[::-1], "two", priority="high")
            other = await submit(master, [*paths[:-1], b"a/f0049"], "three")
            await master.add_job_paths(second, 17, paths[::-1][17:], last=True)  # was not answered
            shown = (await master.job(second)).job
            assert (shown.job, shown.spec.priority) == (first, "high")
            assert {one.job for one in (await master.jobs(0, 10)).jobs} == {first, other}
            await master.control_job(first, "stop")
            third = await submit(master, paths, "four")
            shown = (await master.job(first)).job
            assert (shown.state, shown.spec.priority) == (JobState.LOADING, "normal"), "goes on"
        worker = TaskWorker()
        async with opened(tmp_path, origin(a=50), worker) as master:
            again = await master.submit_job(JobSpec((b"a/f0029",)), "two", more=True)
            assert again.job == first, "the key of the later one"
            assert (await ended(master, third)).state is JobState.SUCCEEDED
            assert set(worker.fetched.values()) == {1}
            later = await submit(master, paths, "five")
            assert (await ended(master, later)).job == later, "an ended job is another"

    run(work())


def test_the_number_of_a_merged_job_has_the_failures_of_the_one_that_goes_on(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        worker = TaskWorker()
        worker.gate.clear()
        async with opened(tmp_path, origin(a=1), worker) as master:
            first = (await master.submit_job(JobSpec((b"a/f0000", b"nix")))).job
            merged = (await master.submit_job(JobSpec((b"nix",)), more=True)).job
            await master.add_job_paths(merged, 1, [b"a/f0000"], last=True)
            worker.gate.set()
            assert (await ended(master, merged)).job == first
            assert await failures(master, merged) == [(b"nix", "not-found")]

    run(work())


def test_what_does_not_fit_stops_with_figures_and_can_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        worker = TaskWorker(room_files=120)
        async with opened(tmp_path, origin(a=200), worker) as master:
            shown = await load(master, b"/a")
            assert shown.state is JobState.FAILED
            assert "stopped before the rest was loaded" in shown.message
            assert "120" in shown.message
            assert shown.files_failed == 0
            worker.room_files = 1000
            await master.control_job(shown.job, "resume")
            shown = await ended(master, shown.job)
            assert (shown.state, shown.files_done) == (JobState.SUCCEEDED, 200)

    run(work())


def test_what_cannot_fit_stops_as_soon_as_that_is_known(tmp_path: Path) -> None:
    async def work() -> None:
        worker = TaskWorker(capacity=900)
        async with opened(tmp_path, origin(a=100), worker) as master:
            shown = await load(master, b"/a")
            assert shown.state is JobState.FAILED
            assert "it does not fit: it needs" in shown.message
            assert "the caches hold 900" in shown.message
            worker.capacity = 1000
            await master.control_job(shown.job, "resume")
            assert (await ended(master, shown.job)).state is JobState.SUCCEEDED

    run(work())


def test_a_directory_that_cannot_be_listed_is_a_failure(tmp_path: Path) -> None:
    async def work() -> None:
        source = origin(a=5, b=5, c=5)
        source.fail("list_dir", b"b", Unreachable("no route"), times=100)
        async with opened(tmp_path, source, TaskWorker()) as master:
            shown = await load(master, b"/")
            assert (shown.state, shown.files_done) == (JobState.FAILED, 10)
            assert await failures(master, shown.job) == [(b"b", "unreachable")]

    run(work())


def test_a_directory_that_cannot_be_listed_is_one_failure_over_restarts(tmp_path: Path) -> None:
    async def work() -> None:
        source = origin(a=5, b=5)
        source.fail("list_dir", b"b", Unreachable("no route"), times=100)
        async with opened(tmp_path, source) as master:  # nobody loads: the count is at a/f0004
            job = (await master.submit_job(JobSpec((b"/",)))).job
            await state(master, job, lambda shown: shown.files_failed == 1)
            record = master.load_jobs._jobs[job].record
        put_back = msgspec.structs.replace(record, counted=Position(0, b"a/f0004"))
        put_back = msgspec.structs.replace(put_back, counting_done=False)
        async with opened(tmp_path, source) as master:
            master.store.write(lambda writer: table.put(writer, put_back, [])).result()
        async with opened(tmp_path, source, TaskWorker()) as master:
            shown = await ended(master, job)
            assert (shown.files_done, shown.files_failed, shown.files_found) == (5, 1, 6)
            assert await failures(master, job) == [(b"b", "unreachable")]

    run(work())


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(()),
        JobSpec((b"a",) * 1001),
        JobSpec((b"a",), priority="urgent"),
        JobSpec((b"a",), bandwidth_bytes_s=-1),
        JobSpec((b"a",), hold_s=-1.0),
        JobSpec((b"a",), hold_s=float("nan")),
        JobSpec((b"a/../b",)),
    ],
)
def test_what_means_nothing_is_refused(tmp_path: Path, spec: JobSpec) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=1)) as master:
            with pytest.raises(BadConfig):
                await master.submit_job(spec)
            assert (await master.jobs(0, 10)).jobs == []

    run(work())


def test_the_oldest_ended_jobs_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_record, "MAX_ENDED", 3)

    async def work() -> None:
        async with opened(tmp_path, origin(a=5), TaskWorker()) as master:
            for _ in range(5):
                await load(master, b"/a", b"/nix")
            while len((await master.jobs(0, 10)).jobs) > 3:
                await asyncio.sleep(0.01)
            while master.load_jobs._forgotten:
                await asyncio.sleep(0.01)
            with master.store.snapshot() as reader:
                assert [record.job for record in table.records(reader)] == [3, 4, 5]
                assert table.paths(reader, 2, 0, 10) == []
                assert table.failures(reader, 2, 0, 0, 10) == []

    run(work())


def test_a_long_job_is_kept_whatever_ended_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_record, "MAX_ENDED", 3)

    async def work() -> None:
        async with opened(tmp_path, origin(a=5), TaskWorker()) as master:
            long = (await master.submit_job(JobSpec((b"a/f0000",)), more=True)).job
            for _ in range(3):
                await load(master, b"/a", b"/nix")
            await master.add_job_paths(long, 1, [b"a/f0001"], last=True)
            await ended(master, long)
            while len(found := (await master.jobs(0, 10)).jobs) > 3:
                await asyncio.sleep(0.01)
            assert [one.job for one in found] == [4, 3, long]

    run(work())


def test_the_paths_and_failures_of_ended_jobs_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_record, "MAX_ENDED_ROWS", 8)

    async def work() -> None:
        async with opened(tmp_path, origin(a=9), TaskWorker()) as master:
            jobs = [(await load(master, b"/a/f0000", b"/nix")).job for _ in range(3)]
            while len(found := (await master.jobs(0, 10)).jobs) > 2:
                await asyncio.sleep(0.01)
            assert [one.job for one in found] == jobs[:0:-1], "2 paths and 1 failure each"
            large = await load(master, *(b"/a/f%04d" % n for n in range(9)))
            while len(found := (await master.jobs(0, 10)).jobs) > 1:
                await asyncio.sleep(0.01)
            assert [one.job for one in found] == [large.job], "the last one stays in any case"

    run(work())


def test_jobs_that_are_not_finished_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_UNFINISHED", 2)

    async def work() -> None:
        async with opened(tmp_path, origin(a=5)) as master:
            for n in range(2):
                await master.submit_job(JobSpec((b"a/f%04d" % n,)))
            with pytest.raises(Throttled, match="2 jobs are not finished"):
                await master.submit_job(JobSpec((b"a/f0003",)))
            assert (await master.submit_job(JobSpec((b"a/f0001",)))).updated

    run(work())


def test_a_store_that_cannot_be_written_for_a_while_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SAVE_AGAIN_S", 0.01)
    failing = [3]
    put = table.put

    def sometimes(*arguments: Any) -> None:
        if failing[0]:
            failing[0] -= 1
            raise NoSpace("no room for the metadata store")
        put(*arguments)

    async def work() -> None:
        worker = TaskWorker()
        worker.failing = {b"a/f0001": "archived"}
        async with opened(tmp_path, origin(a=50), worker) as master:
            submitted = await master.submit_job(JobSpec((b"/a",)))
            monkeypatch.setattr(table, "put", sometimes)
            shown = await ended(master, submitted.job)
            assert not failing[0]
            assert (shown.files_done, shown.files_failed) == (49, 1)
            assert await failures(master, shown.job) == [(b"a/f0001", "archived")]

    run(work())


def test_a_walk_that_breaks_ends_the_job_which_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=50), TaskWorker()) as master:
            with monkeypatch.context() as broken:
                broken.setattr(table, "paths", lambda *_: 1 / 0)
                shown = await load(master, b"/a")
                assert (shown.state, shown.message) == (
                    JobState.FAILED,
                    "stopped: ZeroDivisionError",
                )
            await master.control_job(shown.job, "resume")
            assert (await ended(master, shown.job)).files_done == 50

    with caplog.at_level(logging.CRITICAL):
        run(work())


def test_tasks_of_a_worker_that_falls_silent_go_to_others(tmp_path: Path) -> None:
    async def work() -> None:
        silent, other = TaskWorker("silent"), TaskWorker("other")
        silent.gate.clear()
        async with opened(tmp_path, origin(a=50), silent) as master:
            job = (await master.submit_job(JobSpec((b"/a",)))).job
            while not silent.tasks:
                await asyncio.sleep(0.005)
            serving = asyncio.ensure_future(other.serve(master.work))
            master.load_jobs._clocks.now = Hasty()
            assert (await ended(master, job)).files_done == 50
            assert other.fetched.total() == 50
            serving.cancel()

    run(work())


def test_who_waits_for_tasks_is_let_go_at_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        master = Master.open(tmp_path / "meta", UFS, origin(), 60.0)
        waiting = asyncio.ensure_future(master.work(c.Work("w", "", [], 1, 50.0)))
        while not master.load_jobs.status()["polls"]:
            await asyncio.sleep(0)
        earlier, waiting = (
            waiting,
            asyncio.ensure_future(master.work(c.Work("w", "", [], 1, 50.0))),
        )
        assert (await earlier).tasks == [], "a later question ends an earlier one"
        await master.close()
        assert (await waiting).tasks == []
        assert (await master.work(c.Work("w", "", [], 1, 50.0))).tasks == []

    run(work())
