"""Replies on the node socket about load jobs and syncs: forwarded to the namespace's service, and
truncated to one frame. Called by `operators` only."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from cachefs.core import messages as m
from cachefs.core.errors import Unsupported
from cachefs.core.services import JobService, MetadataService, SyncService

ANSWER_BYTES: Final = m.MAX_FRAME_BYTES * 3 // 4  # of a reply's lists
JOBS_PER_ANSWER: Final = 100
JobBody = (
    m.SubmitJob | m.AddJobPaths | m.GetJob | m.ListJobs | m.GetJobFailures | m.ControlJob
)  # fmt: skip
SyncBody = m.StartSync | m.GetSync
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode


async def answer_job(service: MetadataService, body: JobBody) -> m.Message:
    """Returns the reply about load jobs. Raises Unsupported, and what the service raises."""
    if not isinstance(service, JobService):
        raise Unsupported("this namespace has no load jobs")
    match body:
        case m.SubmitJob():
            return await service.submit_job(body.spec, body.key, more=body.more)
        case m.AddJobPaths():
            await service.add_job_paths(body.job, body.first, body.paths, last=body.last)
            return m.Done()
        case m.GetJob():
            return await service.job(body.job)
        case m.ListJobs():
            limit = max(1, min(body.limit, JOBS_PER_ANSWER))
            return _cut_jobs(await service.jobs(body.before, limit))
        case m.GetJobFailures():
            return await service.job_failures(body.job, body.after)
        case m.ControlJob():
            return await service.control_job(body.job, body.action)


async def answer_sync(service: MetadataService, body: SyncBody) -> m.SyncReply:
    """Returns the reply about syncs. Raises Unsupported, and what the service raises."""
    if not isinstance(service, SyncService):
        raise Unsupported("this namespace has no syncs on demand")
    if isinstance(body, m.StartSync):
        return _cut_changes(
            await service.start_sync(body.path, recursive=body.recursive, dry_run=body.dry_run)
        )
    return _cut_changes(await service.sync(body.sync, body.after, stop=body.stop))


def _cut_jobs(table: m.JobTable) -> m.JobTable:
    """Truncates the jobs; the client continues with `before` set to the last one."""
    jobs = _fitting(table.jobs)
    return table if len(jobs) == len(table.jobs) else m.JobTable(jobs, jobs[-1].job)


def _cut_changes(reply: m.SyncReply) -> m.SyncReply:
    """Truncates the changes; the client counts them and requests the rest."""
    return m.SyncReply(reply.sync, _fitting(reply.changes))


def _fitting(items: list[_T]) -> list[_T]:
    """Returns the first items that fit into one frame, at least one."""
    left = ANSWER_BYTES
    for place, item in enumerate(items):
        left -= len(_encode(item))
        if left < 0 and place:
            return items[:place]
    return items
