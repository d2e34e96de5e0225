"""Load jobs of a master over HTTP, with workers that only say what became of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError, NotFound, ProtocolError
from cachefs.core.jobs import FileProgress, JobSpec, JobState, JobStatus, Task
from cachefs.core.policies import Policy
from tests.integration.job_worker import TaskWorker
from tests.integration.test_master_jobs import quick, run
from tests.services.http_master import Cluster, cluster
from tests.services.http_master import worker as registered

__all__ = ["quick"]  # a fixture


async def served(it: Cluster, worker: TaskWorker) -> asyncio.Task[None]:
    async def ask(call: c.Work) -> c.Worked:
        return await it.ask(call, c.Worked)

    return asyncio.ensure_future(worker.serve(ask))


def test_owners_get_their_blocks_and_those_of_a_lost_one_go_to_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"a/f%03d" % n: b"x" for n in range(300)})
            await it.ask(m.SetPolicy(it.namespace, b"data/a", Policy(replicas=2)), m.PolicySet)
            workers = [TaskWorker(f"{n}" * 32) for n in range(3)]
            for n, one in enumerate(workers):
                await it.ask(registered(one.name, 20000 + n), c.Registered)
            lost = workers.pop()
            lost.gate.clear()
            serving = [await served(it, one) for one in (*workers, lost)]
            call = m.SubmitJob(it.namespace, JobSpec((b"/data",)), "key")
            job = (await it.ask(call, m.JobSubmitted)).job
            while not lost.tasks:
                await asyncio.sleep(0.005)
            serving.pop().cancel()
            await it.ask(c.Leave(lost.name), m.Done)
            while True:
                shown = (await it.ask(m.GetJob(it.namespace, job), m.JobReply)).job
                if shown.state.has_ended:
                    break
                await asyncio.sleep(0.01)
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            assert (shown.state, shown.files_done) == (JobState.SUCCEEDED, 300)
            assert [len(one.have) for one in workers] == [300, 300], "two workers, two copies"
            page = await it.ask(m.ListJobs(it.namespace), m.JobTable)
            assert [one.job for one in page.jobs] == [job]

    run(work())


def test_bytes_in_progress_are_shown_until_their_worker_has_left(tmp_path: Path) -> None:
    """A worker reports by HTTP what it has of a file."""

    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"large": b"x" * 5000})
            await it.ask(registered("a" * 32), c.Registered)
            call = m.SubmitJob(it.namespace, JobSpec((b"/data",)))
            job = (await it.ask(call, m.JobSubmitted)).job

            async def bytes_done() -> int:
                shown = (await it.ask(m.GetJob(it.namespace, job), m.JobReply)).job
                assert (shown.state, shown.files_done) == (JobState.LOADING, 0)
                return shown.bytes_done

            master_run, tasks = "", list[Task]()
            while not tasks:
                worked = await it.ask(c.Work("a" * 32, master_run, [], 1 << 30, 20.0), c.Worked)
                master_run, tasks = worked.run, worked.tasks
            (task,) = tasks
            assert await bytes_done() == 0
            for cached_bytes, shown_bytes in ((3000, 3000), (5000, 4999)):
                progress = [FileProgress(task.number, 0, cached_bytes)]
                poll = c.Work("a" * 32, master_run, [], 0, progress=progress)
                assert (await it.ask(poll, c.Worked)).tasks == []
                assert await bytes_done() == shown_bytes
            await it.ask(c.Leave("a" * 32), m.Done)
            await it.ask(c.Work("b" * 32, "", [], 0), c.Worked)
            assert await bytes_done() == 0

    run(work())


def test_a_job_without_a_worker_that_owns_blocks_says_so_and_goes_on_when_one_comes(
    tmp_path: Path,
) -> None:
    """A mount's own worker asks for work and owns nothing; it is none. What is said goes with the
    first that owns."""

    async def look(it: Cluster, job: int, wanted: Callable[[JobStatus], bool]) -> JobStatus:
        call = m.GetJob(it.namespace, job)
        while not wanted(shown := (await it.ask(call, m.JobReply)).job):
            await asyncio.sleep(0.01)
        return shown

    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"d/%04d" % n: b"x" * 10 for n in range(300)})
            await it.ask(registered("c" * 32, weight=0.0), c.Registered)
            call = m.SubmitJob(it.namespace, JobSpec((b"/data",)))
            job = (await it.ask(call, m.JobSubmitted)).job
            shown = await look(it, job, lambda shown: shown.listing_done)
            assert (shown.state, shown.files_found) == (JobState.LOADING, 300)
            assert "no worker owns blocks; start one" in shown.message
            (row,) = (await it.ask(m.ListJobs(it.namespace), m.JobTable)).jobs
            assert row.message == shown.message
            worker = TaskWorker("a" * 32)
            worker.gate.clear()
            await it.ask(registered(worker.name), c.Registered)
            serving = await served(it, worker)
            shown = await look(it, job, lambda shown: bool(worker.tasks))
            assert (shown.state, shown.message) == (JobState.LOADING, "")
            worker.gate.set()
            shown = await look(it, job, lambda shown: shown.state.has_ended)
            assert (shown.state, len(worker.have)) == (JobState.SUCCEEDED, 300)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    run(work())


def test_the_caches_of_workers_that_own_no_blocks_are_no_room(tmp_path: Path) -> None:
    """Workers of mounts ask for work and report their caches, some before those that own."""

    async def work() -> None:
        async with cluster(tmp_path) as it:
            await it.add(b"/data", {b"d/%04d" % n: b"x" * 10 for n in range(300)})
            owner, mount = TaskWorker("a" * 32, capacity=9000), TaskWorker("c" * 32, capacity=100)
            await it.ask(registered(owner.name), c.Registered)
            await it.ask(registered(mount.name, 20001, weight=0.0), c.Registered)
            call = m.SubmitJob(it.namespace, JobSpec((b"/data/d/0000",)), more=True)
            job = (await it.ask(call, m.JobSubmitted)).job
            serving = [await served(it, mount)]
            while not mount.running:
                await asyncio.sleep(0.005)
            await it.ask(m.AddJobPaths(it.namespace, job, 1, [b"/data/d"], True), m.Done)

            async def shown() -> JobStatus:
                return (await it.ask(m.GetJob(it.namespace, job), m.JobReply)).job

            while not (found := await shown()).listing_done and not found.state.has_ended:
                await asyncio.sleep(0.005)
            assert (found.state, found.message) == (JobState.LOADING, "")
            serving.append(await served(it, owner))
            while not (ended := await shown()).state.has_ended:
                await asyncio.sleep(0.005)
            assert (ended.state, ended.files_done) == (JobState.SUCCEEDED, 301)
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

    run(work())


def test_a_place_before_the_first_failure_is_a_bad_number(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path) as it:
            call = m.SubmitJob(it.namespace, JobSpec((b"/a",)))
            job = (await it.ask(call, m.JobSubmitted)).job
            with pytest.raises(ProtocolError, match="out of range"):
                await it.ask(m.GetJobFailures(it.namespace, job, -1), m.JobFailures)

    run(work())


TOKENS = """
operators-token-1
limited-to-team-a path=/team-a
limited-to-team-b path=/team-b
"""


def test_a_limited_token_sees_the_jobs_of_its_paths(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(tmp_path, TOKENS) as it:
            it.token = TOKENS.split()[0]
            await it.add(b"/team-a", {b"f": b"x"})
            await it.add(b"/team-b", {b"f": b"x"})
            mine, other = "limited-to-team-a", "limited-to-team-b"
            spec = JobSpec((b"/team-a/f",))
            call = m.SubmitJob(it.namespace, spec, "same key")
            job = (await it.ask(call, m.JobSubmitted, mine)).job
            every = (await it.ask(m.SubmitJob(it.namespace, JobSpec((b"/",))), m.JobSubmitted)).job
            for asked in (
                m.GetJob(it.namespace, job),
                m.GetJobFailures(it.namespace, job),
                m.ControlJob(it.namespace, job, "stop"),
                m.AddJobPaths(it.namespace, job, 1, [b"/team-b/f"]),
            ):
                with pytest.raises(NotFound):
                    await it.ask(asked, m.JobReply, other)
            with pytest.raises(NotFound):
                await it.ask(m.GetJob(it.namespace, every), m.JobReply, mine)
            await it.ask(m.GetJob(it.namespace, job), m.JobReply, mine)
            seen = {
                token: [
                    one.job
                    for one in (await it.ask(m.ListJobs(it.namespace), m.JobTable, token)).jobs
                ]
                for token in (mine, other, it.token)
            }
            assert seen == {mine: [job], other: [], it.token: [every, job]}
            theirs = m.SubmitJob(it.namespace, JobSpec((b"/team-b/f",)), "same key")
            assert (await it.ask(theirs, m.JobSubmitted, other)).job not in (job, every)
            with pytest.raises(CacheFSError):
                await it.ask(c.Work("w", "", [], 1), c.Worked, mine)

    run(work())
