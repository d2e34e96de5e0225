"""The handlers of calls about load jobs. A caller whose token has a path sees only jobs whose paths
all lie at or below it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import Caller
from cachefs.core.errors import NotFound
from master.jobs.service import LoadJobs


class JobCalls:
    """The handlers for the load jobs of one master."""

    def __init__(self, jobs: LoadJobs) -> None:
        self._jobs = jobs

    async def answer(self, call: m.Message, caller: Caller) -> m.Message:
        """Returns the reply to a call. Raises the typed errors."""
        return await _ANSWERS[type(call)](self, call, caller)

    async def work(self, call: c.Work) -> m.Message:
        return await self._jobs.work(call)

    def _check(self, job: int, caller: Caller) -> None:
        """Raises NotFound for a job that the caller must not see."""
        if not caller.sees(self._jobs.base_of(job)):
            raise NotFound(f"no job {job}", remedy="`cachefs jobs` lists them")

    async def _submit(self, call: m.SubmitJob, caller: Caller) -> m.Message:
        return await self._jobs.submit_job(call.spec, _key(call.key, caller), more=call.more)

    async def _add(self, call: m.AddJobPaths, caller: Caller) -> m.Message:
        self._check(call.job, caller)
        await self._jobs.add_job_paths(call.job, call.first, call.paths, last=call.last)
        return m.Done()

    async def _show(self, call: m.GetJob, caller: Caller) -> m.Message:
        self._check(call.job, caller)
        return await self._jobs.job(call.job)

    async def _list(self, call: m.ListJobs, caller: Caller) -> m.Message:
        return await self._jobs.jobs(call.before, call.limit, caller.sees)

    async def _failures(self, call: m.GetJobFailures, caller: Caller) -> m.Message:
        self._check(call.job, caller)
        return await self._jobs.job_failures(call.job, call.after)

    async def _control(self, call: m.ControlJob, caller: Caller) -> m.Message:
        self._check(call.job, caller)
        return await self._jobs.control_job(call.job, call.action)


def _key(key: str, caller: Caller) -> str:
    """Returns the key, made unique to the caller's path: it must not find another path's job."""
    return f"{caller.prefix.hex()}/{key}" if key and caller.prefix else key


_ANSWERS: Final[dict[type, Callable[[JobCalls, Any, Caller], Awaitable[m.Message]]]] = {
    m.SubmitJob: JobCalls._submit,
    m.AddJobPaths: JobCalls._add,
    m.GetJob: JobCalls._show,
    m.ListJobs: JobCalls._list,
    m.GetJobFailures: JobCalls._failures,
    m.ControlJob: JobCalls._control,
}
