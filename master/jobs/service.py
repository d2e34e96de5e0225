"""The load jobs of one namespace: the operators' calls, and the tasks of workers.

Implements `cachefs.core.services.JobService`, and `work`. `start` resumes jobs that were running
when the last master ended. All methods belong to one event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from cachefs.core.cluster import Work, Worked
from cachefs.core.errors import BadConfig, CacheFSError, NotFound, Throttled
from cachefs.core.globs import select
from cachefs.core.jobs import (
    FAILURES_PER_REPLY,
    MAX_JOB_PATHS,
    PATHS_PER_CALL,
    JobSpec,
    JobState,
    JobStatus,
)
from cachefs.core.messages import JobFailures, JobReply, JobSubmitted, JobTable
from cachefs.core.placement import Placement, View
from master.jobs import job_validation
from master.jobs.job_context import JobContext
from master.jobs.polls import Polls
from master.jobs.runner import Clocks, Runner
from master.state.job_messages import NO_OWNER, NO_PATHS, waits_for_origin
from master.state.job_record import KEY_FOR_S, MAX_UNFINISHED, PATHS_SHOWN, JobRecord, surplus
from master.state.jobs import Job
from master.state.task_dispatcher import TaskDispatcher
from master.state.window import Part
from master.store import jobs as table
from master.store.base import Writer

log = logging.getLogger("cachefs.jobs")

T = TypeVar("T")
TICK_S: Final = 1.0
MAX_WAIT_S: Final = 50.0  # of a worker's long poll
MAX_ROWS: Final = 1000  # per reply
MOST_TROUBLES: Final = 16  # jobs of each kind in a status document


class LoadJobs:
    """The load jobs. The constructor reads the recorded jobs; it blocks and raises BadConfig."""

    def __init__(self, ground: JobContext, clocks: Clocks) -> None:
        self._ground = ground
        self._clocks = clocks
        self._desk = TaskDispatcher(os.urandom(8).hex())
        self._polls = Polls()
        self._jobs: dict[int, Job] = {}
        self._runners: dict[int, Runner] = {}
        self._forgotten: dict[int, JobRecord] = {}
        self._view: Callable[[], View | None] = lambda: None
        self._version: tuple[int, int] = (-1, -1)  # of the dispatcher's view
        self._caches: dict[str, int] = {}  # capacity of each worker, in bytes
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._ticks: asyncio.Task[None] | None = None
        self._closed = False
        self._releases = 0
        with ground.store.snapshot() as reader:
            for record in table.records(reader):
                self._keep(record)

    def _keep(self, record: JobRecord) -> Job | None:
        if record.forgotten:
            self._forgotten[record.job] = record
            return None
        job = self._jobs[record.job] = Job(record, self._clocks.now())
        return job

    def follow(self, view: Callable[[], View | None]) -> None:
        """Assigns blocks to their owners in this view. Without a view every worker owns all."""
        self._view = view

    def start(self) -> None:
        """Resumes jobs that were running. Idempotent; most calls do it first."""
        if self._ticks is not None or self._closed:
            return
        self._ticks = asyncio.ensure_future(self._tick())
        self._ticks.add_done_callback(_say_failure)
        for job in self._jobs.values():
            if job.runs:
                self._run(job)

    def release(self) -> None:
        """Ends all open long polls, without tasks."""
        self._releases += 1
        self._polls.wake()

    async def close(self) -> None:
        """Ends all jobs of this run, records their progress and releases all long polls.
        Idempotent."""
        self._closed = True
        ticks, self._ticks = self._ticks, None
        if ticks is not None:
            ticks.cancel()
            await asyncio.gather(ticks, return_exceptions=True)
        await asyncio.gather(*self._changes, return_exceptions=True)
        for runner in [*self._runners.values()]:
            await runner.close()
        self._runners.clear()
        self.release()

    async def _whole(self, change: Coroutine[Any, Any, T]) -> T:
        """Makes a change, also after a cancellation: what is durable must be known here, too."""
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    def _run(self, job: Job) -> None:
        if self._closed:
            return
        number = job.record.job
        self._caches.clear()  # workers report their current capacity again
        ground, desk, wake = self._ground, self._desk, self._polls.wake
        runner = Runner(ground, job, desk, self._clocks, wake, self._room, self._owners)
        self._runners[number] = runner
        runner.start()
        self._polls.wake()

    async def work(self, call: Work) -> Worked:
        """See `Work`. After a cancellation, assigned tasks are assigned again when the worker
        reports that it did not see them, or when their lease expires."""
        self.start()
        self._place()
        if call.capacity_bytes >= 0:
            self._caches[call.worker] = call.capacity_bytes
        self._settle(call)
        loop = asyncio.get_running_loop()
        until = loop.time() + max(0.0, min(call.wait_s, MAX_WAIT_S))
        worked = self._hand_out(call)
        call = msgspec.structs.replace(call, outcomes=[], run=self._desk.run)
        releases = self._releases - self._closed
        while not (worked.tasks or self._desk.is_news(call.worker) or releases != self._releases):
            left_s = until - loop.time()
            if left_s <= 0 or not await self._polls.wait(call.worker, left_s):
                break
            worked = self._hand_out(call)
        self._desk.tell(call.worker)
        return worked

    def _settle(self, call: Work) -> None:
        for pack, told in self._desk.settle(call, self._clocks.now()):
            runner = self._runners.get(pack.job)
            if runner is not None:
                runner.settle(pack, told, call.worker)

    def _hand_out(self, call: Work) -> Worked:
        worked, unowned = self._desk.hand_out(call, self._clocks.now(), self._clocks.wall())
        self._unowned(unowned)
        return worked

    def _unowned(self, parts: Iterable[tuple[int, Part]]) -> None:
        """Processes parts that have no owner, and wakes the polls if tasks were returned."""
        for job, part in parts:
            if (runner := self._runners.get(job)) is not None:
                runner.unowned([part])
        if self._desk.returned:
            self._desk.returned = 0
            self._polls.wake()

    def _place(self) -> None:
        view = self._view()
        if view is None:
            return
        version = (view.epoch, view.version)
        if version != self._version:
            self._version = version
            owners = [member for member in view.members if member.weight > 0]
            names = {member.id for member in owners}
            self._caches = {name: one for name, one in self._caches.items() if name in names}
            placement = Placement(owners)
            self._unowned(self._desk.place(placement, names))
            self._polls.wake()

    def _room(self) -> int | None:
        """Returns the total cache capacity in bytes of the workers that own blocks; None until
        all of them reported theirs. Other workers report one, too: they load nothing."""
        view = self._view()
        names = self._caches if view is None else [one.id for one in view.members if one.weight > 0]
        caches = [self._caches.get(name, -1) for name in names]
        return sum(caches) if caches and min(caches) >= 0 else None

    def _owners(self) -> int:
        """Returns the number of workers that own blocks."""
        view = self._view()
        return 1 if view is None else sum(member.weight > 0 for member in view.members)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._place()
            self._unowned(self._desk.expire(self._clocks.now()))
            for number, runner in [*self._runners.items()]:
                runner.tick()
                if not runner.job.runs and runner.job.is_durable:
                    del self._runners[number]
            await self._forget_some()

    async def _forget_some(self) -> None:
        """Forgets the jobs over the limit that ended first, and deletes the records of forgotten
        jobs in batches."""
        try:
            await self._trim()
            for number, record in [*self._forgotten.items()]:
                is_done = await self._write(functools.partial(table.forget_some, record=record))
                if is_done and self._forgotten.get(number) is record:
                    del self._forgotten[number]
        except CacheFSError as err:
            log.warning("old jobs cannot be forgotten: %s", err.one_line())

    async def _trim(self) -> None:
        async with self._changing:
            for number in surplus(job.record for job in self._jobs.values()):
                await self._forget(number)

    async def _forget(self, number: int) -> None:
        job = self._jobs[number]
        job.control("forget", self._clocks.now(), self._clocks.wall())
        if (runner := self._runners.pop(number, None)) is not None:
            await runner.close()
        record = msgspec.structs.replace(job.record, forgotten=True)
        await self._write(lambda writer: table.put(writer, record, []))
        self._forgotten[number] = record
        self._jobs.pop(number, None)

    async def _write(self, function: Callable[[Writer], T]) -> T:
        return await asyncio.wrap_future(self._ground.store.write(function))

    async def _save(self, job: Job) -> None:
        """Writes the state of a job; durable on return. Raises the store's errors."""
        job.hurry()
        runner = self._runners.get(job.record.job)
        if runner is not None:
            await runner.save()
            return
        write = job.take(self._clocks.now(), self._clocks.wall())
        if write is None:
            return
        try:
            await self._write(lambda writer: table.put(writer, write.record, write.failures))
        except CacheFSError:
            job.not_written(write)
            raise
        job.wrote(write)

    async def submit_job(self, spec: JobSpec, key: str = "", *, more: bool = False) -> JobSubmitted:
        """Submits or updates a job. Raises BadConfig; Throttled while too many are unfinished.
        After a cancellation the job may exist; a retry with the same `key` returns it."""
        self.start()
        job_validation.check(spec)
        paths = [*map(job_validation.normal, spec.paths)]
        paths = paths if more else job_validation.distinct(paths)
        return await self._whole(self._submit_one(spec, paths, key, more=more))

    async def _submit_one(
        self, spec: JobSpec, paths: list[bytes], key: str, *, more: bool
    ) -> JobSubmitted:
        async with self._changing:
            known = self._by_key(key)
            if known is not None:
                return JobSubmitted(known.record.job)
            same = None if more else self._by_digest(job_validation.digest_of(paths))
            if same is not None:
                return await self._update(same, spec)
            unfinished = sum(not job.record.state.has_ended for job in self._jobs.values())
            if unfinished >= MAX_UNFINISHED:
                raise Throttled(
                    f"{unfinished} jobs are not finished, the limit",
                    remedy="wait for one to end, or forget one that is stopped",
                )
            return await self._submit(spec, paths, key, more=more)

    async def _submit(
        self, spec: JobSpec, paths: list[bytes], key: str, *, more: bool
    ) -> JobSubmitted:
        record = JobRecord(
            job=0,
            spec=msgspec.structs.replace(spec, paths=()),
            paths=tuple(paths[:PATHS_SHOWN]),
            path_count=len(paths),
            submitted_at_s=self._clocks.wall(),
            paths_open=more,
            key=key,
            digest=job_validation.digest_of(paths),
            base=job_validation.base_of(paths),
        )
        record = await self._write(lambda writer: table.put_new(writer, record, paths))
        job = self._jobs[record.job] = Job(record, self._clocks.now())
        self._run(job)
        log.info("job %d: load %s", record.job, job_validation.named(record))
        return JobSubmitted(record.job)

    async def _update(self, job: Job, spec: JobSpec) -> JobSubmitted:
        """Changes the settings of an unfinished job, and resumes it if it was stopped."""
        job.update(spec)
        await self._go_on(job, "resume")
        return JobSubmitted(job.record.job, updated=True)

    def _by_key(self, key: str) -> Job | None:
        since_s = self._clocks.wall() - KEY_FOR_S
        for job in reversed(self._jobs.values()):
            record = job.record
            if key and record.key == key and record.submitted_at_s > since_s:
                return job
            if key and any(key == one.key for one in record.also):
                return job
        return None

    def _by_digest(self, digest: bytes) -> Job | None:
        """Returns the unfinished job with these paths, or None."""
        for job in self._jobs.values():
            record = job.record
            if record.digest == digest and not (record.paths_open or record.state.has_ended):
                return job
        return None

    async def add_job_paths(
        self, job: int, first: int, paths: Sequence[bytes], *, last: bool
    ) -> None:
        """See AddJobPaths. Raises NotFound, BadConfig."""
        if len(paths) > PATHS_PER_CALL:
            raise BadConfig(f"{len(paths)} paths in a call, at most {PATHS_PER_CALL} are possible")
        given = [job_validation.normal(path) for path in paths]
        await self._whole(self._add_paths(job, first, given, last=last))

    async def _add_paths(self, job: int, first: int, given: list[bytes], *, last: bool) -> None:
        async with self._changing:
            one = self._job(job)
            record = one.record
            if first + len(given) > MAX_JOB_PATHS:
                raise BadConfig(f"more than {MAX_JOB_PATHS:,} paths")
            if not record.paths_open:
                if first + len(given) > record.path_count:
                    raise BadConfig(f"the list of paths of job {job} was ended")
                return
            if first > record.path_count:
                raise BadConfig(f"job {job} has {record.path_count} paths, some are missing")
            new = given[record.path_count - first :]
            base = job_validation.base_of([*([record.base] if record.path_count else []), *new])
            await self._write(lambda w: table.put_paths(w, job, record.path_count, new))
            digest = job_validation.digest_of(new, record.digest)
            same = self._by_digest(digest) if last else None
            if same is not None:
                return await self._become(one, same)
            one.add_paths(new, base, digest, last=last)
            await self._save(one)
            if (runner := self._runners.get(job)) is not None:
                runner.stir()

    async def _become(self, job: Job, same: Job) -> None:
        """Merges a job into another one with the same paths, which takes over its settings and
        its number."""
        record = job.record
        same.stands_for(record.job, record.key)
        await self._update(same, record.spec)
        job.end_at_once(self._clocks.now())
        await self._forget(record.job)
        log.info("job %d: the same paths as job %d, which goes on", record.job, same.record.job)

    async def job(self, job: int) -> JobReply:
        """Returns the status of a job. Raises NotFound."""
        self.start()
        return JobReply(self._shown(self._job(job)))

    def _shown(self, job: Job) -> JobStatus:
        """Returns the status of a job, with the reason if it waits."""
        return self._status(job, self._waits_for(job))

    def _status(self, job: Job, waits_for: str = "") -> JobStatus:
        in_flight_bytes = self._desk.in_flight_bytes(job.record.job)
        return job.shown(self._clocks.now(), waits_for, in_flight_bytes)

    def _waits_for(self, job: Job) -> str:
        """Returns why nothing can be done for a job now, or ""."""
        if not job.runs:
            return ""
        if not self._owners():
            return NO_OWNER
        record = job.record
        if record.lacks_paths and not len(job.window):
            return NO_PATHS
        is_all = record.path_count <= len(record.paths)
        bases = [select(path).base for path in record.paths] if is_all else [record.base]
        down = self._ground.down_below(bases)
        if down is None or self._status(job).rate_bytes_s > 0:
            return ""
        return waits_for_origin(*down)

    def troubles(self) -> dict[str, Any]:
        """Returns the jobs that failed and those that wait, for `cachefs.core.health`."""
        records = [job.record for job in self._jobs.values()]
        failed = [one for one in records if one.state is JobState.FAILED]
        failed.sort(key=lambda one: one.ended_at_s, reverse=True)
        waits = {number: self._waits_for(job) for number, job in self._jobs.items()}
        waiting = [{"job": number, "message": text} for number, text in waits.items() if text]
        return {
            "failed_jobs": [
                {"job": one.job, "message": one.message, "ended_at_s": one.ended_at_s}
                for one in failed[:MOST_TROUBLES]
            ],
            "waiting_jobs": waiting[:MOST_TROUBLES],
        }

    async def jobs(
        self, before: int, limit: int, sees: Callable[[bytes], bool] = lambda base: True
    ) -> JobTable:
        """Returns jobs, newest first, whose base passes the filter `sees`."""
        self.start()
        limit = max(1, min(limit, MAX_ROWS))
        seen = (n for n, job in self._jobs.items() if sees(job.record.base))
        numbers = sorted((n for n in seen if not before or n < before), reverse=True)
        rows = [self._shown(self._jobs[number]) for number in numbers[:limit]]
        return JobTable(rows, numbers[limit - 1] if len(numbers) > limit else 0)

    async def job_failures(self, job: int, after: int) -> JobFailures:
        """Returns a page of a job's failures. Raises NotFound."""
        record = self._job(job).record
        with self._ground.store.snapshot() as reader:
            found = table.failures(reader, record.job, record.round, after, FAILURES_PER_REPLY)
        page = table.fitting(found)
        is_all = len(page) == len(found) < FAILURES_PER_REPLY
        return JobFailures([failure for _, failure in page], 0 if is_all else page[-1][0])

    async def control_job(self, job: int, action: str) -> JobReply:
        """See ControlJob. Raises NotFound, InUse, BadConfig."""
        self.start()
        return await self._whole(self._control(job, action))

    async def _control(self, job: int, action: str) -> JobReply:
        async with self._changing:
            one = self._job(job)
            if action == "forget":
                await self._forget(one.record.job)
            else:
                await self._go_on(one, action)
            log.info("job %d: %s", job, action)
            return JobReply(self._shown(one))

    async def _go_on(self, job: Job, action: str) -> None:
        """Applies an action to a job: records it durably, then executes it. One that cannot be
        recorded is executed, too: the runner records it later."""
        number, ran, round_ = job.record.job, job.runs, job.record.round
        if not ran and (old := self._runners.pop(number, None)) is not None:
            await old.close()
        job.control(action, self._clocks.now(), self._clocks.wall())
        try:
            await self._save(job)
            if job.record.round != round_:
                self._forgotten[number] = job.record
        finally:
            self._execute(job)

    def _execute(self, job: Job) -> None:
        runner = self._runners.get(job.record.job)
        if job.runs and runner is None:
            self._run(job)
        elif runner is not None:
            runner.update()
            runner.tick()

    def base_of(self, job: int) -> bytes:
        """Returns the deepest path that all paths of a job lie at or below. Raises NotFound."""
        return self._job(job).record.base

    def _job(self, job: int) -> Job:
        found = self._jobs.get(job)
        for one in self._jobs.values() if found is None else ():
            if any(job == also.job for also in one.record.also):
                return one
        if found is None:
            raise NotFound(f"no job {job}", remedy="`cachefs jobs` lists them")
        return found

    def status(self) -> dict[str, int]:
        """Returns the number of jobs per state, of assigned tasks and of open long polls."""
        counts = dict.fromkeys((state.value for state in JobState), 0)
        for job in self._jobs.values():
            counts[job.record.state.value] += 1
        return {**counts, "tasks": self._desk.outstanding(), "polls": len(self._polls)}


def _say_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (err := task.exception()) is not None:
        log.error("the clock of the load jobs stopped", exc_info=err)
