"""The wire: frames between a client (FUSE or CLI) and its node's server, on one unix socket.

The socket is SOCK_SEQPACKET, so one datagram is one frame: msgpack of `Request` or `Reply`, with at
most one descriptor (SCM_RIGHTS). Version rule: both sides say `PROTOCOL` in Hello/Welcome and work
with peers one version away either way; unknown fields are ignored, new fields have defaults.
Requests may be answered in any order; `Reply.id` 0 is an event that nobody asked for.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cachefs.core import errors
from cachefs.core.jobs import JobFailure, JobShown, JobSpec
from cachefs.core.model import Inode, NamespaceId, UfsSpec
from cachefs.core.policies import Policy
from cachefs.core.syncs import Change, SyncShown

PROTOCOL: Final = 1
MAX_FRAME_BYTES: Final = 192 << 10  # below net.core.wmem_default, which bounds a datagram
LIST_LIMIT: Final = 1000
COPY_BYTES: Final = 128 << 10  # of a file in one frame
MOST_KEPT: Final = 3  # segments of one handle: forward reads, and a reader beside them


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all bodies; the tag is the class name."""


# ---- session -----------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First frame of a client. `role` is "fuse" or "cli"; a fuse session keeps the server alive."""

    role: str
    pid: int
    protocol: int = PROTOCOL
    version: str = ""
    mountpoint: str = ""
    supervisor: int = 0  # its pid; a client that has one is followed by another when it dies
    many_tiers: bool = False  # it understands PublishedDirectory


class Welcome(Message, frozen=True):
    """Answer to Hello. Its descriptor is the `pub/` directory of the first tier for clients that
    are trusted; those of other tiers come as events, see PublishedDirectory."""

    pid: int
    protocol: int = PROTOCOL
    version: str = ""
    published_dir: bool = False  # a descriptor is attached


class Attach(Message, frozen=True):
    """Make this source known to the server (idempotent). Checks it when it was never seen
    before."""

    source: UfsSpec
    sync_interval_s: float = 60.0
    read_only: bool = True


class Attached(Message, frozen=True):
    """`warning` is a line for people (the origin is unreachable, an option was ignored)."""

    namespace: NamespaceId
    root: Inode
    warning: str = ""


class Detach(Message, frozen=True):
    """Server to clients (event): unmount and end, the server is stopping. Client to server:
    stop."""

    reason: str = ""


class Leaving(Message, frozen=True):
    """A client says that its mount is gone: no successor comes. Answered by nothing."""


class MountFacts(Message, frozen=True):
    """What a client tells of its mount, for people. Answered by nothing. `why_not`: one line why
    the kernel does not read complete files by itself, "" while it does."""

    transport: str
    passthrough: bool
    why_not: str = ""
    supervisor: int = 0
    counters: dict[str, int] = {}


class Cancel(Message, frozen=True):
    """The caller of request `id` no longer waits. Shared work goes on; no reply comes for `id`
    but an `Interrupted` failure, unless the answer was already on its way."""

    id: int


class Done(Message, frozen=True):
    """The empty answer. A client that asks for a sign of life sends it, and gets it back."""


class Failure(Message, frozen=True):
    """An error on the wire; see `failure_of` and `error_of`."""

    code: str
    cause: str
    remedy: str = ""
    path: str = ""
    request_id: str = ""


# ---- metadata ----------------------------------------------------------------------------------


class Lookup(Message, frozen=True):
    namespace: NamespaceId
    parent: int
    name: bytes


class GetAttr(Message, frozen=True):
    """By ino. Stale when the ino was replaced or is gone."""

    namespace: NamespaceId
    ino: int


class Found(Message, frozen=True):
    """Answer to Lookup and GetAttr. `inode` is None for "no such name" (a negative entry)."""

    inode: Inode | None
    valid_for_s: float


class ListDir(Message, frozen=True):
    """Children of `ino` whose order key is greater than `after`, at most `limit`."""

    namespace: NamespaceId
    ino: int
    after: bytes = b""
    limit: int = LIST_LIMIT


class Dentry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name and its inode, still encoded (servers pass stored records on without decoding
    them)."""

    name: bytes
    inode: msgspec.Raw


class Listing(Message, frozen=True):
    """`next` is the order key to continue after; b"" at the end of the directory."""

    entries: list[Dentry]
    next: bytes
    valid_for_s: float


class Resolve(Message, frozen=True):
    """Walk `path` (bytes, '/'-separated, below the namespace root) for the CLI."""

    namespace: NamespaceId
    path: bytes


class Invalidate(Message, frozen=True):
    """Event: these dentries (parent ino, name) changed; `seq` is the position after them.
    `everything` tells the client to drop all that it knows of the namespace. `policies`: some
    changed (and so they may have with `everything`); `times`: such as concern what is cached
    already, workers ask again about all that they have."""

    namespace: NamespaceId
    seq: int
    entries: list[tuple[int, bytes]] = []
    everything: bool = False
    policies: bool = False
    times: bool = False


# ---- data --------------------------------------------------------------------------------------


class Open(Message, frozen=True):
    """Open a file that the client did not find published. Waits for small files to be whole.
    `complete_needs_no_release`: the server may answer a complete file with handle 0. `nonce`: of
    the content that is meant, 0: any; the server answers Stale where the ino has another one."""

    namespace: NamespaceId
    ino: int
    complete_needs_no_release: bool = False
    past_tier: bool = False  # the tier's disk does not answer the client: give nothing of it
    nonce: int = 0


class Opened(Message, frozen=True):
    """`handle` names the open in Ensure and Release; 0: nothing is kept, nothing is to be released
    (only complete files, and only where the client said so). The descriptor, if any, is read-only:
    complete: every byte of the file is in it. Otherwise it is the partial cache file: read only
    what Ensure granted from it (a hole reads as zeros). None where the cache refused the file.
    `tier`: of the node's tiers, where the file is; see TierState."""

    handle: int
    size: int
    complete: bool
    has_descriptor: bool
    tier: int = 0


class Ensure(Message, frozen=True):
    """Make `size` bytes at `offset` readable; the answer covers a part that starts at `offset`.
    `takes_bytes`: the client understands an answer with the bytes themselves."""

    handle: int
    offset: int
    size: int
    past_tier: bool = False  # as in Open: from now on, for this handle
    takes_bytes: bool = False


class Ensured(Message, frozen=True):
    """Bytes [start, end) can be read now and until Release. Without a descriptor: from the partial
    cache file. With one: from it, at `offset - base` (a segment of the scratch area, for what the
    cache refused). `data`: the bytes themselves, at most `COPY_BYTES`, for clients that say
    `takes_bytes`. The client keeps the latest `keep` segments of a handle while it is read; with 1
    it closes that one before it asks for another; with 0 it also closes it as soon as it was read
    to its end."""

    start: int
    end: int
    base: int = 0
    segment: bool = False
    complete: bool = False  # the whole file can be read from the cache file
    keep: int = MOST_KEPT
    data: bytes = b""


class TierState(Message, frozen=True):
    """Event: whether the disk of a tier of the node answers. While it does not, clients open
    nothing there by themselves. Sent after Attached if it does not, and at every change.
    `doubtful`: bytes there are lost: what was opened there is read past the tier from now on."""

    in_service: bool
    tier: int = 0  # its place in the node's list of tiers, the fastest first
    doubtful: bool = False


class PublishedDirectory(Message, frozen=True):
    """Event, for clients that said `many_tiers`: the `pub/` directory of a tier, attached as a
    descriptor, in place of any other of that tier; without one, that tier has none now. Sent after
    Attached, and when a tier comes, goes, or is another directory."""

    tier: int
    has_descriptor: bool


class Release(Message, frozen=True):
    """Close a handle. Answered by nothing."""

    handle: int


class Used(Message, frozen=True):
    """Batched report of warm opens, for eviction and statistics. Answered by nothing."""

    names: list[str]  # content id names
    hit_bytes: int = 0
    passthrough_bytes: int = 0  # of these: of files that the kernel was given


# ---- operators ---------------------------------------------------------------------------------


class Status(Message, frozen=True):
    pass


class StatusReply(Message, frozen=True):
    """A tree of plain values, see docs/operations.md."""

    status: dict[str, Any]


class CacheState(Message, frozen=True):
    """How much of each of these files is cached."""

    namespace: NamespaceId
    inos: list[int]


class CacheStateReply(Message, frozen=True):
    cached_bytes: list[int]


class Free(Message, frozen=True):
    """Drop the cached bytes of everything below `path`; names stay."""

    namespace: NamespaceId
    path: bytes


class Freed(Message, frozen=True):
    files: int
    bytes: int
    busy_files: int  # open or mapped: freed by the kernel when the last user closes


class SetPolicy(Message, frozen=True):
    """Say this at a path, and leave the fields `unset` open again. Answered by PolicySet once it is
    durable and, where it protects something, no worker may evict that any more (10 s at most).
    Raises NotFound for a path where nothing is, unless it only leaves things open; BadConfig."""

    namespace: NamespaceId
    path: bytes
    policy: Policy
    unset: list[str] = []


class PolicySet(Message, frozen=True):
    """What is said at the path now."""

    policy: Policy


class GetPolicies(Message, frozen=True):
    """What holds at a path, and what is said below it? Answered by PoliciesAt."""

    namespace: NamespaceId
    path: bytes


class PolicySaid(msgspec.Struct, frozen=True):
    path: bytes
    policy: Policy


class PoliciesAt(Message, frozen=True):
    """`policy`: what holds; `where`: field -> who says so; `said`: what is said at this very path.
    `below` is cut; there are `below_count`. `quotas`: (path, bytes) of those that hold for it."""

    policy: Policy
    where: dict[str, str]
    said: Policy
    below: list[PolicySaid] = []
    below_count: int = 0
    quotas: list[tuple[bytes, int]] = []


class SubmitJob(Message, frozen=True):
    """A load job. One runs for a set of paths: the same again changes its other settings. `key`:
    drawn by the caller, so that a repeated question makes one job ("": none). `more`: AddJobPaths
    follow before the list of paths is whole; the job begins at once all the same. Durable when
    answered, by JobSubmitted. Raises BadConfig."""

    namespace: NamespaceId
    spec: JobSpec
    key: str = ""
    more: bool = False


class JobSubmitted(Message, frozen=True):
    job: int
    updated: bool = False  # it was there


class AddJobPaths(Message, frozen=True):
    """More paths of a job that is still being submitted, at most PATHS_PER_CALL; `first`: the place
    of the first of them in the job's list, so that a repeated question adds nothing twice. Answered
    by Done. Raises NotFound, BadConfig."""

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
    job: JobShown


class ListJobs(Message, frozen=True):
    """The newest first, those older than `before` (0: from the newest), at most `limit`."""

    namespace: NamespaceId
    before: int = 0
    limit: int = 100


class JobTable(Message, frozen=True):
    """`next`: to be asked for as `before`; 0: that was all."""

    jobs: list[JobShown]
    next: int = 0


class GetJobFailures(Message, frozen=True):
    """Failed files after a place in their list. Answered by JobFailures."""

    namespace: NamespaceId
    job: int
    after: int = 0


class JobFailures(Message, frozen=True):
    """`next`: the place to ask after; 0: that was all."""

    failures: list[JobFailure]
    next: int = 0


class ControlJob(Message, frozen=True):
    """`action`: "stop", "resume" (a stopped one goes on; one that failed for want of room, too),
    "retry" (an ended one tries its failed files again) or "forget" (one that ended or is
    stopped). Answered by JobReply once it is durable. Raises NotFound, InUse, BadConfig."""

    namespace: NamespaceId
    job: int
    action: str


class StartSync(Message, frozen=True):
    """Compare a path (`recursive`: and all below it) with its origin now, whatever is fresh.
    `dry_run`: change nothing. Answered by SyncReply at once; asked again with GetSync."""

    namespace: NamespaceId
    path: bytes
    recursive: bool = False
    dry_run: bool = False


class GetSync(Message, frozen=True):
    """Raises NotFound. `after`: changes from that place in their list on."""

    namespace: NamespaceId
    sync: int
    after: int = 0
    stop: bool = False  # end it here


class SyncReply(Message, frozen=True):
    sync: SyncShown
    changes: list[Change] = []


Body = (
    Hello | Welcome | Attach | Attached | Detach | Leaving | MountFacts | Cancel | Done | Failure
    | Lookup | GetAttr | Found | ListDir | Listing | Resolve | Invalidate
    | Open | Opened | Ensure | Ensured | TierState | PublishedDirectory | Release | Used
    | Status | StatusReply | CacheState | CacheStateReply
    | Free | Freed
    | SetPolicy | PolicySet | GetPolicies | PoliciesAt
    | SubmitJob | JobSubmitted | AddJobPaths | GetJob | JobReply | ListJobs | JobTable
    | GetJobFailures | JobFailures | ControlJob | StartSync | GetSync | SyncReply
)  # fmt: skip


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One datagram. `id` is drawn by the client per request; a reply carries the request's."""

    id: int
    body: Body


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode(id: int, body: Message) -> bytes:
    return _encoder.encode((id, body))


def decode(data: bytes | bytearray | memoryview) -> Frame:
    """Raises ProtocolError for what is no frame of ours."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise errors.ProtocolError(f"not a frame: {err}") from err


def failure_of(err: errors.CacheFSError) -> Failure:
    return Failure(err.code, err.cause, err.remedy, err.path, err.request_id)


def error_of(failure: Failure) -> errors.CacheFSError:
    """The typed error; a code of a newer peer becomes the base class (EIO)."""
    cls, request_id = errors.BY_CODE.get(failure.code, errors.CacheFSError), failure.request_id
    return cls(failure.cause, remedy=failure.remedy, path=failure.path, request_id=request_id)
