"""The admin API: where it is, the bodies of requests and answers. Pure.

JSON over HTTP below `API`; its page `OPENAPI_PATH` is made from these types and from the routes of
the server. How paths are written: `cachefs.core.admin_paths`; syncs: `cachefs.core.admin_syncs`.

Requests with fields that nobody knows are refused; clients pass over those of answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.admin_paths import PathText as PathText
from cachefs.core.admin_paths import bytes_of as bytes_of
from cachefs.core.admin_paths import text_of as text_of
from cachefs.core.health import HealthProblem
from cachefs.core.jobs import PATHS_PER_CALL, JobFailure, JobShown, JobSpec, JobState
from cachefs.core.policies import Policy

API: Final = "/api/v1"
OPENAPI_PATH: Final = f"{API}/openapi.json"
JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"  # of every failure: a `Problem`
KEY_HEADER: Final = "Idempotency-Key"
DEFAULT_LIMIT: Final = 100  # items of a page
MAX_LIMIT: Final = 1000
MAX_BODY_BYTES: Final = 16 << 20  # of a request: PATHS_PER_CALL paths, however written
MAX_NUMBER: Final = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the bodies of requests."""


class Nothing(Request, frozen=True):
    """The body of a request that says all in its path: {}."""


class Answer(msgspec.Struct, frozen=True):
    """Base of the bodies of answers."""


class Problem(Answer, frozen=True):
    """Why a request failed. `code` is for programs, `cause` and `remedy` are for people."""

    status: int
    code: str
    cause: str
    remedy: str = ""
    path: str = ""
    request_id: str = ""


class About(Answer, frozen=True):
    """Who answers. `namespace`: hex, the one that is meant where none is named; `namespaces`: all
    (an embedded server has one for each source)."""

    version: str
    namespace: str
    protocol: int
    epoch: int
    namespaces: list[str] = []


class Health(Answer, frozen=True):
    """What is wrong now: errors first; empty if all is well."""

    items: list[HealthProblem]


class Status(Answer, frozen=True):
    """What `cachefs status` shows: plain values, see docs/operations.md."""

    status: dict[str, Any]


# ---- sources -------------------------------------------------------------------------------------


class NewSource(Request, frozen=True):
    """`url`: s3://bucket/prefix, file:///path; `options` as of `cachefs ufs add`."""

    path: PathText
    url: Annotated[str, Meta(min_length=1, max_length=4096)]
    options: dict[str, str] = {}
    sync_interval_s: Annotated[float, Meta(ge=-1, le=1e12)] = 60.0


class SourceAdded(Answer, frozen=True):
    """`warning`: a line for people (it hides something, it keeps what it had)."""

    path: PathText
    url: str
    ino: int
    warning: str = ""


class Source(Answer, frozen=True):
    path: PathText
    url: str
    options: dict[str, str]
    sync_interval_s: float
    origin_down: bool = False
    warning: str = ""

    @classmethod
    def of(cls, row: c.UfsRow) -> Source:
        return cls(
            text_of(row.path),
            row.source.url,
            row.source.options,
            row.sync_interval_s,
            row.origin_down,
            row.warning,
        )


class Sources(Answer, frozen=True):
    items: list[Source]
    next: str | None = None


# ---- workers -------------------------------------------------------------------------------------


class Worker(Answer, frozen=True):
    """`state`: serving, draining, drained, lost. `seen_s`: since its last heartbeat; `facts`: what
    it said there."""

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
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__})

    def row(self) -> c.WorkerRow:
        return c.WorkerRow(**{name: getattr(self, name) for name in self.__struct_fields__})


class Workers(Answer, frozen=True):
    """`moving`: data is on its way to its new places. `members`: ids of those that own data."""

    items: list[Worker]
    epoch: int
    members: list[str]
    moving: bool
    next: str | None = None


class WorkerChange(Request, frozen=True):
    """`draining`: it owns nothing from now on and hands over what it has, or it owns again."""

    draining: bool


# ---- policies ------------------------------------------------------------------------------------


class PolicyChange(Request, frozen=True):
    """Says more at a path, and leaves the fields `unset` open again; the rest stays."""

    set: Policy = Policy()
    unset: Annotated[list[str], Meta(max_length=100)] = []


class SaidAt(Answer, frozen=True):
    path: PathText
    policy: Policy


class QuotaAt(Answer, frozen=True):
    path: PathText
    quota_bytes: int


class PolicyAt(Answer, frozen=True):
    """What holds at a path, field by field who says so (`from`), what is said at the path itself
    and below it (cut; there are `below_count`), and the quotas that hold for it."""

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
    """`used_bytes`: on all workers, as of their last heartbeats."""

    path: PathText
    quota_bytes: int
    used_bytes: int


class Quotas(Answer, frozen=True):
    """Those that hold for a path, and those below it."""

    items: list[QuotaUse]
    next: str | None = None


# ---- what is cached ------------------------------------------------------------------------------


class Usage(Answer, frozen=True):
    """Of the files at or below a path that the master knows, as far as they were counted: with
    `next`, ask on and add. `silent`: workers that did not answer. `unlisted_directories`: how many
    directories were found so far whose names the master never listed; do not add these."""

    path: PathText
    files: int
    size_bytes: int
    cached_bytes: int
    silent: list[str] = []
    next: str | None = None
    unlisted_directories: int = 0


class FreeRequest(Request, frozen=True):
    """`next`: of the last answer, to go on."""

    path: PathText
    next: Annotated[str, Meta(max_length=1024)] | None = None


class Freed(Answer, frozen=True):
    """With `next` this was a part: ask on and add. A file counts once for each worker that had
    it; bytes of `busy_files` go with their last close."""

    files: int
    bytes: int
    busy_files: int
    silent: list[str] = []
    next: str | None = None


class CachedAt(Answer, frozen=True):
    worker: str
    pages: int  # of 1 MiB


class BlockAt(Answer, frozen=True):
    """A block (256 MiB) of a file. `owners`: ids, the first one first; none: nobody owns data."""

    block: int
    size_bytes: int
    pages: int
    owners: list[str]
    cached: list[CachedAt]


class FileAt(Answer, frozen=True):
    path: PathText
    size_bytes: int
    blocks: list[BlockAt]


class Locations(Answer, frozen=True):
    """Files at or below a path, and where their blocks are. `items` may be empty with a `next`."""

    items: list[FileAt]
    epoch: int
    moving: bool
    silent: list[str] = []
    next: str | None = None


class Misplaced(Answer, frozen=True):
    """`worker` has `pages` of a block, of its owners `owner` has most, `owner_pages`."""

    path: PathText
    block: int
    worker: str
    pages: int
    owner: str
    owner_pages: int


class Checks(Answer, frozen=True):
    """Is what is cached where it belongs? With `next`, ask on and add. The bytes themselves are
    compared by `cachefs fsck`, and by the workers in the background."""

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
    """A load job. `paths`: paths or globs; what selects a directory selects all files below it.
    `bandwidth_bytes_s`: of all workers together, 0: no limit. `hold_s`: null: held until it was
    read once, a day at most; else for so long (0: not held). `verify`: at the end cached bytes are
    compared with their checksums. `more`: further paths follow."""

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


class JobSubmitted(Answer, frozen=True):
    """`updated`: it was there, and goes on with these settings."""

    job: int
    updated: bool = False


class JobPaths(Request, frozen=True):
    """More paths of a job that was submitted with `more`; `first`: the place of the first of them
    in its list. `last`: none follow."""

    first: Count
    paths: JobPathTexts
    last: bool = False


class JobSettings(Answer, frozen=True):
    bandwidth_bytes_s: int
    hold_s: float | None
    verify: bool
    priority: str


class Job(Answer, frozen=True):
    """`paths`: the first of them. Counts are of what is selected: `found` (final once
    `listing_done`), `done` (cached now, whoever brought it) and `failed`; `bytes_fetched` came from
    the origin for this job. `eta_s`: null while it cannot be told. `…_at_s`: Unix time, 0: not
    yet."""

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
    def of(cls, shown: JobShown) -> Job:
        spec = shown.spec
        settings = JobSettings(spec.bandwidth_bytes_s, spec.hold_s, spec.verify, spec.priority)
        same = {name: getattr(shown, name) for name in _SAME_OF_JOBS}
        return cls(paths=[text_of(path) for path in shown.paths], settings=settings, **same)

    def shown(self) -> JobShown:
        paths = [bytes_of(path) for path in self.paths]
        asked = {name: getattr(self.settings, name) for name in JobSettings.__struct_fields__}
        same = {name: getattr(self, name) for name in _SAME_OF_JOBS}
        return JobShown(paths=paths, spec=JobSpec(tuple(paths), **asked), **same)


_SAME_OF_JOBS: Final = tuple(
    name for name in Job.__struct_fields__ if name not in ("paths", "settings")
)


class Jobs(Answer, frozen=True):
    """The newest first."""

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
