"""The interfaces of a master as workers use them. The embedded server passes the master itself, a
cluster passes an HTTP client. All methods belong to one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from cachefs.core import messages as m
from cachefs.core.change_messages import ChangedFolders
from cachefs.core.jobs import JobSpec
from cachefs.core.model import ContentId, Inode, NamespaceId, Origin, UfsSpec
from cachefs.core.policies import Policy, Rule

# How long a call of the current task waits for an unreachable master, in seconds. A system call
# waits longer than a command, which reports that the master is unreachable.
master_wait_s: ContextVar[float] = ContextVar("asker_reach_s", default=30.0)
COMMAND_MASTER_WAIT_S: Final = 3.0


class Permission(msgspec.Struct, frozen=True):
    """The contents that may be evicted, of those requested, and the validity of that in seconds."""

    allowed: frozenset[str]  # ContentId.name
    valid_for_s: float = 10.0


class MetadataService(Protocol):
    """The namespace of one master. Raises the typed errors; NotFound never means "not ready"."""

    @property
    def namespace(self) -> NamespaceId: ...

    def lookup_nowait(self, parent: int, name: bytes) -> m.Found | None:
        """Returns the store's reply if it is fresh, else None. Raises NotADirectory, Stale."""

    async def lookup(self, parent: int, name: bytes) -> m.Found:
        """Returns a fresh reply, maybe from the origin. Cancellation leaves shared work running."""

    async def getattr(self, ino: int) -> m.Found:
        """Returns a fresh inode. Raises Stale if the ino was replaced or removed."""

    async def list_dir(self, ino: int, after: bytes, limit: int) -> m.Listing:
        """Returns a page of a fresh listing, which may still be in progress."""

    async def resolve(self, path: bytes) -> m.Found:
        """Walks a path; `inode` is None if a component is missing."""

    async def locate(self, ino: int) -> Origin:
        """Returns the origin of a file's bytes. Raises Stale, IsADirectory."""

    def locate_nowait(self, ino: int) -> Origin | None:
        """Returns the origin of a file's bytes if it is known locally, else None."""

    async def list_next(self, ino: int) -> None:
        """Prefetches the listing of the next sibling of a file's directory. A hint: a program opens
        the files of a directory in order and has reached this one. Returns once the first page is
        known, or at once if nothing is to be listed. Raises Stale and the errors of the listing;
        callers may ignore them. Cancellation leaves the listing running."""

    async def report_changed(self, ino: int) -> None:
        """Reports that the origin has another version or none; the master checks it."""

    def walk(self, ino: int) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """Yields every file below a directory (or the file itself) in batches of (path below the
        namespace root, inode). Lists the origin where the store is not fresh."""

    def known_files(
        self, ino: int, *, shows_unlisted: bool = False
    ) -> AsyncIterator[list[tuple[bytes, Inode]]]:
        """Yields like `walk`, from the store only, never from the origin. All below a directory
        arrives together. `shows_unlisted`: also the directories that were never listed, with `/` at
        the end of their paths. Raises Unsupported if the master cannot show them."""

    def ufs(self, key: str) -> UfsSpec: ...

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        """Returns which of these no policy protects now."""

    def events(self, after: int) -> AsyncIterator[m.Invalidate]:
        """Yields invalidations with `seq` > after (negative: from this call on), for ever. Raises
        PositionGone if the stream no longer has that position."""

    async def catch_up(self) -> None:
        """Waits a short time for the events of what the master has done before. Never raises."""

    def changed_folders(self, after: int) -> ChangedFolders:
        """Returns the folders whose names changed after a position (negative: none)."""

    def status(self) -> dict[str, Any]: ...


@runtime_checkable
class PositionedEvents(Protocol):
    """The position of the newest event, as far as known here. A metadata service implements it if
    directories of it can be frozen."""

    @property
    def position(self) -> int: ...


@runtime_checkable
class PolicyService(Protocol):
    """The policies of one namespace. A metadata service implements it if it has policies."""

    @property
    def policy_version(self) -> int:
        """A number that changes when TTLs or quotas of cached files do, as far as known here."""

    async def set_policy(
        self, path: bytes, policy: Policy, unset: Sequence[str], node: str = ""
    ) -> Policy:
        """Sets policy fields at a path, removes the fields `unset`, and returns the policy set
        there. `node`: only `pin` is set or unset, as that of its freeze. The change is durable;
        with `pin`, no worker can evict files there any more. Raises NotFound, BadConfig. If
        cancelled, the change may have happened."""

    async def policies_at(self, path: bytes) -> m.PoliciesAt:
        """Returns the policies that apply at a path. Raises BadConfig."""

    async def rules_of(self, contents: Sequence[ContentId]) -> list[Rule]:
        """Returns the rule of each content, in order."""


@runtime_checkable
class JobService(Protocol):
    """The load jobs of one namespace. A metadata service implements it if it has jobs. Methods
    answer like the messages of their names in `cachefs.core.messages`, and raise their errors."""

    async def submit_job(
        self, spec: JobSpec, key: str = "", *, more: bool = False
    ) -> m.JobSubmitted:
        """Submits a job. If cancelled, it may have happened: submit again with the same `key`."""

    async def add_job_paths(
        self, job: int, first: int, paths: Sequence[bytes], *, last: bool
    ) -> None: ...

    async def job(self, job: int) -> m.JobReply: ...

    async def jobs(self, before: int, limit: int) -> m.JobTable: ...

    async def job_failures(self, job: int, after: int) -> m.JobFailures: ...

    async def control_job(self, job: int, action: str) -> m.JobReply: ...


@runtime_checkable
class SyncService(Protocol):
    """Syncs on demand of one namespace, like `JobService`."""

    async def start_sync(self, path: bytes, *, recursive: bool, dry_run: bool) -> m.SyncReply: ...

    async def sync(self, sync: int, after: int, *, stop: bool) -> m.SyncReply: ...


class SourceServices(Protocol):
    """The namespaces, by source: of the embedded server, or of a node's masters."""

    async def attach(self, body: m.Attach) -> m.Attached: ...
    def service(self, namespace: NamespaceId) -> MetadataService: ...
    def status(self) -> list[dict[str, Any]]: ...
