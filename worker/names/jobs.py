"""A master's load jobs and syncs, forwarded by a node: `JobService` and `SyncService` over the
wire. Holds no state; the master owns the jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import CacheFSError
from cachefs.core.jobs import JobSpec
from cachefs.core.model import NamespaceId
from cachefs.core.services import JobService, SyncService

HEAR_S: Final = 2.0
REACH_S: Final = 5.0  # then the command reports that the master does not reply, and retries

T = TypeVar("T", bound=m.Message)


class MasterJobs:
    """The job calls of `worker.names.namespace.RemoteNamespace`. Every method raises the failure in
    the master's reply, and MasterUnreachable after `REACH_S`. After cancellation the master may
    have acted; the call may be repeated (`submit_job` with the same `key`)."""

    @property
    def namespace(self) -> NamespaceId:
        raise NotImplementedError

    async def _ask(self, body: c.Call, kind: type[T], **limits: float) -> T:
        raise NotImplementedError

    async def _hear(self, seq: int, within_s: float) -> bool:
        raise NotImplementedError

    async def submit_job(
        self, spec: JobSpec, key: str = "", *, more: bool = False
    ) -> m.JobSubmitted:
        return await self._ask_soon(m.SubmitJob(self.namespace, spec, key, more), m.JobSubmitted)

    async def add_job_paths(
        self, job: int, first: int, paths: Sequence[bytes], *, last: bool
    ) -> None:
        await self._ask_soon(m.AddJobPaths(self.namespace, job, first, [*paths], last), m.Done)

    async def job(self, job: int) -> m.JobReply:
        return await self._ask_soon(m.GetJob(self.namespace, job), m.JobReply)

    async def jobs(self, before: int, limit: int) -> m.JobTable:
        return await self._ask_soon(m.ListJobs(self.namespace, before, limit), m.JobTable)

    async def job_failures(self, job: int, after: int) -> m.JobFailures:
        return await self._ask_soon(m.GetJobFailures(self.namespace, job, after), m.JobFailures)

    async def control_job(self, job: int, action: str) -> m.JobReply:
        return await self._ask_soon(m.ControlJob(self.namespace, job, action), m.JobReply)

    async def start_sync(self, path: bytes, *, recursive: bool, dry_run: bool) -> m.SyncReply:
        return await self._ask_soon(
            m.StartSync(self.namespace, path, recursive, dry_run), m.SyncReply
        )

    async def sync(self, sync: int, after: int, *, stop: bool) -> m.SyncReply:
        """Returns a sync's status. Waits up to `HEAR_S` until this node has received the sync's
        invalidations, so that the end of a sync is reported after its changes apply here."""
        reply = await self._ask_soon(m.GetSync(self.namespace, sync, after, stop), m.SyncReply)
        await self._hear(reply.sync.seq, HEAR_S)
        return reply

    async def catch_up(self) -> None:
        """See MetadataService. Without the master, what has arrived is all that is known."""
        with contextlib.suppress(CacheFSError):
            greeted = await self._ask(c.Greeting(), c.Greeted, answer_s=HEAR_S, reach_s=0.0)
            await self._hear(greeted.seq, HEAR_S)

    async def _ask_soon(self, body: Any, kind: type[T]) -> T:
        return await self._ask(body, kind, reach_s=REACH_S)


if TYPE_CHECKING:

    def _services(part: MasterJobs) -> tuple[JobService, SyncService]:
        return part, part
