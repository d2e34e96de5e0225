"""The state of one load job, changed by its tasks, walks and operators. Pure.

The job feeds its listing through a window twice. The first pass (LOADING) loads the files. Once all
of them are settled, the second (VERIFYING) checks them, and loads missing blocks again. The job has
SUCCEEDED when the second pass found every file complete. An end is reported only once the write
from `take` is durable. Times are monotonic seconds, `wall_s` wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cachefs.core.errors import (
    BY_CODE,
    AccessDenied,
    BadConfig,
    CacheFSError,
    CredentialsMissing,
    DeadlineExceeded,
    InUse,
    NoSpace,
    Unreachable,
)
from cachefs.core.jobs import (
    HOLD_S,
    FileFailure,
    FullQuota,
    JobFailure,
    JobSpec,
    JobState,
    JobStatus,
    Room,
    TaskKind,
    TaskResult,
)
from cachefs.core.model import Origin
from master.state import job_messages, job_status
from master.state.job_record import MAX_ALSO, MAX_FAILURES, PATHS_SHOWN, Also, JobRecord, Write
from master.state.job_status import Ahead
from master.state.quota_exhaustion import QuotaExhaustion
from master.state.rate_estimator import Progress, RateEstimator
from master.state.retry_queue import RetryQueue
from master.state.task_dispatcher import Order, TaskBatch
from master.state.window import START, Part, Position, Slot, Window

MAX_ATTEMPTS: Final = 3  # for one file, in one pass
AGAIN_S: Final = 2.0  # before a retry, times the tries so far
WRITE_FILES: Final = 2048  # passed by the watermark before the record is written
WRITE_S: Final = 1.0
MOST_FOUND: Final = 1 << 62  # bytes: a record has room for that
MISSING: Final = "missing"
NO_SPACE: Final = NoSpace.code
_LOOK_AGAIN: Final = frozenset({"stale", "not-found"})
# Of the worker perhaps (its way to the origin, its keys): the next try is another worker's.
_CUT_OFF: Final = frozenset(
    one.code for one in (AccessDenied, CredentialsMissing, DeadlineExceeded, Unreachable)
)
_TRY_AGAIN: Final = frozenset(code for code, cls in BY_CODE.items() if cls.retryable) | {"deadline"}
_RETRIED: Final = {False: _TRY_AGAIN | _CUT_OFF, True: _TRY_AGAIN}  # by `Part.stands_in`


class Effects(msgspec.Struct):
    """The work for the caller: parts to hand out, and files to check at their origins again."""

    parts: list[Part] = []
    look: list[Slot] = []


class Job:
    """A job in one run of the master."""

    def __init__(self, record: JobRecord, now: float) -> None:
        self._record = record
        self.window = Window()
        self.pass_fed = False  # the walk of this pass has ended
        self._began_s = now
        self._wrote_s = now
        self._timed = self.runs
        self._urgent = self._changed = False
        self._unwritten = 0  # files that the watermark passed
        self._durable = record
        self._failures: list[JobFailure] = []  # to be written
        self._later = RetryQueue()
        self._refusals = QuotaExhaustion()
        self._pace: RateEstimator | None = RateEstimator(now, self._progress())

    @property
    def record(self) -> JobRecord:
        return self._record

    @property
    def runs(self) -> bool:
        return self._record.state in (JobState.LOADING, JobState.VERIFYING)

    @property
    def checks(self) -> bool:
        """True if the job is in its second pass."""
        return self._record.feeding_done

    @property
    def watermark(self) -> Position:
        """The recorded watermark of the current pass."""
        return self._record.checked if self.checks else self._record.fed

    @property
    def order(self) -> Order:
        spec = self._record.spec
        return Order(
            self._record.job,
            spec.priority,
            spec.bandwidth_bytes_s,
            TaskKind.VERIFY if spec.verify else TaskKind.CHECK,
            HOLD_S if spec.hold_s is None else spec.hold_s,
            spec.hold_s is not None,
        )

    def counted(
        self, position: Position, files: int, size: int, needed: int, *, matched: bool
    ) -> None:
        record = self._record
        self._set(
            counted=position,
            matched=matched,
            files_found=record.files_found + files,
            bytes_found=min(MOST_FOUND, record.bytes_found + size),
            bytes_needed=min(MOST_FOUND, record.bytes_needed + needed),
        )

    def note(self, path: bytes, err: CacheFSError) -> None:
        """Records a failure: a selected path is absent or cannot be listed."""
        self._failures.append(JobFailure(path, err.code, err.one_line()))
        self._set(
            files_found=self._record.files_found + 1, files_failed=self._record.files_failed + 1
        )
        self._limit_failures()

    def counting_ended(self) -> None:
        self._set(counting_done=True)
        self._turn()

    def has_room(self, capacity_bytes: int, owners: int) -> None:
        """Fails the job once it is known to need more than `capacity_bytes`, the capacity of all
        caches. `owners`: the number of workers that own blocks."""
        needed_bytes = self._needed_bytes(owners)
        if needed_bytes <= capacity_bytes:
            return
        is_all = self._record.counting_done
        message = job_messages.cannot_fit(needed_bytes, capacity_bytes, is_all=is_all)
        self._halt(JobState.FAILED, message, again=True)

    def keeps_to(self, quotas: Iterable[tuple[bytes, int]], owners: int) -> None:
        """Fails the job once it is known to need more than one of `quotas`: (path, bytes), each at
        or above all of its paths."""
        needed_bytes, is_all = self._needed_bytes(owners), self._record.counting_done
        for path, quota_bytes in quotas:
            if needed_bytes > quota_bytes and self.runs:
                message = job_messages.beyond_quota(needed_bytes, path, quota_bytes, is_all=is_all)
                self._halt(JobState.FAILED, message, again=True)

    def _needed_bytes(self, owners: int) -> int:
        """Returns the cache space needed with replicas, at most one per worker."""
        return min(self._record.bytes_needed, self._record.bytes_found * max(1, owners))

    def broke(self, why: str) -> None:
        """Fails a running job for a cause outside it; an operator can resume it."""
        if self.runs:
            self._halt(JobState.FAILED, why, again=True)

    def feed(self, files: Iterable[tuple[int, bytes, Origin]]) -> list[Part]:
        """Adds the next files of this pass to the window; returns their parts, to be handed out."""
        load, parts, window = not self.checks, [], self.window
        for index, path, origin in files:
            parts += window.open(Slot(index, path, origin), load=load)
        self._advance()  # the window refuses what is too large
        return parts

    def fed(self) -> None:
        """Records that all files of this pass were fed."""
        self.pass_fed = True
        self._turn()

    def settle(self, pack: TaskBatch, told: TaskResult, now: float, worker: str = "") -> Effects:
        """Records the result of a task; returns the work that follows from it."""
        effects = Effects()
        self._set(bytes_fetched=self._record.bytes_fetched + max(0, told.fetched_bytes))
        failed = {failure.place: failure for failure in told.failures}
        full = self._full_quota(told, now, worker)
        for place, part in enumerate(pack.parts):
            if part.is_void:
                continue
            failure = failed.get(place)
            if failure is None:
                effects.parts += self.window.part_done(part)
            elif failure.code != NO_SPACE or (told.room is None and full is None):
                self._part_failed(part, failure, now, effects)
        if told.room is not None or full is not None:
            self._no_room(told.room, full)
            return Effects()
        self._advance()
        return effects

    def _full_quota(self, told: TaskResult, now: float, worker: str) -> FullQuota | None:
        """Returns the full quota under which no remaining file can be cached, if any."""
        refused = [failure.quota for failure in told.failures if failure.quota is not None]
        for quota in refused:
            self._refusals.note(worker, quota, now)
        left = self._record.paths_left(self.watermark)
        return self._refusals.full(now, left) if refused else None

    def unowned(self, parts: Iterable[Part]) -> None:
        """Counts parts without an owner as done: there are fewer workers than replicas."""
        for part in parts:
            if not part.is_void:
                self.window.part_done(part)
        self._advance()

    def _part_failed(self, part: Part, failure: FileFailure, now: float, effects: Effects) -> None:
        slot, code = part.slot, failure.code
        if not part.load:  # a failed check: load the block
            effects.parts.append(part.again())
        elif code in _LOOK_AGAIN and slot.attempts < MAX_ATTEMPTS:
            slot.attempts += 1
            slot.round += 1  # parts that other workers have of it become void
            effects.look.append(slot)
        elif code in _RETRIED[part.stands_in] and part.tries < MAX_ATTEMPTS:
            stands_in = code in _CUT_OFF and not part.stands_in
            self._later.put(now + AGAIN_S * part.tries, part.again(stands_in=stands_in))
        else:
            slot.attempts = max(slot.attempts, part.tries)
            self.window.fail(slot, code, failure.cause)

    def looked(self, slot: Slot, origin: Origin | None, err: CacheFSError | None) -> Effects:
        """Handles a new check of a changed file at its origin: `origin` is its current state; None
        if the file was removed, or if the check failed with `err`."""
        effects = Effects()
        if not self.runs or slot.settled:
            return effects
        if origin is not None:
            effects.parts = self.window.begin_again(slot, origin)
            self._advance()
            return effects
        code, cause = ("not-found", "it is gone") if err is None else (err.code, err.one_line())
        self.window.fail(slot, code, cause)
        self._advance()
        return effects

    def tick(self, now: float, in_flight_bytes: int = 0) -> list[Part]:
        """Returns the parts that are due for a retry. The caller calls it about once a second.
        `in_flight_bytes`: see `TaskDispatcher.in_flight_bytes`."""
        progress = self._progress(in_flight_bytes)
        if self._pace is None:
            self._pace = RateEstimator(now, progress)
        self._pace.note(now, progress)
        return self._later.due(now)

    def update(self, spec: JobSpec) -> None:
        """Replaces the settings of the job; its paths stay."""
        self._set(spec=msgspec.structs.replace(spec, paths=()))
        self._urgent = True

    def stands_for(self, job: int, key: str) -> None:
        """Records that another job turned out to have the same paths."""
        self._set(also=(*self._record.also, Also(job, key))[-MAX_ALSO:])

    def end_at_once(self, now: float) -> None:
        """Stops a job that turned out to be a duplicate of another one."""
        if self.runs:
            self._stop(now)

    def add_paths(self, paths: Sequence[bytes], base: bytes, digest: bytes, *, last: bool) -> None:
        """Appends paths to the job; `last`: the list is complete."""
        record = self._record
        self._set(
            path_count=record.path_count + len(paths),
            paths=(*record.paths, *paths)[:PATHS_SHOWN],
            base=base,
            digest=digest,
            paths_open=not last,
        )
        self._urgent = True

    def control(self, action: str, now: float, wall_s: float) -> None:
        """Applies an operator's action; of `forget` only checks whether it may be. Raises InUse or
        BadConfig, and then changes nothing."""
        record = self._record
        if action == "stop":
            self._stop(now)
        elif action == "resume":
            self._resume(now)
        elif action == "retry":
            if not record.state.has_ended:
                raise InUse(f"job {record.job} has not ended", remedy="wait for it, or resume it")
            self._retry(now)
        elif action == "forget":
            if self.runs:
                raise InUse(f"job {record.job} is {record.state.value}", remedy="stop it first")
        else:
            raise BadConfig(
                f"no such action: {action!r}", remedy="choose stop, resume, retry or forget"
            )
        self._urgent = True

    def _stop(self, now: float) -> None:
        record = self._record
        if record.state is JobState.STOPPED:
            return
        if not self.runs:
            raise InUse(f"job {record.job} has ended", remedy="retry it, or submit it again")
        self._advance()
        if self.runs:
            self._count_time(now)
            self._halt(JobState.STOPPED, "stopped by an operator")

    def _resume(self, now: float) -> None:
        record = self._record
        if self.runs:
            return
        if record.state is not JobState.STOPPED and not record.again:
            raise InUse(f"job {record.job} has ended", remedy="retry it")
        if record.again and record.files_failed:
            return self._retry(now)  # refused files are tried again: there may be room now
        self._go_on(now)

    def _retry(self, now: float) -> None:
        """Checks all files again, loads missing ones, and drops earlier failures. Files that were
        not fed yet are fed first."""
        self._failures = []
        self._set(
            round=self._record.round + 1,
            counted=START,
            matched=False,
            counting_done=False,
            files_found=0,
            bytes_found=0,
            bytes_needed=0,
            files_failed=0,
        )
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        state = JobState.VERIFYING if self._record.feeding_done else JobState.LOADING
        self._set(
            state=state, message="", again=False, ended_at_s=0.0, checked=START,
            files_verified=0, bytes_verified=0,
        )  # fmt: skip
        self._began_s, self._timed = now, True
        self._empty()
        self._pace = RateEstimator(now, self._progress())

    def take(self, now: float, wall_s: float) -> Write | None:
        """Returns the write due now, or None. The caller reports `wrote` or `not_written`."""
        due = self._changed and now - self._wrote_s >= WRITE_S
        if not (due or self._urgent):
            return None
        self._count_time(now)
        if self._record.state.has_ended and not self._record.ended_at_s:
            self._set(ended_at_s=wall_s)
        failures, self._failures = self._failures, []
        self._changed = self._urgent = False
        self._unwritten, self._wrote_s = 0, now
        return Write(self._record, failures)

    def wrote(self, write: Write) -> bool:
        """Records a durable write; returns whether the job ended with it."""
        had_ended, self._durable = self._durable.state.has_ended, write.record
        return write.record.state.has_ended and not had_ended

    def hurry(self) -> None:
        """Makes the next `take` return any change at once."""
        self._urgent |= self._changed

    @property
    def is_durable(self) -> bool:
        """True if the current state of the job is durable."""
        return not self._changed and self._durable is self._record

    def not_written(self, write: Write) -> None:
        self._failures = write.failures + self._failures
        self._urgent = True

    def shown(self, now: float, waits_for: str = "", in_flight_bytes: int = 0) -> JobStatus:
        """Returns the status for operators, without an end that is not durable yet. `waits_for`:
        why a running job makes no progress."""
        progress = self._progress(in_flight_bytes)
        record, state = self._record, self._record.state
        message = waits_for if self.runs else record.message
        if state.has_ended and not self._durable.state.has_ended:
            state, message = self._durable.state, self._durable.message
        return job_status.show(
            record, state, message, self._ahead(in_flight_bytes),
            elapsed_s=self._elapsed_s(now), rate_bytes_s=self._rate_bytes_s(now, progress),
            eta_s=self._eta_s(now, progress),
        )  # fmt: skip

    def _set(self, **values: object) -> None:
        self._record = msgspec.structs.replace(self._record, **values)
        self._changed = True

    def _count_time(self, now: float) -> None:
        if self._timed:
            self._set(worked_s=self._record.worked_s + max(0.0, now - self._began_s))
        self._began_s, self._timed = now, self.runs

    def _elapsed_s(self, now: float) -> float:
        return self._record.worked_s + (max(0.0, now - self._began_s) if self._timed else 0.0)

    def _advance(self) -> None:
        passed = self.window.advance()
        if passed is not None:
            self._unwritten += passed.files_done + len(passed.failures)
            self._urgent |= self._unwritten >= WRITE_FILES
            self._failures += passed.failures
            self._set(**self._record.after(passed))
            self._limit_failures()
        self._turn()

    def _turn(self) -> None:
        """Ends the current pass if all of its files are settled."""
        record = self._record
        if not (self.runs and self.pass_fed and record.counting_done) or len(self.window):
            return
        if not record.feeding_done:
            self._set(
                feeding_done=True,
                state=JobState.VERIFYING,
                files_found=record.files_done + record.files_failed,
                bytes_found=record.bytes_found if record.files_failed else record.bytes_done,
            )
            self.pass_fed = False
            self._pace = None
            self._urgent = True
            return
        self._set(
            files_found=record.files_verified + record.files_failed,
            bytes_found=record.bytes_found if record.files_failed else record.bytes_verified,
            files_done=record.files_verified,
            bytes_done=record.bytes_verified,
        )
        if record.files_failed:
            self._halt(
                JobState.FAILED, job_messages.failed(record.files_failed, self._record.files_found)
            )
        else:
            self._halt(JobState.SUCCEEDED, "")

    def _halt(self, state: JobState, message: str, *, again: bool = False) -> None:
        self._set(state=state, message=message, again=again)
        self._urgent = True
        self._empty()

    def _empty(self) -> None:
        """Drops all files in flight; they are fed again from the watermark."""
        self.window.close()
        self.window = Window()
        self.pass_fed = False
        self._later.clear()
        self._refusals.clear()

    def _limit_failures(self) -> None:
        if self.runs and self._record.files_failed >= MAX_FAILURES:
            self._halt(JobState.FAILED, job_messages.too_many(MAX_FAILURES), again=True)

    def _no_room(self, room: Room | None, full: FullQuota | None) -> None:
        self._advance()
        if not self.runs:
            return
        left_bytes = max(0, self._record.bytes_found - self._record.bytes_done)
        message = job_messages.no_room(left_bytes, room) if room is not None else ""
        message = job_messages.quota_full(left_bytes, full) if full is not None else message
        self._halt(JobState.FAILED, message, again=True)

    def _ahead(self, in_flight_bytes: int) -> Ahead:
        window = self.window
        if self.checks:
            return Ahead(0, 0, window.ahead_failed, window.ahead_files)
        ahead_bytes = window.ahead_bytes + in_flight_bytes
        return Ahead(window.ahead_files, ahead_bytes, window.ahead_failed, 0)

    def _progress(self, in_flight_bytes: int = 0) -> Progress:
        """Returns bytes and files done in this pass. Checks have no progress in flight."""
        record, ahead = self._record, self.window
        done = record.bytes_done + in_flight_bytes, record.files_done
        if self.checks:
            done = record.bytes_verified, record.files_verified
        return done[0] + ahead.ahead_bytes, done[1] + ahead.ahead_files

    def _rate_bytes_s(self, now: float, progress: Progress) -> float:
        if self._pace is None or not self.runs:
            return 0.0
        return round(self._pace.rates(now, progress)[0], 1)

    def _eta_s(self, now: float, progress: Progress) -> float | None:
        """Returns the remaining seconds of the current pass; None if unknown."""
        record = self._record
        if self._pace is None or not (self.runs and record.counting_done):
            return None
        return self._pace.eta_s(now, progress, (record.bytes_found, record.files_found))
