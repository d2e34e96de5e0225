"""The messages about load jobs. See `cachefs.core.messages`."""

from __future__ import annotations

from cachefs.core.jobs import JobFailure, JobSpec, JobStatus
from cachefs.core.message import Message
from cachefs.core.model import NamespaceId


class SubmitJob(Message, frozen=True):
    """Starts a load job, or changes the settings of the running job with the same paths. `key`:
    drawn by the caller, so that a retry makes no second job ("": none). `more`: AddJobPaths follow;
    the job starts before them. Answered by JobSubmitted once durable. Raises BadConfig."""

    namespace: NamespaceId
    spec: JobSpec
    key: str = ""
    more: bool = False


class JobSubmitted(Message, frozen=True):
    job: int
    updated: bool = False  # the job existed


class AddJobPaths(Message, frozen=True):
    """Adds paths to a job that is being submitted, at most PATHS_PER_CALL. `first`: the index of
    the first one, so that a retry adds nothing twice. Answered by Done. Raises NotFound,
    BadConfig."""

    namespace: NamespaceId
    job: int
    first: int
    paths: list[bytes]
    last: bool = False


class GetJob(Message, frozen=True):
    """Answered by JobReply. Raises NotFound."""

    namespace: NamespaceId
    job: int


class JobReply(Message, frozen=True):
    job: JobStatus


class ListJobs(Message, frozen=True):
    """Requests at most `limit` jobs older than `before` (0: from the newest), the newest first."""

    namespace: NamespaceId
    before: int = 0
    limit: int = 100


class JobTable(Message, frozen=True):
    """Reply to ListJobs. `next`: the next call's `before`; 0: the list is complete."""

    jobs: list[JobStatus]
    next: int = 0


class GetJobFailures(Message, frozen=True):
    """Requests the failed files after an index in their list. Answered by JobFailures."""

    namespace: NamespaceId
    job: int
    after: int = 0


class JobFailures(Message, frozen=True):
    """Reply to GetJobFailures. `next`: the next call's `after`; 0: the list is complete."""

    failures: list[JobFailure]
    next: int = 0


class ControlJob(Message, frozen=True):
    """Changes the state of a job. `action`: "stop", "resume" (a stopped job, or one that failed for
    lack of space), "retry" (the failed files of an ended job) or "forget" (an ended or stopped
    job). Answered by JobReply once it is durable. Raises NotFound, InUse, BadConfig."""

    namespace: NamespaceId
    job: int
    action: str
