"""The wire between nodes: what workers, mounts' nodes and the CLI ask of a master, and what workers
ask of each other. HTTP/1.1; a call is `POST /v1/call` with msgpack of one `Call`, answered by
msgpack of one `Answer` (a `Failure` with status 4xx or 5xx). Bytes: see `DATA_PATH`.

Version rule as in `cachefs.core.messages`: both sides say `PROTOCOL` where they meet (`Register`,
`Greeting`), unknown fields are ignored, new fields have defaults.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from cachefs.core import errors
from cachefs.core.jobs import Outcome, Task
from cachefs.core.messages import (
    AddJobPaths,
    ControlJob,
    Done,
    Failure,
    Found,
    GetAttr,
    GetJob,
    GetJobFailures,
    GetPolicies,
    GetSync,
    Invalidate,
    JobFailures,
    JobReply,
    JobSubmitted,
    JobTable,
    ListDir,
    Listing,
    ListJobs,
    Lookup,
    Message,
    PoliciesAt,
    PolicySet,
    Resolve,
    SetPolicy,
    StartSync,
    SubmitJob,
    SyncReply,
)
from cachefs.core.model import Inode, NamespaceId, Origin, UfsSpec
from cachefs.core.placement import View
from cachefs.core.policies import Rule
from cachefs.core.verify import Verified as Verified
from cachefs.core.verify import Verify as Verify

PROTOCOL: Final = 1
DEFAULT_PORT: Final = 19998  # of a master
CALL_PATH: Final = "/v1/call"
MAX_CALL_BYTES: Final = 8 << 20
MAX_ANSWER_BYTES: Final = 32 << 20
BATCH_LIMIT: Final = 1000  # items of any list in a call

# GET {DATA_PATH}/{content id name}?ino=&first=&end=&epoch=[&have=1][&next=1&worker=] answers pages
# [first, end) of a content, all of one block and at most MAX_DATA_PAGES, as a raw body. `have=1`:
# only what is here, ask nobody else. `next=1`: the asker gets no answer from the block's owners,
# the receiver is the next in rank and may bring it in their place. `worker`: whom the asker means
# (not with `have`). `epoch`: of the view by which it asks. ORIGIN_HEADER says where the bytes come
# from (not with `have`), and how many own it, so that who brings them needs no master for that.
# 200: the body, with CHECKSUMS_HEADER, of the first of these pages or of more; 404: not here
# (have=1); 409: the receiver does not own the block in its view, body `Failure`, EPOCH_HEADER says
# which; 410: Stale; 502: the origin failed; 503: too many requests; 507: no room; all with a body
# `Failure`. A receiver with an older view than the asker's asks the master first.
DATA_PATH: Final = "/v1/data"
CHECKSUMS_HEADER: Final = "X-CacheFS-Checksums"  # xxh3_64 of each page, 16 hex digits, ','
ORIGIN_HEADER: Final = "X-CacheFS-Origin"  # base64 of msgpack of an `Origin`
EPOCH_HEADER: Final = "X-CacheFS-Epoch"
SOURCE_HEADER: Final = "X-CacheFS-Source"  # "cache" or "origin": where the bytes came from
MAX_DATA_PAGES: Final = 8

HEARTBEAT_S: Final = 2.0
LOST_AFTER_S: Final = 10.0  # five heartbeats; where a master is not told otherwise


# ---- membership ----------------------------------------------------------------------------------


class Register(Message, frozen=True):
    """A worker joins, or comes back. `weight` 0: it owns nothing (a node's own cache). `epoch`: the
    last one that it knows (-1: none, or not said)."""

    worker: str  # id, see `Member`
    url: str
    weight: float
    host: str = ""
    capacity_bytes: int = 0
    version: str = ""
    protocol: int = PROTOCOL
    epoch: int = -1


class Registered(Message, frozen=True):
    """`namespace` is the master's; a worker that knew another one forgets what it had of it.
    `store_run`: as in Greeted."""

    namespace: NamespaceId
    view: View
    heartbeat_s: float = HEARTBEAT_S
    protocol: int = PROTOCOL
    store_run: int = 0


class Heartbeat(Message, frozen=True):
    """Sent every `heartbeat_s`. `settled`: the epoch for which all that the worker has to hand over
    or to take over is where it belongs. `version`: of the view that it has (-1: not said)."""

    worker: str
    epoch: int
    settled: int = 0
    capacity_bytes: int = 0
    used_bytes: int = 0
    facts: dict[str, Any] = msgspec.field(default_factory=dict)  # shown to people: tiers, hit bytes
    version: int = -1


class Beaten(Message, frozen=True):
    """`view` where it is another one than the worker's. `known` False: register again (the master
    was restarted, or had given the worker up). `draining`: hand everything over."""

    view: View | None = None
    known: bool = True
    draining: bool = False


class Leave(Message, frozen=True):
    """A worker ends, and says so. Answered by Done."""

    worker: str


class GetView(Message, frozen=True):
    """Answered by ViewReply. `after`: waits up to `wait_s` for a later epoch than that."""

    after: int = -1
    wait_s: float = 0.0


class ViewReply(Message, frozen=True):
    view: View


# ---- metadata (and Lookup, GetAttr, ListDir, Resolve of `cachefs.core.messages`) -----------------


class Greeting(Message, frozen=True):
    """First call of a node or the CLI; also a question whether the master is there."""

    version: str = ""
    protocol: int = PROTOCOL


class Greeted(Message, frozen=True):
    """`store_run`: drawn by the master at each start of its store; 0: its version draws none. A
    node that hears another one distrusts all that it knows: the store may be an earlier one."""

    namespace: NamespaceId
    version: str = ""
    protocol: int = PROTOCOL
    seq: int = 0  # the position of the event stream now
    epoch: int = 0
    store_run: int = 0


class Locate(Message, frozen=True):
    """Where these files' bytes come from."""

    namespace: NamespaceId
    inos: list[int]


class ListNext(Message, frozen=True):
    """See `MetadataService.list_next`. Answered by Done, also where a token that is limited to a
    path does not reach the directory above: nothing is listed then."""

    namespace: NamespaceId
    ino: int


class Place(msgspec.Struct, frozen=True):
    """One of the two: a `failure` (Stale, IsADirectory, …) for what has no bytes."""

    origin: Origin | None = None
    failure: Failure | None = None


class Located(Message, frozen=True):
    """In the order of the question."""

    places: list[Place]


class ReportChanged(Message, frozen=True):
    namespace: NamespaceId
    ino: int


class PermitEviction(Message, frozen=True):
    """`contents`: `ContentId.key` of each."""

    namespace: NamespaceId
    contents: list[bytes]


class Permitted(Message, frozen=True):
    """One flag for each content asked about, in order."""

    allowed: list[bool]
    valid_for_s: float


class RulesOf(Message, frozen=True):
    """What do policies say of these? `contents`: `ContentId.key` of each. For workers."""

    namespace: NamespaceId
    contents: list[bytes]


class Rules(Message, frozen=True):
    """In the order of the question. Few different ones: `rules`, and the place in it of each."""

    rules: list[Rule]
    places: list[int]


class Walk(Message, frozen=True):
    """The files below `ino`, a batch at a time. `known`: from the store alone. `cursor`: b"" at
    first, then the last answer's. `limit`: files of a batch, 0: as the master likes; what the first
    call says holds for the walk."""

    namespace: NamespaceId
    ino: int
    known: bool = False
    cursor: bytes = b""
    limit: int = 0


class Walked(Message, frozen=True):
    """(path below the namespace root, inode). `cursor` b"": that was all. `unlisted`: directories
    so far that were never listed, where the walk is of what is known."""

    files: list[tuple[bytes, Inode]]
    cursor: bytes
    unlisted: int = 0


class GetEvents(Message, frozen=True):
    """Invalidations after `after` (negative: from now on); waits up to `wait_s` for the first.
    Answered by Events, or by the failure PositionGone."""

    namespace: NamespaceId
    after: int
    wait_s: float = 20.0


class Events(Message, frozen=True):
    """`seq`: ask again after it, in this `store_run` alone. `events` may be empty."""

    events: list[Invalidate]
    seq: int
    store_run: int = 0


class GetUfs(Message, frozen=True):
    """Which source has this key (`Origin.ufs`)? Answered by UfsFound; raises NotFound."""

    key: str


class UfsFound(Message, frozen=True):
    source: UfsSpec


# ---- operators -----------------------------------------------------------------------------------


class AddUfs(Message, frozen=True):
    """Puts a source at a directory of the namespace ("/imagenet"), which is made. Idempotent for
    the same source. Raises what the origin answers, and InUse where another source is."""

    path: bytes
    source: UfsSpec
    sync_interval_s: float = 60.0


class UfsAdded(Message, frozen=True):
    root: Inode
    warning: str = ""


class RemoveUfs(Message, frozen=True):
    """Answered by Done. Raises NotFound."""

    path: bytes


class ListUfs(Message, frozen=True):
    pass


class UfsRow(msgspec.Struct, frozen=True):
    path: bytes
    source: UfsSpec
    sync_interval_s: float
    origin_down: bool = False
    warning: str = ""


class UfsTable(Message, frozen=True):
    rows: list[UfsRow]


class ListWorkers(Message, frozen=True):
    pass


class WorkerRow(msgspec.Struct, frozen=True):
    """`state`: serving, draining, drained, lost."""

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


class WorkerTable(Message, frozen=True):
    view: View
    rows: list[WorkerRow]


class Drain(Message, frozen=True):
    """A worker (id, a unique start of one, or host:port) owns nothing from now on and hands over
    what it has. `undo`: it owns again. Answered by Done; raises NotFound."""

    worker: str
    undo: bool = False


class RemoveWorker(Message, frozen=True):
    """Forgets a worker that is lost or drained. Answered by Done; raises NotFound, InUse."""

    worker: str


class MasterStatus(Message, frozen=True):
    """Answered by MasterStatusReply: plain values, see docs/operations.md."""


class MasterStatusReply(Message, frozen=True):
    status: dict[str, Any]


class Work(Message, frozen=True):
    """A worker's loader: what became of its tasks, and how many bytes' worth of tasks it would take
    now (in `room_bytes`; a task of small files counts at least 64 KiB a file). Waits up to `wait_s`
    for a task when there is none. Answered by Worked. `run`: of the last answer, "" at first:
    outcomes of another run of the master mean nothing and are passed over; whoever asks with
    another run has no tasks, those that it had are handed out again. `seen`: the greatest task
    number that it got in this run, 0: none; later ones were lost on the way, and come again with
    the same numbers (-1: not said). One question at a time: a later one ends an earlier one's wait.
    `capacity_bytes`: all that its cache may hold (-1: not said)."""

    worker: str
    run: str
    outcomes: list[Outcome]
    room_bytes: int
    wait_s: float = 0.0
    seen: int = -1
    capacity_bytes: int = -1


class Worked(Message, frozen=True):
    """`running`: jobs whose tasks are still wanted, and how many bytes a second this worker may
    fetch for each (0: no limit); tasks of other jobs are dropped without an outcome."""

    run: str
    tasks: list[Task]
    running: dict[int, int]


# ---- between workers -----------------------------------------------------------------------------


class Have(Message, frozen=True):
    """What does a worker have of these contents? `contents`: `ContentId.key`."""

    contents: list[bytes]


class Had(Message, frozen=True):
    """Page bitmaps, in order (bit i: page i), as little-endian bytes."""

    pages: list[bytes]


class Offer(Message, frozen=True):
    """A worker that no longer owns these blocks, or is the first of their owners, has pages of
    them: the receiver, who owns them in `epoch`, may fetch them from `url`. `replicas`: how many
    own each block, in order (empty: one). Answered by Done; what is refused is fetched when
    read."""

    worker: str
    url: str
    epoch: int
    blocks: list[tuple[bytes, int]]  # ContentId.key, block
    replicas: list[int] = msgspec.field(default_factory=list)


class Doubt(Message, frozen=True):
    """These pages came from the receiver with other bytes than their checksums say: it looks at
    what it has, and drops the content if it is damaged. Answered by Done."""

    content: bytes
    pages: list[int]


class Drop(Message, frozen=True):
    """Free these contents (an operator's `free`, on every worker). Answered by Dropped."""

    contents: list[bytes]


class Dropped(Message, frozen=True):
    files: int
    bytes: int
    busy_files: int


class WorkerStatus(Message, frozen=True):
    """Answered by MasterStatusReply's like: WorkerStatusReply."""


class WorkerStatusReply(Message, frozen=True):
    status: dict[str, Any]


class Batch(Message, frozen=True):
    """Many calls in one request, answered in order; at most BATCH_LIMIT, no Batch in a Batch."""

    calls: list[Lookup | GetAttr]


class Batched(Message, frozen=True):
    answers: list[Found | Failure]


Call = (
    Register | Heartbeat | Leave | GetView
    | Greeting | Lookup | GetAttr | ListDir | Resolve | Batch | RulesOf | SetPolicy | GetPolicies
    | Locate | ListNext | ReportChanged | PermitEviction | Walk | GetEvents | GetUfs
    | SubmitJob | AddJobPaths | GetJob | ListJobs | GetJobFailures | ControlJob | Work
    | StartSync | GetSync
    | AddUfs | RemoveUfs | ListUfs | ListWorkers | Drain | RemoveWorker | MasterStatus
    | Have | Offer | Doubt | Verify | Drop | WorkerStatus
)  # fmt: skip
Answer = (
    Done | Failure | Registered | Beaten | ViewReply
    | Greeted | Found | Listing | Batched
    | Rules | PolicySet | PoliciesAt
    | Located | Permitted | Walked | Events | UfsFound
    | UfsAdded | UfsTable | WorkerTable | MasterStatusReply
    | JobSubmitted | JobReply | JobTable | JobFailures | Worked | SyncReply
    | Had | Verified | Dropped | WorkerStatusReply
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_calls = msgspec.msgpack.Decoder(Call)
_answers = msgspec.msgpack.Decoder(Answer)


def encode(body: Message) -> bytes:
    return _encoder.encode(body)


def decode_call(data: bytes | bytearray | memoryview) -> Call:
    """Raises ProtocolError."""
    try:
        return cast(Call, _calls.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise errors.ProtocolError(f"not a call: {err}") from err


def decode_answer(data: bytes | bytearray | memoryview) -> Answer:
    """Raises ProtocolError."""
    try:
        return cast(Answer, _answers.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise errors.ProtocolError(f"not an answer: {err}") from err
