"""Load jobs whose changes cannot be recorded at first, or whose callers do not wait for that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import NoSpace
from cachefs.core.jobs import JobSpec, JobState
from master.jobs import runner, service
from master.namespace import Master
from master.store import jobs as table
from tests.integration.job_worker import TaskWorker
from tests.integration.test_master_jobs import ended, opened, origin, run, state


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TICK_S", 0.02)
    monkeypatch.setattr(runner, "SAVE_AGAIN_S", 0.01)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No record of a job can be written meanwhile."""

    def refuse(*_: Any) -> None:
        raise NoSpace("no room for the metadata store")

    with monkeypatch.context() as patched:
        patched.setattr(table, "put", refuse)
        yield


async def cancelled(
    monkeypatch: pytest.MonkeyPatch, function: str, work: Callable[[], Awaitable[Any]]
) -> None:
    """Cancels a change of a job while a function of the store's writer is called for it."""
    entered, may_end = threading.Event(), threading.Event()
    write = getattr(table, function)

    def slow(*arguments: Any) -> Any:
        entered.set()
        may_end.wait()
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(table, function, slow)
        task = asyncio.ensure_future(work())
        await asyncio.to_thread(entered.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        may_end.set()
    assert task.cancelled()


async def stopped_job(master: Master) -> int:
    job = (await master.submit_job(JobSpec((b"/a",)), "key")).job
    await master.control_job(job, "stop")
    await state(master, job, lambda _: master.load_jobs._jobs[job].is_durable)
    return job


def test_a_job_that_is_resumed_on_a_full_disk_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=50), TaskWorker()) as master:
            job = await stopped_job(master)
            with full_disk(monkeypatch), pytest.raises(NoSpace):
                await master.control_job(job, "resume")
            assert (await ended(master, job)).files_done == 50

    run(work())


def test_a_job_that_could_not_be_forgotten_stays_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=50), TaskWorker()) as master:
            job = await stopped_job(master)
            with full_disk(monkeypatch), pytest.raises(NoSpace):
                await master.control_job(job, "forget")
            await master.control_job(job, "resume")
            await ended(master, job)
        async with opened(tmp_path, origin(a=50)) as master:
            assert (await master.job(job)).job.state is JobState.SUCCEEDED

    run(work())


def test_a_job_whose_submitter_does_not_wait_is_found_by_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=50), TaskWorker()) as master:
            spec = JobSpec((b"/a",))
            await cancelled(monkeypatch, "put_new", lambda: master.submit_job(spec, "key"))
            job = (await master.submit_job(spec, "key")).job
            assert job == 1, "the first one"
            assert (await ended(master, job)).files_done == 50

    run(work())


def test_a_job_is_resumed_though_nobody_waits_for_the_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=50), TaskWorker()) as master:
            job = await stopped_job(master)
            await cancelled(monkeypatch, "put", lambda: master.control_job(job, "resume"))
            assert (await ended(master, job)).files_done == 50

    run(work())


def test_a_job_without_the_end_of_its_list_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, origin(a=50), TaskWorker()) as master:
            job = (await master.submit_job(JobSpec((b"a/f0000",)), more=True)).job
            shown = await state(master, job, lambda shown: shown.files_done == 1)
            assert "waits for the rest of its list of paths" in shown.message
            await master.add_job_paths(job, 1, [b"a/f0001"], last=True)
            assert (await ended(master, job)).message == ""

    run(work())


def test_a_master_on_a_full_disk_ends_without_the_pause_before_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "SAVE_AGAIN_S", 1000.0)

    async def work() -> None:
        async with opened(tmp_path, origin(a=50)) as master:
            job = (await master.submit_job(JobSpec((b"/a",)))).job
            with full_disk(monkeypatch):
                await state(master, job, lambda shown: shown.listing_done)
                while "cannot be recorded" not in caplog.text:
                    await asyncio.sleep(0.005)
                async with asyncio.timeout(10):
                    await master.load_jobs.close()

    run(work())
