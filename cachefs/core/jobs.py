"""Load jobs: what is asked of one, what is shown of one, and the tasks that workers get. Pure.

A job is a durable object of the master's store. It lists what its paths select and hands out tasks,
each of blocks of one owner; a worker asks for tasks, and says with its next question what became
of those that it had. Tasks are repeated after any death: bringing what is there costs nothing.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from cachefs.core.model import Origin

PATHS_PER_CALL: Final = 1000
MAX_JOB_PATHS: Final = 10_000_000
FAILURES_PER_REPLY: Final = 500
FAILURES_BYTES: Final = 128 << 10  # of a reply: a frame holds it
TASK_FILES: Final = 64  # of one task, at most
TASK_BYTES: Final = 8 << 20  # a task ends with the file that goes beyond it; progress is by tasks
HOLD_S: Final = 24 * 3600.0  # what was loaded is held until it was read once, at most so long
LEASE_S: Final = 30.0  # a worker that does not ask for work for so long has lost its tasks
PRIORITIES: Final = ("low", "normal", "high")


class JobState(enum.Enum):
    """LISTING goes on beside LOADING, so it is no state of its own."""

    LOADING = "loading"
    VERIFYING = "verifying"
    STOPPED = "stopped"  # by an operator: `resume` goes on
    FAILED = "failed"  # ended; not every byte is cached: `message` and the failures say why
    SUCCEEDED = "succeeded"  # ended; every byte of every file was seen in the cache

    @property
    def has_ended(self) -> bool:
        return self in (JobState.FAILED, JobState.SUCCEEDED)


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator asks. `paths`: paths or globs below the namespace root; what selects a
    directory selects all files below it. `bandwidth_bytes_s`: of all workers together, 0: no limit.
    `hold_s`: None: held until it was read once, HOLD_S at most; else for so long, read or not
    (0: not held). `verify`: at the end cached bytes are read and compared with their checksums."""

    paths: tuple[bytes, ...]
    bandwidth_bytes_s: int = 0
    hold_s: float | None = None
    verify: bool = False
    priority: str = "normal"


class JobShown(msgspec.Struct, frozen=True):
    """A job as people see it. `paths`: the first of them. Counts of files and bytes are of what is
    selected: `found` (final once `listing_done`), `done` (cached now, whoever brought it) and
    `failed`; `bytes_fetched`: what came from the origin for this job. `eta_s`: None while it cannot
    be told. Times `…_at_s` are wall clock, 0.0: not yet."""

    job: int
    state: JobState
    paths: list[bytes]
    path_count: int
    spec: JobSpec  # with `paths` as above
    message: str = ""  # one line: why it stopped or failed, with figures, or what it waits for
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
    elapsed_s: float = 0.0  # of work, without the time that it was stopped
    rate_bytes_s: float = 0.0  # of the last seconds
    eta_s: float | None = None


class JobFailure(msgspec.Struct, frozen=True):
    """A file that could not be loaded. `code`: of the typed error."""

    path: bytes
    code: str
    cause: str
    attempts: int = 1


# ---- tasks ---------------------------------------------------------------------------------------


class TaskKind(enum.Enum):
    LOAD = "load"  # make these complete in the worker's cache, as their owner
    CHECK = "check"  # are they complete? nothing is fetched
    VERIFY = "verify"  # CHECK, and do their bytes have their checksums? what has not is dropped


class TaskFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file, and which block of it (-1: all; a file of one block is -1 too)."""

    origin: Origin
    block: int = -1


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`number` is unique in one run of the master (`Worked.run`). `hold_until_s`: wall clock, 0:
    not held; `hold_read`: held although it was read."""

    number: int
    job: int
    kind: TaskKind
    files: list[TaskFile]
    hold_until_s: float = 0.0
    hold_read: bool = False


class FullQuota(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A quota that refused a file. `limit_bytes`: the share of it of the worker that refused, of
    which it uses `used_bytes`."""

    path: bytes
    quota_bytes: int
    used_bytes: int
    limit_bytes: int


class FileFailure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of a file of a task, by its place in it. `code` "missing": a check did not find it complete;
    "no-space": see `Outcome.room`; else of the typed error. `quota`: the one that refused it."""

    place: int
    code: str
    cause: str
    quota: FullQuota | None = None


class Room(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why something does not fit: figures of the worker that refused it, for people."""

    limit_bytes: int
    held_bytes: int  # loaded and not to go yet
    pinned_bytes: int  # what the master's answers refused, as far as known
    busy_bytes: int  # open, being read or filled


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a task: files that are not among `failures` are as asked. `room`: set when one
    failed for want of it; the files after it were not tried (and are failures, "no-space")."""

    number: int
    fetched_bytes: int
    failures: list[FileFailure] = []
    room: Room | None = None
