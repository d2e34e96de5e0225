"""Jobs and syncs of a master as a node passes them on: each question is the message of its name."""

from __future__ import annotations

from typing import Any

import pytest

from cachefs.core import messages as m
from cachefs.core.errors import NotFound
from cachefs.core.jobs import JobSpec, JobState, JobStatus
from cachefs.core.services import JobService, SyncService
from cachefs.core.syncs import SyncStatus
from tests.unit.worker_cluster.fake_master import NAMESPACE, FakeMaster, run
from worker.membership.master_client import MasterUnreachable
from worker.names.namespace import RemoteNamespace

SHOWN = JobStatus(3, JobState.STOPPED, [b"a"], 1, JobSpec((b"a",)))
SYNC = m.SyncReply(SyncStatus(5, "running", b"a"))


class JobsMaster(FakeMaster):
    async def answer(self, body: Any) -> Any:
        match body:
            case m.SubmitJob():
                return m.JobSubmitted(3)
            case m.AddJobPaths():
                return m.Done()
            case m.GetJob(job=404):
                raise NotFound("no such job")
            case m.GetJob() | m.ControlJob():
                return m.JobReply(SHOWN)
            case m.ListJobs():
                return m.JobTable([SHOWN])
            case m.GetJobFailures():
                return m.JobFailures([])
            case m.StartSync() | m.GetSync():
                return SYNC
        return await super().answer(body)


def test_each_question_reaches_the_master_as_it_was_asked() -> None:
    async def script() -> None:
        master = JobsMaster()
        it = await RemoteNamespace.open(master)
        assert isinstance(it, JobService)
        assert isinstance(it, SyncService)
        spec = JobSpec((b"a", b"b*"), bandwidth_bytes_s=5, hold_s=0.0, verify=True)
        assert (await it.submit_job(spec, "key", more=True)).job == 3
        await it.add_job_paths(3, 2, (b"c",), last=True)
        assert (await it.job(3)).job == SHOWN
        assert (await it.jobs(9, 10)).jobs == [SHOWN]
        assert (await it.job_failures(3, 7)).failures == []
        assert (await it.control_job(3, "resume")).job == SHOWN
        assert await it.start_sync(b"a", recursive=True, dry_run=True) == SYNC
        assert await it.sync(5, 2, stop=True) == SYNC
        with pytest.raises(NotFound):
            await it.job(404)
        asked = [body for body in master.asked if not type(body).__name__.startswith("Gre")]
        assert [body for body in asked if type(body).__name__ != "GetEvents"] == [
            m.SubmitJob(NAMESPACE, spec, "key", more=True),
            m.AddJobPaths(NAMESPACE, 3, 2, [b"c"], last=True),
            m.GetJob(NAMESPACE, 3),
            m.ListJobs(NAMESPACE, 9, 10),
            m.GetJobFailures(NAMESPACE, 3, 7),
            m.ControlJob(NAMESPACE, 3, "resume"),
            m.StartSync(NAMESPACE, b"a", recursive=True, dry_run=True),
            m.GetSync(NAMESPACE, 5, 2, stop=True),
            m.GetJob(NAMESPACE, 404),
        ]
        master.set_down(True)
        with pytest.raises(MasterUnreachable):
            await it.job(3)
        await it.close()

    run(script())
