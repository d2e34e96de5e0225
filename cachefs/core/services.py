"""What a worker asks of a master, as an interface: the embedded server passes the master itself,
a cluster passes an HTTP client. All methods belong to one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from cachefs.core.jobs import JobSpec
from cachefs.core.messages import (
    Attach,
    Attached,
    Found,
    Invalidate,
    JobFailures,
    JobReply,
    JobSubmitted,
    JobTable,
    Listing,
    PoliciesAt,
    SyncReply,
)
from cachefs.core.model import ContentId, Inode, NamespaceId, Origin, UfsSpec
from cachefs.core.policies import Policy, Rule

# For how long a question of the current task waits for a master that is not reached, in seconds. A
# system call waits longer than a command, which says instead that the master is away.
asker_reach_s: ContextVar[float] = ContextVar("asker_reach_s", default=30.0)
COMMAND_REACH_S: Final = 3.0


class Permission(msgspec.Struct, frozen=True):
    """Which of the contents asked about may be evicted, and for how long that holds (s)."""

    allowed: frozenset[str]  # ContentId.name
    valid_for_s: float = 10.0


class MetadataService(Protocol):
    """The namespace of one master. Raises the typed errors; NotFound is never "not ready"."""

    @property
    def namespace(self) -> NamespaceId: ...

    def lookup_nowait(self, parent: int, name: bytes) -> Found | None:
        """The answer when the store has a fresh one, else None. Raises NotADirectory, Stale."""

    async def lookup(self, parent: int, name: bytes) -> Found:
        """A fresh answer, from the origin where need be. Cancellation leaves shared work
        running."""

    async def getattr(self, ino: int) -> Found:
        """Raises Stale when the ino was replaced or is gone."""

    async def list_dir(self, ino: int, after: bytes, limit: int) -> Listing:
        """A page of a fresh listing. Pages come while the origin is still being listed."""

    async def resolve(self, path: bytes) -> Found:
        """Walks a path; `inode` None where a component is missing."""

    async def locate(self, ino: int) -> Origin:
        """Where the bytes of a file come from. Raises Stale, IsADirectory."""

    def locate_nowait(self, ino: int) -> Origin | None:
        """The same when it is known here, else None."""

    async def list_next(self, ino: int) -> None:
        """A hint: a program opens the files of a directory in order, and has come to this one.
        Begins to list the directory behind it, which is opened next as a rule;
        returns once something of that is known, or at once where nothing is to be asked. Raises
        what asking raises, and Stale; who gave the hint need not care. Cancellation leaves the
        listing going on."""

    async def report_changed(self, ino: int) -> None:
        """The worker saw another version, or none, at the origin: look again and invalidate."""

    def walk(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """Every file below a directory (or the file itself) in batches of (path below the namespace
        root, inode), listing the origin where it is not known or not fresh."""

    def known_files(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """As `walk`, from the store alone: never asks the origin."""

    def ufs(self, key: str) -> UfsSpec: ...

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        """Which of these no policy protects now."""

    def events(self, after: int) -> AsyncIterator[Invalidate]:
        """Invalidations with `seq` > after (negative: from this call on), for ever. Raises
        PositionGone when that is too old."""

    def status(self) -> dict[str, Any]: ...


@runtime_checkable
class PolicyService(Protocol):
    """The policies of one namespace: what a metadata service that has them is, too."""

    @property
    def policy_version(self) -> int:
        """Changes whenever what is cached got other times to live, or quotas, as far as that is
        known here."""

    async def set_policy(self, path: bytes, policy: Policy, unset: Sequence[str]) -> Policy:
        """Says more at a path, and leaves the fields `unset` open again; what is said there then.
        Durable, and with pin: no worker may evict anything there any more. Raises NotFound,
        BadConfig. Cancelled: it may have happened."""

    async def policies_at(self, path: bytes) -> PoliciesAt:
        """Raises BadConfig."""

    async def rules_of(self, contents: Sequence[ContentId]) -> list[Rule]:
        """What a worker needs to know of each, in order."""


@runtime_checkable
class JobService(Protocol):
    """The load jobs of one namespace: what a metadata service that has them is, too. Each answers
    as the message of its name in `cachefs.core.messages` says, and raises what that names."""

    async def submit_job(self, spec: JobSpec, key: str = "", *, more: bool = False) -> JobSubmitted:
        """Cancelled: it may have happened; the same `key` tells."""

    async def add_job_paths(
        self, job: int, first: int, paths: Sequence[bytes], *, last: bool
    ) -> None: ...

    async def job(self, job: int) -> JobReply: ...

    async def jobs(self, before: int, limit: int) -> JobTable: ...

    async def job_failures(self, job: int, after: int) -> JobFailures: ...

    async def control_job(self, job: int, action: str) -> JobReply: ...


@runtime_checkable
class SyncService(Protocol):
    """Syncs on demand of one namespace, as `JobService`."""

    async def start_sync(self, path: bytes, *, recursive: bool, dry_run: bool) -> SyncReply: ...

    async def sync(self, sync: int, after: int, *, stop: bool) -> SyncReply: ...


class Sources(Protocol):
    """Who knows the namespaces: the embedded server, or a node's connection to its masters."""

    async def attach(self, body: Attach) -> Attached: ...
    def service(self, namespace: NamespaceId) -> MetadataService: ...
    def status(self) -> list[dict[str, Any]]: ...
