"""The admin API's handlers for load jobs and syncs."""

from __future__ import annotations

from cachefs.core import admin as a
from cachefs.core import messages as m
from cachefs.core.admin_syncs import NewSync, Sync
from master.server.admin.at import At, Reply, number


async def submit_job(at: At) -> Reply:
    body: a.NewJob = at.body
    call = m.SubmitJob(at.namespace, body.spec(), at.key, body.more)
    found = await at.ask(call, m.JobSubmitted)
    where = f"{a.API}/jobs/{found.job}"
    return Reply(
        a.SubmittedJob(found.job, found.updated), 200 if found.updated else 201, location=where
    )


async def list_jobs(at: At) -> a.Jobs:
    call = m.ListJobs(at.namespace, number(at.query.next), at.query.limit)
    table = await at.ask(call, m.JobTable)
    return a.Jobs([a.Job.of(one) for one in table.jobs], str(table.next) if table.next else None)


async def show_job(at: At) -> a.Job:
    reply = await at.ask(m.GetJob(at.namespace, at.params.job), m.JobReply)
    return a.Job.of(reply.job)


async def add_paths(at: At) -> a.Job:
    body: a.JobPaths = at.body
    paths = [a.bytes_of(path) for path in body.paths]
    call = m.AddJobPaths(at.namespace, at.params.job, body.first, paths, body.last)
    await at.ask(call, m.Done)
    return await show_job(at)


async def control_job(at: At) -> a.Job:
    call = m.ControlJob(at.namespace, at.params.job, at.params.action)
    return a.Job.of((await at.ask(call, m.JobReply)).job)


async def forget_job(at: At) -> Reply:
    await at.ask(m.ControlJob(at.namespace, at.params.job, "forget"), m.JobReply)
    return Reply(None, 204)


async def list_failures(at: At) -> a.FailedFiles:
    call = m.GetJobFailures(at.namespace, at.params.job, number(at.query.next))
    found = await at.ask(call, m.JobFailures)
    items = [a.FailedFile.of(one) for one in found.failures]
    return a.FailedFiles(items, str(found.next) if found.next else None)


async def start_sync(at: At) -> Reply:
    body: NewSync = at.body
    call = m.StartSync(at.namespace, a.bytes_of(body.path), body.recursive, body.dry_run)
    found = await at.ask(call, m.SyncReply)
    return Reply(Sync.of(found, 0), 201, location=f"{a.API}/syncs/{found.sync.sync}")


async def show_sync(at: At) -> Sync:
    after = number(at.query.next)
    found = await at.ask(m.GetSync(at.namespace, at.params.sync, after), m.SyncReply)
    return Sync.of(found, after)


async def stop_sync(at: At) -> Reply:
    await at.ask(m.GetSync(at.namespace, at.params.sync, 0, stop=True), m.SyncReply)
    return Reply(None, 204)
