"""The wire protocol between nodes: calls to a master from workers, mounts' nodes and the CLI, and
calls between workers. HTTP/1.1; a call is `POST /v1/call` with msgpack of one `Call`. The reply is
msgpack of one `Answer` (a `Failure` with status 4xx or 5xx). File data: see `DATA_PATH`.

Version rule as in `cachefs.core.messages`: both sides send `PROTOCOL` in their first exchange
(`Register`, `Greeting`), unknown fields are ignored, new fields have defaults.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from cachefs.core import errors
from cachefs.core import messages as m
from cachefs.core.jobs import FileProgress, Task, TaskResult
from cachefs.core.message import DECODE_ERRORS, Message
from cachefs.core.model import ContentId, Inode, NamespaceId, Origin
from cachefs.core.placement import View
from cachefs.core.policies import Rule
from cachefs.core.ufs import AddUfs as AddUfs
from cachefs.core.ufs import GetUfs as GetUfs
from cachefs.core.ufs import ListUfs as ListUfs
from cachefs.core.ufs import PushEvents as PushEvents
from cachefs.core.ufs import RemoveUfs as RemoveUfs
from cachefs.core.ufs import SetUfs as SetUfs
from cachefs.core.ufs import UfsAdded as UfsAdded
from cachefs.core.ufs import UfsChanged as UfsChanged
from cachefs.core.ufs import UfsFound as UfsFound
from cachefs.core.ufs import UfsRow as UfsRow
from cachefs.core.ufs import UfsTable as UfsTable
from cachefs.core.verify import Verified as Verified
from cachefs.core.verify import Verify as Verify

PROTOCOL: Final = 1
DEFAULT_PORT: Final = 19998  # of a master
CALL_PATH: Final = "/v1/call"
MAX_CALL_BYTES: Final = 8 << 20
MAX_ANSWER_BYTES: Final = 32 << 20
BATCH_LIMIT: Final = 1000  # items of any list in a call

# GET {DATA_PATH}/{content id name}?ino=&first=&end=&epoch=[&have=1][&next=1&worker=] returns pages
# [first, end) of a content, all of one block and at most MAX_DATA_PAGES, as a raw body. `have=1`:
# only cached pages, no fill. `next=1`: the block's owners do not reply to the requesting worker;
# the receiver is next in rank and may fill in their place. `worker`: id of the intended receiver
# (not with `have`). `epoch`: of the view of the requesting worker. ORIGIN_HEADER (not with `have`)
# has the origin of the bytes and the replica count, so that a fill needs no call to the master.
# 200: the body, with CHECKSUMS_HEADER, of the first of these pages or of more. Failures have a
# body `Failure`: 404: not cached; 409: the receiver does not own the block in its view, whose
# epoch is in EPOCH_HEADER; 410: Stale; 422: an error that the origin replied, as it would to other
# workers; 502: the receiver does not reach the origin, or not in time; 503: too many requests; 507:
# no room. A receiver whose view is older than `epoch` first gets the newest one.
DATA_PATH: Final = "/v1/data"
CHECKSUMS_HEADER: Final = "X-CacheFS-Checksums"  # xxh3_64 of each page, 16 hex digits, ','
ORIGIN_HEADER: Final = "X-CacheFS-Origin"  # base64 of msgpack of an `Origin`
EPOCH_HEADER: Final = "X-CacheFS-Epoch"
SOURCE_HEADER: Final = "X-CacheFS-Source"  # "cache", or "origin" if the request led to a fill
MAX_DATA_PAGES: Final = 8

HEARTBEAT_S: Final = 2.0
LOST_AFTER_S: Final = 10.0  # five heartbeats; the default of `--lost-after`


# ---- membership ----------------------------------------------------------------------------------


class Register(Message, frozen=True):
    """A worker joins, or joins again. `weight` 0: it owns nothing (a node's own cache). `epoch`:
    the last one that it knows (-1: none, or a version that does not send it). `process`: a random
    number of the worker's process (0: not sent)."""

    worker: str  # id, see `Member`
    url: str
    weight: float
    host: str = ""
    capacity_bytes: int = 0
    version: str = ""
    protocol: int = PROTOCOL
    epoch: int = -1
    process: int = 0


class Registered(Message, frozen=True):
    """Reply to Register. A worker that knew another namespace drops its names. `store_run`: as in
    Greeted."""

    namespace: NamespaceId
    view: View
    heartbeat_s: float = HEARTBEAT_S
    protocol: int = PROTOCOL
    store_run: int = 0


class Heartbeat(Message, frozen=True):
    """A worker is alive; sent every `heartbeat_s`. `settled`: the last epoch for which all blocks
    that it sends or receives have arrived. `version`: of its view (-1: not sent). `url`: as in
    Register ("": not sent)."""

    worker: str
    epoch: int
    settled: int = 0
    capacity_bytes: int = 0
    used_bytes: int = 0
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # for people: tiers, hit bytes
    version: int = -1
    url: str = ""


class Beaten(Message, frozen=True):
    """Reply to Heartbeat. `view`: set if the worker's is outdated. `known` False: the worker must
    register again (the master restarted). `draining`: it must hand over its blocks."""

    view: View | None = None
    known: bool = True
    draining: bool = False


class Leave(Message, frozen=True):
    """A worker shuts down. Answered by Done. `process`: as in Register. It may arrive late, after
    the next process of the worker has registered: it is not about that one."""

    worker: str
    process: int = 0


class GetView(Message, frozen=True):
    """A long poll for a view later than epoch `after`, up to `wait_s`. Answered by ViewReply."""

    after: int = -1
    wait_s: float = 0.0


class ViewReply(Message, frozen=True):
    view: View


# ---- metadata (and Lookup, GetAttr, ListDir, Resolve of `cachefs.core.messages`) -----------------


class Greeting(Message, frozen=True):
    """The first call of a node or the CLI; also checks that the master is reachable."""

    version: str = ""
    protocol: int = PROTOCOL


class Greeted(Message, frozen=True):
    """Reply to Greeting. `store_run`: drawn by the master at each start of its store; 0: an older
    version. A node that sees another one distrusts its cached names."""

    namespace: NamespaceId
    version: str = ""
    protocol: int = PROTOCOL
    seq: int = 0  # the position of the event stream now
    epoch: int = 0
    store_run: int = 0


class Locate(Message, frozen=True):
    """Requests the origins of these files. Answered by Located."""

    namespace: NamespaceId
    inos: list[int]


class ListNext(Message, frozen=True):
    """A hint, see `MetadataService.list_next`. Answered by Done. Lists nothing if the caller's
    token is limited to a path and does not cover the directory above."""

    namespace: NamespaceId
    ino: int


class Place(msgspec.Struct, frozen=True):
    """The origin of a file, or the `failure` (Stale, IsADirectory, …) if it has none."""

    origin: Origin | None = None
    failure: m.Failure | None = None


class Located(Message, frozen=True):
    """Reply to Locate, in the order of its inos."""

    places: list[Place]


class ReportChanged(Message, frozen=True):
    namespace: NamespaceId
    ino: int


class PermitEviction(Message, frozen=True):
    """Requests to evict contents. `contents`: `ContentId.key` of each. Answered by Permitted."""

    namespace: NamespaceId
    contents: list[bytes]


class Permitted(Message, frozen=True):
    """Reply to PermitEviction: one flag for each content, in order."""

    allowed: list[bool]
    valid_for_s: float


class RulesOf(Message, frozen=True):
    """Requests the policies of `contents` (`ContentId.key` of each). Answered by Rules."""

    namespace: NamespaceId
    contents: list[bytes]


class Rules(Message, frozen=True):
    """Reply to RulesOf. `places` has the index in `rules` for each content, in order."""

    rules: list[Rule]
    places: list[int]


class Walk(Message, frozen=True):
    """Requests the next batch of the files below `ino`. `known`: only from the store. `cursor`: b""
    at first, then the one of the last reply. `limit`: files in a batch; 0: the master chooses.
    `shows_unlisted`: see `MetadataService.known_files`. Only the first call's `limit`, `known` and
    `shows_unlisted` count."""

    namespace: NamespaceId
    ino: int
    known: bool = False
    cursor: bytes = b""
    limit: int = 0
    shows_unlisted: bool = False


class Walked(Message, frozen=True):
    """Reply to Walk: (path below the namespace root, inode). `cursor` b"": the walk is complete.
    `unlisted`: directories up to now that were never listed, in a walk of known files;
    `shows_unlisted`: these are among the files."""

    files: list[tuple[bytes, Inode]]
    cursor: bytes
    unlisted: int = 0
    shows_unlisted: bool = False


class GetEvents(Message, frozen=True):
    """A long poll for invalidations after `after` (negative: from now on); waits up to `wait_s` for
    the first. Answered by Events, or by the failure PositionGone. `store_run`: the run of the
    master's store that `after` is of; 0: of a caller that does not tell."""

    namespace: NamespaceId
    after: int
    wait_s: float = 20.0
    store_run: int = 0


class Events(Message, frozen=True):
    """Reply to GetEvents, maybe empty. `seq`: the next call's `after`, in this `store_run` only."""

    events: list[m.Invalidate]
    seq: int
    store_run: int = 0


# ---- operators -----------------------------------------------------------------------------------


class ListWorkers(Message, frozen=True):
    pass


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as the master knows it. `state`: serving, draining, drained, lost. `twin_url`: of
    another process with the same id, whose tiers are a copy."""

    id: str
    url: str
    host: str
    state: str
    weight: float
    capacity_bytes: int
    used_bytes: int
    epoch: int
    settled: int
    seen_s: float  # since its last heartbeat
    version: str = ""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    twin_url: str = ""


class WorkerTable(Message, frozen=True):
    view: View
    rows: list[WorkerRow]


class Drain(Message, frozen=True):
    """Drains a worker (an id, a unique prefix of one, or host:port): it owns nothing from now on
    and hands over its blocks. `undo`: it owns blocks again. Answered by Done; raises NotFound."""

    worker: str
    undo: bool = False


class RemoveWorker(Message, frozen=True):
    """Removes a lost or drained worker. Answered by Done; raises NotFound, InUse."""

    worker: str


class MasterStatus(Message, frozen=True):
    """Requests the plain values of docs/operations.md. Answered by MasterStatusReply."""


class MasterStatusReply(Message, frozen=True):
    status: dict[str, Any]


class Work(Message, frozen=True):
    """A long poll of a worker's loader for tasks, with the outcomes of finished ones. Answered by
    Worked. `run`: of the last reply, "" at first. The master ignores outcomes of another run, and
    then hands the worker's tasks out again. `room_bytes`: size of the tasks that the worker accepts
    now, at least 64 KiB a file. `wait_s`: how long the master waits for a task. `seen`: the
    greatest task number received in this run, 0: none, -1: not sent. The reply repeats later tasks,
    which were lost, with the same numbers. `capacity_bytes`: of the worker's cache (-1: not sent).
    `progress`: of files in unfinished tasks; it replaces that of the previous poll. A new poll of a
    worker ends the wait of its previous one."""

    worker: str
    run: str
    outcomes: list[TaskResult]
    room_bytes: int
    wait_s: float = 0.0
    seen: int = -1
    capacity_bytes: int = -1
    progress: list[FileProgress] = msgspec.field(default_factory=list)


class Worked(Message, frozen=True):
    """Reply to Work. `running`: the running jobs and, for each, the bytes a second that this worker
    may fetch (0: no limit). The worker drops tasks of other jobs without an outcome."""

    run: str
    tasks: list[Task]
    running: dict[int, int]


# ---- between workers -----------------------------------------------------------------------------


class Have(Message, frozen=True):
    """Requests the cached pages of `contents` (`ContentId.key` of each). Answered by Had."""

    contents: list[bytes]


DISK_SILENT: Final = "a disk of its cache does not answer"  # the cause of an incomplete Had


class Had(Message, frozen=True):
    """Reply to Have: page bitmaps, in order (bit i: page i), as little-endian bytes. `incomplete`:
    a disk that may have more pages gave no answer."""

    pages: list[bytes]
    incomplete: bool = False


class Offer(Message, frozen=True):
    """Offers pages of blocks to a worker that owns them in `epoch`, and that may fetch them from
    `url`. The sender no longer owns these blocks, or is their primary owner. `replicas`: the
    replica count of each block, in order (empty: one). Answered by Done. The receiver fetches
    refused blocks when they are read."""

    worker: str
    url: str
    epoch: int
    blocks: list[tuple[bytes, int]]  # ContentId.key, block
    replicas: list[int] = msgspec.field(default_factory=list)


class Doubt(Message, frozen=True):
    """Reports that the receiver sent these pages with wrong checksums. The receiver verifies its
    copy, and drops the content if it is damaged. Answered by Done."""

    content: bytes
    pages: list[int]


class Drop(Message, frozen=True):
    """Frees these contents (an operator's `free`, sent to every worker). Answered by Dropped."""

    contents: list[bytes]


class Dropped(Message, frozen=True):
    files: int
    bytes: int
    busy_files: int


class WorkerStatus(Message, frozen=True):
    """Requests plain values. Answered by WorkerStatusReply."""


class WorkerStatusReply(Message, frozen=True):
    status: dict[str, Any]


class Batch(Message, frozen=True):
    """Several calls in one request, answered in order; at most BATCH_LIMIT. Batches do not nest."""

    calls: list[m.Lookup | m.GetAttr]


class Batched(Message, frozen=True):
    answers: list[m.Found | m.Failure]


Call = (
    Register | Heartbeat | Leave | GetView
    | Greeting | m.Lookup | m.GetAttr | m.ListDir | m.Resolve | Batch
    | RulesOf | m.SetPolicy | m.GetPolicies
    | Locate | ListNext | ReportChanged | PermitEviction | Walk | GetEvents | GetUfs
    | m.SubmitJob | m.AddJobPaths | m.GetJob | m.ListJobs | m.GetJobFailures | m.ControlJob | Work
    | m.StartSync | m.GetSync
    | AddUfs | SetUfs | PushEvents | RemoveUfs | ListUfs
    | ListWorkers | Drain | RemoveWorker | MasterStatus
    | Have | Offer | Doubt | Verify | Drop | WorkerStatus
)  # fmt: skip
Answer = (
    m.Done | m.Failure | Registered | Beaten | ViewReply
    | Greeted | m.Found | m.Listing | Batched
    | Rules | m.PolicySet | m.PoliciesAt
    | Located | Permitted | Walked | Events | UfsFound
    | UfsAdded | UfsChanged | UfsTable | WorkerTable | MasterStatusReply
    | m.JobSubmitted | m.JobReply | m.JobTable | m.JobFailures | Worked | m.SyncReply
    | Had | Verified | Dropped | WorkerStatusReply
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_calls = msgspec.msgpack.Decoder(Call)
_answers = msgspec.msgpack.Decoder(Answer)


def encode(body: Message) -> bytes:
    """Returns the msgpack of a call or a reply."""
    return _encoder.encode(body)


def decode_call(data: bytes | bytearray | memoryview) -> Call:
    """Returns the call. Raises ProtocolError."""
    try:
        return cast(Call, _calls.decode(data))
    except DECODE_ERRORS as err:
        raise errors.ProtocolError(f"not a call: {err}") from err


def decode_answer(data: bytes | bytearray | memoryview) -> Answer:
    """Returns the reply. Raises ProtocolError."""
    try:
        return cast(Answer, _answers.decode(data))
    except DECODE_ERRORS as err:
        raise errors.ProtocolError(f"not an answer: {err}") from err


def content_of(key: bytes) -> ContentId:
    """Returns the content id of a key in a call. Raises ProtocolError."""
    try:
        return ContentId.of_key(key)
    except ValueError as err:
        raise errors.ProtocolError(str(err)) from err
