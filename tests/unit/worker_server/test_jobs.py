"""What a node's socket answers about jobs and syncs: the service's answers, none of them larger
than a frame, nothing lost by that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import Unsupported
from cachefs.core.jobs import JobSpec, JobState, JobStatus
from cachefs.core.model import NamespaceId
from cachefs.core.syncs import CHANGES_PER_REPLY, Change, ChangeKind, SyncStatus
from worker.server.job_answers import answer_job, answer_sync
from worker.server.session import _LATER

NAMESPACE = NamespaceId(b"n" * 16)
LONG = b"d/" + b"x" * 1000


class Service:
    """Jobs 300 to 1, each with some long paths; a sync that found many long names."""

    def __init__(self) -> None:
        self.added: list[bytes] = []
        self.changes = [Change(ChangeKind.ADDED, LONG + b"%d" % n) for n in range(700)]

    async def submit_job(
        self, spec: JobSpec, key: str = "", *, more: bool = False
    ) -> m.JobSubmitted:
        self.added += spec.paths
        return m.JobSubmitted(7)

    async def add_job_paths(
        self, job: int, first: int, paths: Sequence[bytes], *, last: bool
    ) -> None:
        assert first == len(self.added)
        self.added += paths

    async def job(self, job: int) -> m.JobReply:
        paths = [LONG, b"%d" % job]
        return m.JobReply(JobStatus(job, JobState.LOADING, paths, 2, JobSpec((*paths,))))

    async def jobs(self, before: int, limit: int) -> m.JobTable:
        newest = before - 1 if before else 300
        found = [(await self.job(n)).job for n in range(newest, max(0, newest - limit), -1)]
        return m.JobTable(found, found[-1].job if found and found[-1].job > 1 else 0)

    async def job_failures(self, job: int, after: int) -> m.JobFailures:
        return m.JobFailures([])

    async def control_job(self, job: int, action: str) -> m.JobReply:
        return await self.job(job)

    async def start_sync(self, path: bytes, *, recursive: bool, dry_run: bool) -> m.SyncReply:
        return m.SyncReply(SyncStatus(1, "running", path, recursive, dry_run))

    async def sync(self, sync: int, after: int, *, stop: bool) -> m.SyncReply:
        page = self.changes[after : after + CHANGES_PER_REPLY]
        return m.SyncReply(SyncStatus(1, "stopped" if stop else "done", b"d"), page)


def framed(service: object, body: m.Message) -> m.Message:
    """The answer, which fits a frame."""
    answered = answer_sync if isinstance(body, m.StartSync | m.GetSync) else answer_job
    reply: m.Message = asyncio.run(answered(service, body))  # type: ignore[arg-type]
    assert len(m.encode(1, reply)) <= m.MAX_FRAME_BYTES
    return reply


def test_every_question_about_jobs_and_syncs_has_an_answer_of_the_socket() -> None:
    bodies = (
        m.SubmitJob, m.AddJobPaths, m.GetJob, m.ListJobs, m.GetJobFailures, m.ControlJob,
        m.StartSync, m.GetSync,
    )  # fmt: skip
    assert set(bodies) <= set(_LATER)


def test_answers_are_those_of_the_service() -> None:
    it = Service()
    submitted = framed(it, m.SubmitJob(NAMESPACE, JobSpec((b"a",)), "key", more=True))
    assert submitted == m.JobSubmitted(7)
    assert framed(it, m.AddJobPaths(NAMESPACE, 7, 1, [b"b"], last=True)) == m.Done()
    assert it.added == [b"a", b"b"]
    for body in (m.GetJob(NAMESPACE, 7), m.ControlJob(NAMESPACE, 7, "stop")):
        reply = framed(it, body)
        assert isinstance(reply, m.JobReply)
        assert reply.job.job == 7
    started = framed(it, m.StartSync(NAMESPACE, b"d", recursive=True))
    assert isinstance(started, m.SyncReply)
    assert (started.sync.path, started.sync.recursive) == (b"d", True)
    stopped = framed(it, m.GetSync(NAMESPACE, 1, 700, stop=True))
    assert isinstance(stopped, m.SyncReply)
    assert stopped.sync.state == "stopped"


def test_a_table_of_jobs_that_no_frame_holds_comes_in_more_pages() -> None:
    seen: list[int] = []
    before = 0
    while True:
        page = framed(Service(), m.ListJobs(NAMESPACE, before, 10_000))
        assert isinstance(page, m.JobTable)
        seen += [job.job for job in page.jobs]
        before = page.next
        if not before:
            break
    assert seen == [*range(300, 0, -1)]


def test_changes_that_no_frame_holds_come_with_the_next_answer() -> None:
    it, seen = Service(), list[Change]()
    while len(seen) < len(it.changes):
        page = framed(it, m.GetSync(NAMESPACE, 1, len(seen)))
        assert isinstance(page, m.SyncReply)
        assert 0 < len(page.changes) < CHANGES_PER_REPLY
        seen += page.changes
    assert seen == it.changes


def test_a_namespace_without_jobs_says_so() -> None:
    for body in (m.GetJob(NAMESPACE, 1), m.GetSync(NAMESPACE, 1)):
        with pytest.raises(Unsupported):
            framed(object(), body)
