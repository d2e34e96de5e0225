"""The admin API: its paths and the bodies of its requests and replies. Pure.

The API is JSON over HTTP below `API`. The page `OPENAPI_PATH` is generated from these types and
from the routes of the server. Other modules have paths (`admin_paths`),
sources (`admin_sources`) and syncs (`admin_syncs`).

The server refuses requests with unknown fields. Clients ignore unknown fields of replies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.admin_paths import PathText as PathText
from cachefs.core.admin_paths import bytes_of as bytes_of
from cachefs.core.admin_paths import text_of as text_of
from cachefs.core.health import HealthProblem
from cachefs.core.jobs import PATHS_PER_CALL, JobFailure, JobSpec, JobState, JobStatus
from cachefs.core.policies import Policy

API: Final = "/api/v1"
OPENAPI_PATH: Final = f"{API}/openapi.json"
JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"  # every failure is a `Problem`
KEY_HEADER: Final = "Idempotency-Key"
DEFAULT_LIMIT: Final = 100  # items of a page
MAX_LIMIT: Final = 1000
MAX_BODY_BYTES: Final = 16 << 20  # of a request: holds PATHS_PER_CALL escaped paths
MAX_NUMBER: Final = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the bodies of requests."""


class Nothing(Request, frozen=True):
    """An empty body, {}: the path of the request is complete."""


class Answer(msgspec.Struct, frozen=True):
    """Base of the bodies of replies."""


def same_fields(thing: msgspec.Struct, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of the fields that a body has in common with a struct of the calls."""
    return {name: getattr(thing, name) for name in names}


class Problem(Answer, frozen=True):
    """The cause of a failure. `code` is for programs, `cause` and `remedy` are for people."""

    status: int
    code: str
    cause: str
    remedy: str = ""
    path: str = ""
    request_id: str = ""


class About(Answer, frozen=True):
    """The server. `namespace`: hex, the default of requests that name none. `namespaces`: all of
    them (an embedded server has one for each source)."""

    version: str
    namespace: str
    protocol: int
    epoch: int
    namespaces: list[str] = []


class Health(Answer, frozen=True):
    """The current problems, errors first. Empty: none."""

    items: list[HealthProblem]


class ClusterStatus(Answer, frozen=True):
    """The content of `cachefs status`: plain values, see docs/operations.md."""

    status: dict[str, Any]


# ---- workers -------------------------------------------------------------------------------------


class Worker(Answer, frozen=True):
    """A worker of the cluster. `state`: serving, draining, drained or lost. `seen_s`: seconds since
    its last heartbeat. `facts`: from that heartbeat."""

    id: str
    url: str
    host: str
    state: str
    weight: float
    capacity_bytes: int
    used_bytes: int
    epoch: int
    settled: int
    seen_s: float
    version: str = ""
    facts: dict[str, Any] = {}

    @classmethod
    def of(cls, row: c.WorkerRow) -> Worker:
        return cls(**same_fields(row, cls.__struct_fields__))

    def row(self) -> c.WorkerRow:
        return c.WorkerRow(**msgspec.structs.asdict(self))


class Workers(Answer, frozen=True):
    """The workers. `moving`: blocks are moving to new owners. `members`: ids of the owners."""

    items: list[Worker]
    epoch: int
    members: list[str]
    moving: bool
    next: str | None = None


class WorkerChange(Request, frozen=True):
    """`draining` true: the worker owns nothing and hands its data over. False: it owns data
    again."""

    draining: bool


# ---- policies ------------------------------------------------------------------------------------


class PolicyChange(Request, frozen=True):
    """A change of the policy at a path: sets the fields of `set` and removes those of `unset`."""

    set: Policy = Policy()
    unset: Annotated[list[str], Meta(max_length=100)] = []


class SaidAt(Answer, frozen=True):
    path: PathText
    policy: Policy


class QuotaAt(Answer, frozen=True):
    path: PathText
    quota_bytes: int


class PolicyAt(Answer, frozen=True):
    """The policies at a path. `policy`: the effective values; `from`: the path that sets each.
    `said`: set at the path itself. `below`: set below it (truncated, of `below_count`)."""

    path: PathText
    policy: Policy
    where: dict[str, str] = msgspec.field(name="from")
    said: Policy
    below: list[SaidAt]
    below_count: int
    quotas: list[QuotaAt]

    @classmethod
    def of(cls, path: bytes, at: m.PoliciesAt) -> PolicyAt:
        return cls(
            text_of(path),
            at.policy,
            at.where,
            at.said,
            [SaidAt(text_of(one.path), one.policy) for one in at.below],
            at.below_count,
            [QuotaAt(text_of(where), most) for where, most in at.quotas],
        )

    def message(self) -> m.PoliciesAt:
        return m.PoliciesAt(
            self.policy,
            self.where,
            self.said,
            [m.PolicySaid(bytes_of(one.path), one.policy) for one in self.below],
            self.below_count,
            [(bytes_of(one.path), one.quota_bytes) for one in self.quotas],
        )


class QuotaUse(Answer, frozen=True):
    """A quota and its use. `used_bytes`: on all workers, as of their last heartbeats."""

    path: PathText
    quota_bytes: int
    used_bytes: int


class Quotas(Answer, frozen=True):
    """The quotas that apply to a path, and those below it."""

    items: list[QuotaUse]
    next: str | None = None


# ---- what is cached ------------------------------------------------------------------------------


class Usage(Answer, frozen=True):
    """The files at or below a path that the master knows. If `next` is set, request the next page
    and add up. `silent`: workers that did not reply. `unlisted_directories`: directories found up
    to now that the master never listed; do not add these up."""

    path: PathText
    files: int
    size_bytes: int
    cached_bytes: int
    silent: list[str] = []
    next: str | None = None
    unlisted_directories: int = 0


class FreeRequest(Request, frozen=True):
    """A path to free. `next`: from the previous reply, to continue."""

    path: PathText
    next: Annotated[str, Meta(max_length=1024)] | None = None


class FreedBytes(Answer, frozen=True):
    """The freed bytes. If `next` is set, request the next page and add up. A file counts once for
    each worker that cached it. Bytes of `busy_files` are freed at their last close."""

    files: int
    bytes: int
    busy_files: int
    silent: list[str] = []
    next: str | None = None


class CachedAt(Answer, frozen=True):
    worker: str
    pages: int  # of 1 MiB


class BlockAt(Answer, frozen=True):
    """A block (256 MiB) of a file. `owners`: ids, the primary owner first; empty without any."""

    block: int
    size_bytes: int
    pages: int
    owners: list[str]
    cached: list[CachedAt]


class FileAt(Answer, frozen=True):
    """A file and all of its blocks. A reply has 65,536 blocks at most, and of further files those
    that are cached."""

    path: PathText
    size_bytes: int
    blocks: list[BlockAt]


class Locations(Answer, frozen=True):
    """The files at or below a path, and where they are cached. `items` may be empty with a
    `next`."""

    items: list[FileAt]
    epoch: int
    moving: bool
    silent: list[str] = []
    next: str | None = None


class Misplaced(Answer, frozen=True):
    """A block of which a worker caches more than each of its owners: `worker` has `pages`, and
    `owner`, the owner with the most pages, has `owner_pages`."""

    path: PathText
    block: int
    worker: str
    pages: int
    owner: str
    owner_pages: int


class Checks(Answer, frozen=True):
    """Blocks that are cached on the wrong workers. If `next` is set, request the next page and add
    up. `cachefs fsck` verifies the cached bytes, and so do the workers in the background."""

    items: list[Misplaced]
    files: int
    size_bytes: int
    cached_pages: int
    copies: int
    silent: list[str] = []
    next: str | None = None


# ---- jobs ----------------------------------------------------------------------------------------

JobPathTexts = Annotated[list[PathText], Meta(max_length=PATHS_PER_CALL)]


class NewJob(Request, frozen=True):
    """A load job. `paths`: paths or globs; a selected directory selects all files below it.
    `bandwidth_bytes_s`: of all workers together; 0: no limit. `hold_s`: how long loaded files are
    protected from eviction; 0: not at all; null: until the first read, at most one day. `verify`:
    compare the cached bytes with their checksums at the end. `more`: further paths follow."""

    paths: Annotated[list[PathText], Meta(min_length=1, max_length=PATHS_PER_CALL)]
    bandwidth_bytes_s: Count = 0
    hold_s: Seconds | None = None
    verify: bool = False
    priority: Literal["low", "normal", "high"] = "normal"
    more: bool = False

    def spec(self) -> JobSpec:
        return JobSpec(
            tuple(bytes_of(path) for path in self.paths),
            self.bandwidth_bytes_s,
            self.hold_s,
            self.verify,
            self.priority,
        )


class SubmittedJob(Answer, frozen=True):
    """A job that was submitted. `updated`: it already existed and continues with these settings."""

    job: int
    updated: bool = False


class JobPaths(Request, frozen=True):
    """More paths of a job that was submitted with `more`. `first`: the index of the first one in
    the job's list. `last`: no more follow."""

    first: Count
    paths: JobPathTexts
    last: bool = False


class JobSettings(Answer, frozen=True):
    bandwidth_bytes_s: int
    hold_s: float | None
    verify: bool
    priority: str


class Job(Answer, frozen=True):
    """A load job. `paths`: the first of them. Counts cover the selected files: `found` (final once
    `listing_done`), `done` (cached now, by this job or otherwise) and `failed`. `bytes_done`
    includes what is cached of files in progress; `bytes_fetched`, from the origin for this job,
    does not. `eta_s`: null if unknown. `…_at_s`: Unix time; 0: not yet."""

    job: int
    state: JobState
    paths: list[PathText]
    path_count: int
    settings: JobSettings
    message: str = ""
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
    elapsed_s: float = 0.0
    rate_bytes_s: float = 0.0
    eta_s: float | None = None

    @classmethod
    def of(cls, shown: JobStatus) -> Job:
        spec = shown.spec
        settings = JobSettings(spec.bandwidth_bytes_s, spec.hold_s, spec.verify, spec.priority)
        same = same_fields(shown, _SAME_OF_JOBS)
        return cls(paths=[text_of(path) for path in shown.paths], settings=settings, **same)

    def shown(self) -> JobStatus:
        paths = [bytes_of(path) for path in self.paths]
        settings = msgspec.structs.asdict(self.settings)
        same = same_fields(self, _SAME_OF_JOBS)
        return JobStatus(paths=paths, spec=JobSpec(tuple(paths), **settings), **same)


_SAME_OF_JOBS: Final = tuple(
    name for name in Job.__struct_fields__ if name not in ("paths", "settings")
)


class Jobs(Answer, frozen=True):
    """Load jobs, the newest first."""

    items: list[Job]
    next: str | None = None


class FailedFile(Answer, frozen=True):
    path: PathText
    code: str
    cause: str
    attempts: int = 1

    @classmethod
    def of(cls, failure: JobFailure) -> FailedFile:
        return cls(text_of(failure.path), failure.code, failure.cause, failure.attempts)

    def failure(self) -> JobFailure:
        return JobFailure(bytes_of(self.path), self.code, self.cause, self.attempts)


class FailedFiles(Answer, frozen=True):
    items: list[FailedFile]
    next: str | None = None
