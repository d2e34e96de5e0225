"""The problems of a mount or a cluster, from the status documents of its servers. Pure.

`health(facts, now)` is the only place that decides. `cachefs health`, `doctor`, `status`, `top` and
`/api/v1/health` show its list. `facts_of` takes the relevant fields of a status document and
ignores the rest.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from cachefs.core.units import format_duration, format_size

UNSETTLED_AFTER_S: Final = 600.0  # if blocks move for longer, an operator must look
STORE_FREE_BYTES: Final = 64 << 20  # with less free space the store cannot grow
CERTIFICATE_LEFT_S: Final = 14 * 86_400.0  # a certificate is reported this long before it expires
QUOTA_SLACK: Final = 64  # a quota is full if less than 1/64 of it is left
FAILED_FOR_S: Final = 86_400.0  # how long a failed job is reported


class Severity(enum.StrEnum):
    """The severity of a problem. `error`: reads fail or bypass the cache, or soon will. `warning`:
    all reads are served, but something needs attention."""

    ERROR = "error"
    WARNING = "warning"


CODES: Final[dict[str, Severity]] = {
    "MOUNT_DEAD": Severity.ERROR,
    "MOUNT_GONE": Severity.ERROR,
    "ORIGIN_DOWN": Severity.ERROR,
    "CREDENTIALS_EXPIRED": Severity.ERROR,
    "ORIGIN_REFUSES": Severity.ERROR,
    "MASTER_AWAY": Severity.ERROR,
    "STORE_DISK": Severity.ERROR,
    "TIER_DEGRADED": Severity.ERROR,
    "TIER_FULL": Severity.WARNING,
    "WORKER_LOST": Severity.WARNING,
    "WORKER_TWIN": Severity.WARNING,
    "DAMAGED": Severity.WARNING,
    "QUOTA_FULL": Severity.WARNING,
    "CERTIFICATE_EXPIRES": Severity.WARNING,  # an error after the expiry
    "CERTIFICATE_UNUSABLE": Severity.WARNING,
    "JOB_FAILED": Severity.WARNING,
    "JOB_WAITS": Severity.WARNING,
    "MEMORY": Severity.WARNING,
    "NOT_SETTLED": Severity.WARNING,
    "VERSION_SKEW": Severity.WARNING,
}


class HealthProblem(msgspec.Struct, frozen=True):
    """A problem. `code`: see the table in docs/operations.md. `severity`: error (reads fail or
    bypass the cache) or warning. `since_s`: wall time in seconds, 0 if unknown. `subject`: the
    source, worker, directory or job concerned. `remedy`: what to do."""

    code: str
    severity: str
    since_s: float
    subject: str
    cause: str
    remedy: str

    def one_line(self, now: float) -> str:
        """Returns the problem as one line for people."""
        lasts = f" for {format_duration(max(0.0, now - self.since_s))}" if self.since_s else ""
        return f"{self.code}{lasts}: {self.subject}: {self.cause}; {self.remedy}"


def problem_lines(problems: Iterable[HealthProblem], now: float) -> list[str]:
    """Returns a line for each problem, for all commands. `now`: wall time, s."""
    return [f"{one.severity}: {one.one_line(now)}" for one in problems]


# ---- facts ---------------------------------------------------------------------------------------


class JobFacts(msgspec.Struct, frozen=True):
    """A load job that failed or waits. `ended_at_s`: wall time of a failure."""

    job: int
    message: str
    ended_at_s: float = 0.0


class StoreFacts(msgspec.Struct, frozen=True):
    """The directory of a master's store, and the free space on its disk; -1: unknown."""

    path: str = ""
    free_bytes: int = -1
    cause: str = ""  # of the last failed commit


class SourceFacts(msgspec.Struct, frozen=True):
    """An origin (`url`) as a master sees it, or the namespace of a `source`: that of an embedded
    server with its `sources`, jobs and store, or of a node with its `master`."""

    url: str = ""
    source: str = ""
    origin_down: bool = False
    origin_refuses: bool = False
    down_since_s: float = 0.0
    down_code: str = ""
    down_cause: str = ""
    down_remedy: str = ""
    master: str = ""
    master_down: bool = False
    sources: list[SourceFacts] = []
    failed_jobs: list[JobFacts] = []
    waiting_jobs: list[JobFacts] = []
    store: StoreFacts = StoreFacts()


class TierFacts(msgspec.Struct, frozen=True):
    """A cache directory."""

    path: str = ""
    state: str = "normal"
    cause: str = ""
    since_s: float = 0.0
    is_full: bool = False  # the disk is full although the limit allows more
    limit_bytes: int = 0
    used_bytes: int = 0


class MemoryFacts(msgspec.Struct, frozen=True):
    limit_bytes: int = 0
    used_bytes: int = 0


class QuotaFacts(msgspec.Struct, frozen=True):
    """A quota, and the bytes that count against it on all nodes."""

    path: str
    quota_bytes: int
    used_bytes: int


class CertificateFacts(msgspec.Struct, frozen=True):
    """The certificate that a server presents. `expires_at_s`: wall time; 0: no certificate.
    `cause`: why its files, which have changed since, cannot be used."""

    path: str = ""
    expires_at_s: float = 0.0
    cause: str = ""


class CacheFacts(msgspec.Struct, frozen=True):
    """A worker's cache. `bad_pages`: number of damaged pages found since its start. `origins`:
    those whose bytes it could not read lately."""

    tiers: list[TierFacts] = []
    origins: list[SourceFacts] = []
    memory: MemoryFacts = MemoryFacts()
    bad_pages: int = 0


class MemberFacts(msgspec.Struct, frozen=True):
    """A worker of a cluster as its master sees it."""

    id: str = ""
    url: str = ""
    host: str = ""
    state: str = ""
    weight: float = 0.0
    seen_s: float = 0.0
    version: str = ""
    tiers: list[TierFacts] = []
    certificate: CertificateFacts = CertificateFacts()
    twin_url: str = ""
    origins: list[SourceFacts] = []  # whose bytes it could not read lately


class Facts(msgspec.Struct, frozen=True):
    """The input of `health`. `mount_is_dead`: no process serves the mount point. `mount_is_gone`:
    its cluster no longer has the directory that it shows."""

    mountpoint: str = ""
    mount_is_dead: bool = False
    mount_is_gone: bool = False
    version: str = ""
    sources: list[SourceFacts] = []
    cache: CacheFacts = CacheFacts()
    workers: list[MemberFacts] = []
    quotas: list[QuotaFacts] = []
    failed_jobs: list[JobFacts] = []
    waiting_jobs: list[JobFacts] = []
    store: StoreFacts = StoreFacts()
    certificate: CertificateFacts = CertificateFacts()
    unsettled_since_s: float = 0.0


def facts_of(tree: dict[str, Any]) -> Facts:
    """Returns the facts in a status document. Raises ValueError for a field of another type."""
    if not isinstance(tree.get("workers"), list):  # a master's own document has counts here
        tree = {name: value for name, value in tree.items() if name != "workers"}
    try:
        return msgspec.convert(tree, Facts, strict=False)
    except msgspec.ValidationError as err:
        raise ValueError(f"not a status document: {err}") from err


# ---- decisions -----------------------------------------------------------------------------------


def health(facts: Facts, now: float) -> list[HealthProblem]:
    """Returns the problems: errors first, then in the order of `CODES`. `now`: wall time, s."""
    found = [
        *_mount(facts),
        *(one for source in facts.sources for one in _source(source, now)),
        *(one for tier in facts.cache.tiers for one in _tier(tier, "")),
        *_cache(facts.cache),
        *_reads(facts),
        *(one for member in facts.workers for one in _member(member, facts.version, now)),
        *(_quota(one) for one in facts.quotas if _is_used_up(one)),
        *_master(facts, now),
        *_certificate(facts.certificate, "the master", now),
        *_settling(facts, now),
    ]
    order = {code: place for place, code in enumerate(CODES)}
    return sorted(found, key=lambda one: (one.severity != Severity.ERROR, order[one.code]))


def verdict(problems: Sequence[HealthProblem]) -> int:
    """Returns the exit code of `cachefs health`: 0 no problems, 1 only warnings, 2 errors."""
    if not problems:
        return 0
    return 2 if any(one.severity == Severity.ERROR for one in problems) else 1


def problem(
    code: str, subject: str, cause: str, remedy: str, since_s: float = 0.0
) -> HealthProblem:
    """Returns a problem with the severity of its code."""
    return HealthProblem(code, CODES[code].value, since_s, subject, cause, remedy)


def _mount(facts: Facts) -> Iterator[HealthProblem]:
    if facts.mount_is_dead:
        cause, where = "no process serves this mount", facts.mountpoint
        yield problem(
            "MOUNT_DEAD", where, cause, "clear it: cachefs doctor --fix, then mount again"
        )

    if facts.mount_is_gone:
        cause = "the cluster has no such directory any more: programs get ESTALE"
        remedy = "add its source again (cachefs ufs add), or unmount it"
        yield problem("MOUNT_GONE", facts.mountpoint, cause, remedy)


def _source(source: SourceFacts, now: float) -> Iterator[HealthProblem]:
    """Yields the problems of an origin, or of a namespace and all its origins."""
    if source.master_down:
        cause = "the master does not answer; this node serves the names that it has cached"
        remedy = "check on its machine that it runs, and its log; start it: cachefs master"
        yield problem("MASTER_AWAY", source.master, cause, remedy)
    if source.origin_down or source.origin_refuses:
        yield _origin(source)
    for one in source.sources:
        yield from _source(one, now)
    yield from _master(source, now)


def _reads(facts: Facts) -> Iterator[HealthProblem]:
    """Yields the origins that reads of this node do not reach; not those that are down for the
    master, too."""
    sources = [one for source in facts.sources for one in (source, *source.sources)]
    down = {one.url for one in sources if one.origin_down}
    for origin in facts.cache.origins:
        if origin.url not in down:
            yield _origin(origin, f"{origin.url} from this node")


def _origin(source: SourceFacts, subject: str = "") -> HealthProblem:
    code, usual = "ORIGIN_DOWN", "check the network and the endpoint"
    if source.down_code == "credentials-missing":
        code, usual = "CREDENTIALS_EXPIRED", "renew the credentials"
    elif source.origin_refuses:
        code, usual = "ORIGIN_REFUSES", "check that the source exists, and its permissions"
    cause = source.down_cause or "it does not answer"
    remedy = source.down_remedy or usual
    return problem(code, subject or source.url, cause, remedy, source.down_since_s)


def _master(facts: Facts | SourceFacts, now: float) -> Iterator[HealthProblem]:
    """Yields the problems of a master's store and of its load jobs."""
    yield from _store(facts.store)
    place = _place_of_jobs(facts)
    for job in facts.failed_jobs:
        if now - job.ended_at_s < FAILED_FOR_S:
            named = f"{job.job}{place}"
            remedy = f"see why: cachefs jobs show {named}; then cachefs jobs retry {named}"
            yield problem("JOB_FAILED", f"job {job.job}", job.message, remedy, job.ended_at_s)
    for job in facts.waiting_jobs:
        remedy = f"remove the cause, or stop the job: cachefs jobs stop {job.job}{place}"
        yield problem("JOB_WAITS", f"job {job.job}", job.message, remedy)


def _place_of_jobs(facts: Facts | SourceFacts) -> str:
    """Returns the argument that names the jobs of an embedded server; "" for a cluster: commands
    name its master by --master."""
    if isinstance(facts, Facts) or facts.master or not facts.source:
        return ""
    return f" {shlex.quote(facts.source)}"


def _store(store: StoreFacts) -> Iterator[HealthProblem]:
    if store.cause:
        remedy = f"free space, or repair the disk of {store.path}"
        yield problem("STORE_DISK", store.path, store.cause, remedy)
    elif 0 <= store.free_bytes < STORE_FREE_BYTES:
        cause = f"only {format_size(store.free_bytes)} are free for names and policies"
        yield problem("STORE_DISK", store.path, cause, f"free space on the disk of {store.path}")


def _tier(tier: TierFacts, worker: str) -> Iterator[HealthProblem]:
    if tier.state == "normal":
        return
    subject = f"{worker} {tier.path}".strip()
    used = f"{format_size(tier.used_bytes)} of {format_size(tier.limit_bytes)} are used"
    if tier.is_full:
        cause = f"{tier.cause}: its disk is full, {used}"
        remedy = "free space on that disk, or give a smaller --cache-size"
        yield problem("TIER_FULL", subject, cause, remedy, tier.since_s)
    else:
        cause = f"{tier.state}: {tier.cause}; reads bypass it"
        remedy = "check that disk (dmesg), or use another directory"
        yield problem("TIER_DEGRADED", subject, cause, remedy, tier.since_s)


def _cache(cache: CacheFacts) -> Iterator[HealthProblem]:
    if cache.bad_pages:
        pages = "1 damaged page" if cache.bad_pages == 1 else f"{cache.bad_pages} damaged pages"
        cause = f"{pages} found since the start, and dropped"
        yield problem("DAMAGED", "the cache", cause, "check the disk and the memory (dmesg)")
    memory = cache.memory
    if memory.limit_bytes and memory.used_bytes > memory.limit_bytes:
        cause = f"{format_size(memory.used_bytes)} of {format_size(memory.limit_bytes)} are used"
        yield problem("MEMORY", "the server", cause, "give a larger --memory-limit")


def _member(member: MemberFacts, version: str, now: float) -> Iterator[HealthProblem]:
    if not member.weight:
        return
    name = f"worker {member.id[:8]} ({member.host or member.url})"
    if member.state == "lost":
        remedy = f"start it again, or remove it: cachefs workers remove {member.id[:8]}"
        cause = "it sends no heartbeat; its blocks are read from other workers or the origin"
        yield problem("WORKER_LOST", name, cause, remedy, now - member.seen_s)
        return
    if member.twin_url:
        cause = f"a process at {member.twin_url} has the same id: one of both has a copied tier"
        remedy = "stop that one, remove the file worker-id from its tiers, and start it again"
        yield problem("WORKER_TWIN", name, cause, remedy)
    if member.version and version and member.version != version:
        cause = f"it runs {member.version}, the master {version}"
        yield problem("VERSION_SKEW", name, cause, "install one version on all machines")
    for tier in member.tiers:
        yield from _tier(tier, name)
    for origin in member.origins:
        yield _origin(origin, f"{origin.url} from {name}")
    yield from _certificate(member.certificate, name, now)


def _certificate(certificate: CertificateFacts, server: str, now: float) -> Iterator[HealthProblem]:
    if certificate.cause:
        cause = f"{certificate.cause}; the former certificate is presented until it restarts"
        yield problem("CERTIFICATE_UNUSABLE", server, cause, "repair the files")
    left_s = certificate.expires_at_s - now
    if not certificate.expires_at_s or left_s >= CERTIFICATE_LEFT_S:
        return
    remedy = f"install a new one at {certificate.path} of {server}, which reads it again"
    if left_s > 0:
        cause = f"its certificate expires in {format_duration(left_s)}"
        yield problem("CERTIFICATE_EXPIRES", server, cause, remedy)
        return
    cause = "its certificate has expired: clients refuse it"
    expired = problem("CERTIFICATE_EXPIRES", server, cause, remedy, certificate.expires_at_s)
    yield msgspec.structs.replace(expired, severity=Severity.ERROR.value)


def _is_used_up(quota: QuotaFacts) -> bool:
    """Returns True if less than 1/QUOTA_SLACK is left, so that most files are refused."""
    return quota.quota_bytes - quota.used_bytes <= quota.quota_bytes // QUOTA_SLACK


def _quota(quota: QuotaFacts) -> HealthProblem:
    sizes = f"{format_size(quota.used_bytes)} of {format_size(quota.quota_bytes)} are used"
    remedy = f"give a larger one: cachefs quota {shlex.quote(quota.path)} SIZE"
    return problem("QUOTA_FULL", quota.path, f"{sizes}; no more files are cached", remedy)


def _settling(facts: Facts, now: float) -> Iterator[HealthProblem]:
    since_s = facts.unsettled_since_s
    if since_s and now - since_s > UNSETTLED_AFTER_S:
        cause = "blocks have been moving to new owners for more than 10 minutes"
        yield problem("NOT_SETTLED", "the cluster", cause, "see: cachefs workers", since_s)
