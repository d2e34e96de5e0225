"""Load jobs: the request, the status for people, and the tasks of workers. Pure.

A job is a durable object of the master's store. It lists the files that its paths select and hands
out tasks, each with blocks of one owner. A worker polls for tasks, and its next poll has the
outcomes of finished ones. A task may be repeated after a crash: loading a cached block costs
nothing.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from cachefs.core.model import Origin

PATHS_PER_CALL: Final = 1000
MAX_JOB_PATHS: Final = 10_000_000
FAILURES_PER_REPLY: Final = 500
FAILURES_BYTES: Final = 128 << 10  # in a reply: fits into a frame
TASK_FILES: Final = 64  # of one task, at most
TASK_BYTES: Final = 8 << 20  # a task ends with the file that exceeds it
HOLD_S: Final = 24 * 3600.0  # longest protection of a loaded file that was not read yet
LEASE_S: Final = 30.0  # a worker that does not poll for this time loses its tasks
PRIORITIES: Final = ("low", "normal", "high")


class JobState(enum.Enum):
    """The state of a job. Listing and loading overlap, so listing is no state."""

    LOADING = "loading"
    VERIFYING = "verifying"
    STOPPED = "stopped"  # by an operator: `resume` continues
    FAILED = "failed"  # ended; some files are not cached: see `message` and the failures
    SUCCEEDED = "succeeded"  # ended; the workers found every byte of every file in the cache

    @property
    def has_ended(self) -> bool:
        return self in (JobState.FAILED, JobState.SUCCEEDED)


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The operator's request. `paths`: paths or globs below the namespace root; a selected
    directory selects all files below it. `bandwidth_bytes_s`: of all workers together, 0: no limit.
    `hold_s`: protection of loaded files from eviction, even after a read (0: none); None: until the
    first read, at most HOLD_S. `verify`: compare the cached bytes with their checksums at the
    end."""

    paths: tuple[bytes, ...]
    bandwidth_bytes_s: int = 0
    hold_s: float | None = None
    verify: bool = False
    priority: str = "normal"


class JobStatus(msgspec.Struct, frozen=True):
    """A job's status, for people. `paths`: the first of them. Counts cover the selected files:
    `found` (final once `listing_done`), `done` (cached now, by this job or otherwise) and `failed`.
    `bytes_done` includes what is cached of files in progress; `bytes_fetched`, from the origin for
    this job, does not. `eta_s`: None if unknown. `…_at_s`: wall clock."""

    job: int
    state: JobState
    paths: list[bytes]
    path_count: int
    spec: JobSpec  # with `paths` as above
    message: str = ""  # one line: the reason of a stop, failure or wait, with figures
    listing_done: bool = False
    files_found: int = 0
    bytes_found: int = 0
    files_done: int = 0
    bytes_done: int = 0
    bytes_fetched: int = 0
    files_failed: int = 0
    files_verified: int = 0
    submitted_at_s: float = 0.0
    ended_at_s: float = 0.0
    elapsed_s: float = 0.0  # without the time that the job was stopped
    rate_bytes_s: float = 0.0  # in the last seconds
    eta_s: float | None = None


class JobFailure(msgspec.Struct, frozen=True):
    """A file that could not be loaded. `code`: of the typed error."""

    path: bytes
    code: str
    cause: str
    attempts: int = 1


# ---- tasks ---------------------------------------------------------------------------------------


class TaskKind(enum.Enum):
    LOAD = "load"  # complete these files in the cache of the worker, which owns them
    CHECK = "check"  # check that they are complete; fetch nothing
    VERIFY = "verify"  # CHECK, and compare the bytes with their checksums; drop damaged files


class TaskFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file, and one of its blocks (-1: all; also used for a file of one block)."""

    origin: Origin
    block: int = -1


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task for one worker. `number` is unique in one run of the master (`Worked.run`).
    `hold_until_s`: wall clock, 0: not protected. `hold_read`: protected even after a read."""

    number: int
    job: int
    kind: TaskKind
    files: list[TaskFile]
    hold_until_s: float = 0.0
    hold_read: bool = False


class FullQuota(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A quota that refused a file. `limit_bytes`, `used_bytes`: of the refusing worker's share."""

    path: bytes
    quota_bytes: int
    used_bytes: int
    limit_bytes: int


class FileFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A failure of the file at `place` in a task. `code`: "missing" if a check found it incomplete,
    "no-space" (see `TaskResult.room`), else of the typed error. `quota`: the one that refused
    it."""

    place: int
    code: str
    cause: str
    quota: FullQuota | None = None


class Room(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The use of a worker's cache when it refused a file, for people."""

    limit_bytes: int
    held_bytes: int  # loaded and still protected
    pinned_bytes: int  # known to be pinned, from the master's refusals
    busy_bytes: int  # open, being read or filled


class FileProgress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The bytes that are cached of the file at `place` in the unfinished task `number`."""

    number: int
    place: int
    cached_bytes: int


class TaskResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of a task. Files not in `failures` succeeded. `room`: set if one failed for lack
    of space; the worker did not try the files after it (they are failures, "no-space")."""

    number: int
    fetched_bytes: int
    failures: list[FileFailure] = []
    room: Room | None = None
