"""The wire protocol between a client (FUSE or CLI) and its node's server, on one unix socket.

The socket is SOCK_SEQPACKET, so one datagram is one frame: msgpack of a `Frame`, with at most one
descriptor (SCM_RIGHTS). Both sides send `PROTOCOL` in Hello/Welcome and accept a peer that is one
version older or newer. Unknown fields are ignored, new fields have defaults. Replies may arrive in
any order. A frame with id 0 from the server is an event.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cachefs.core import change_messages, errors, job_messages, order_messages, view_messages
from cachefs.core.message import DECODE_ERRORS
from cachefs.core.message import Message as Message
from cachefs.core.model import Inode, NamespaceId, UfsSpec
from cachefs.core.policies import Policy
from cachefs.core.syncs import Change, SyncStatus

PROTOCOL: Final = 1
MAX_FRAME_BYTES: Final = 192 << 10  # below net.core.wmem_default, which bounds a datagram
LIST_LIMIT: Final = 1000
COPY_BYTES: Final = 128 << 10  # file data in one frame
MOST_KEPT: Final = 3  # segments of one handle: forward reads, and a second reader

# Defined in modules of their own
AddJobPaths = job_messages.AddJobPaths
ControlJob = job_messages.ControlJob
GetJob = job_messages.GetJob
GetJobFailures = job_messages.GetJobFailures
JobFailures = job_messages.JobFailures
JobReply = job_messages.JobReply
JobSubmitted = job_messages.JobSubmitted
JobTable = job_messages.JobTable
ListJobs = job_messages.ListJobs
SubmitJob = job_messages.SubmitJob
ChangedFolders = change_messages.ChangedFolders
GetChangedFolders = change_messages.GetChangedFolders
AnnounceFunction = order_messages.AnnounceFunction
AnnounceOrder = order_messages.AnnounceOrder
EndOrder = order_messages.EndOrder
OrderState = order_messages.OrderState
OrderStateReply = order_messages.OrderStateReply
Cover = view_messages.Cover
CoverChanged = view_messages.CoverChanged
Freeze = view_messages.Freeze
ListViews = view_messages.ListViews
Thaw = view_messages.Thaw
Uncover = view_messages.Uncover
ViewStatus = view_messages.ViewStatus
ViewTable = view_messages.ViewTable


# ---- session -----------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first frame of a client, "fuse", "library" or "cli". A session of one of the first two
    keeps the server alive and gets events."""

    role: str
    pid: int
    protocol: int = PROTOCOL
    version: str = ""
    mountpoint: str = ""
    supervisor: int = 0  # its pid; a supervisor replaces a client that dies
    many_tiers: bool = False  # the client understands PublishedDirectory
    covers: bool = False  # the client lays covers, for all users of its mount
    # Uid, gid, mode of files, mode of directories where the origin has none; with `covers`
    defaults: list[int] = msgspec.field(default_factory=list)


class Welcome(Message, frozen=True):
    """Reply to Hello. A trusted client gets a descriptor of the `pub/` directory of the first tier.
    Those of other tiers arrive as PublishedDirectory events."""

    pid: int
    protocol: int = PROTOCOL
    version: str = ""
    published_dir: bool = False  # a descriptor is attached
    covers: bool = False  # the server knows covers: CoverChanged may be sent


class Attach(Message, frozen=True):
    """Makes a source known to the server, which checks a new source. Idempotent."""

    source: UfsSpec
    sync_interval_s: float = 60.0
    read_only: bool = True


class Attached(Message, frozen=True):
    """Reply to Attach. `warning`: for people (the origin is unreachable, an option was ignored)."""

    namespace: NamespaceId
    root: Inode
    warning: str = ""


class Detach(Message, frozen=True):
    """An event of the server, which stops: unmount and exit. Sent by a client: a request to
    stop."""

    reason: str = ""


class Leaving(Message, frozen=True):
    """The client's mount was removed, so no successor will connect. Not answered."""


class MountFacts(Message, frozen=True):
    """Facts of the client's mount, for people. Not answered. `why_not`: one line, the reason why
    the kernel does not read complete files directly; "" while it does."""

    transport: str
    passthrough: bool
    why_not: str = ""
    supervisor: int = 0
    counters: dict[str, int] = msgspec.field(default_factory=dict)


class Cancel(Message, frozen=True):
    """The caller of request `id` no longer waits. Shared work continues. The reply to `id` is an
    `Interrupted` failure, unless another reply was already sent."""

    id: int


class Done(Message, frozen=True):
    """The empty reply. A client also sends it as a ping, and the server returns it."""


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
    """Requests an inode. Fails with Stale if the ino was replaced or removed."""

    namespace: NamespaceId
    ino: int


class Found(Message, frozen=True):
    """Reply to Lookup and GetAttr. `inode` None: the name does not exist (a negative entry)."""

    inode: Inode | None
    valid_for_s: float


class ListDir(Message, frozen=True):
    """Requests the children of `ino` whose order key is greater than `after`, at most `limit`."""

    namespace: NamespaceId
    ino: int
    after: bytes = b""
    limit: int = LIST_LIMIT


class Dentry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name and its inode, still encoded: servers forward stored records without decoding them."""

    name: bytes
    inode: msgspec.Raw


class Listing(Message, frozen=True):
    """`next` is the order key to continue after; b"" at the end of the directory."""

    entries: list[Dentry]
    next: bytes
    valid_for_s: float


class Resolve(Message, frozen=True):
    """Walks `path` (bytes, '/'-separated, below the namespace root), for the CLI."""

    namespace: NamespaceId
    path: bytes


class Invalidate(Message, frozen=True):
    """Event: these dentries (parent ino, name) changed; `seq` is the position after them.
    `everything`: the client must drop all its cached names of the namespace. `policies`: some
    policies may have changed. `times`: TTLs or quotas of cached files changed, so workers request
    the rules of all their files again."""

    namespace: NamespaceId
    seq: int
    entries: list[tuple[int, bytes]] = msgspec.field(default_factory=list)
    everything: bool = False
    policies: bool = False
    times: bool = False


# ---- data --------------------------------------------------------------------------------------


class Open(Message, frozen=True):
    """Opens a file that the client did not find published. Waits until a small file is complete.
    `complete_needs_no_release`: the server may return handle 0 for a complete file. `nonce`: of the
    expected content, 0: any; the server answers Stale if the ino has another one."""

    namespace: NamespaceId
    ino: int
    complete_needs_no_release: bool = False
    past_tier: bool = False  # the tier's disk did not answer the client: bypass the tier
    nonce: int = 0


class Opened(Message, frozen=True):
    """Reply to Open. `handle` names the open in Ensure and Release; 0: the client must not release
    it (only complete files, and only with `complete_needs_no_release`). The read-only descriptor of
    a complete file has every byte. That of a partial cache file has only the ranges that Ensure
    granted; a hole reads as zeros. No descriptor: the cache refused the file. `tier`: the index of
    the file's tier; see TierState."""

    handle: int
    size: int
    complete: bool
    has_descriptor: bool
    tier: int = 0


class Ensure(Message, frozen=True):
    """Makes `size` bytes at `offset` readable. The reply covers a range that starts at `offset`.
    `takes_bytes`: the client accepts a reply that contains the data."""

    handle: int
    offset: int
    size: int
    past_tier: bool = False  # as in Open; holds for all later reads of this handle
    takes_bytes: bool = False


class Ensured(Message, frozen=True):
    """Reply to Ensure: bytes [start, end) are readable until Release. Without a descriptor, they
    are in the partial cache file. With one, they are in it at `offset - base` (a segment of the
    scratch area, for files that the cache refused). `data`: the bytes themselves, at most
    `COPY_BYTES`. The client keeps the latest `keep` segments of a handle. With 1 it closes that one
    before it requests another. With 0 it also closes a segment as soon as it was read to its
    end."""

    start: int
    end: int
    base: int = 0
    segment: bool = False
    complete: bool = False  # the whole file is readable from the cache file
    keep: int = MOST_KEPT
    data: bytes = b""


class TierState(Message, frozen=True):
    """Event: whether the disk of a tier answers. While it does not, clients open no published files
    there. Sent after Attached if it does not, and at every change. `doubtful`: the tier lost data,
    so clients bypass it for files that they opened there before."""

    in_service: bool
    tier: int = 0  # index in the node's list of tiers, the fastest first
    doubtful: bool = False


class PublishedDirectory(Message, frozen=True):
    """Event, for clients with `many_tiers`: the attached descriptor is the `pub/` directory of a
    tier and replaces the previous one; without a descriptor the tier has none. Sent after Attached,
    and when a tier is added, removed or replaced."""

    tier: int
    has_descriptor: bool


class Release(Message, frozen=True):
    """Closes a handle. Not answered."""

    handle: int


class Used(Message, frozen=True):
    """Reports warm opens in batches, for eviction and statistics. Not answered."""

    names: list[str]  # content id names
    hit_bytes: int = 0
    passthrough_bytes: int = 0  # part of `hit_bytes`: files that the kernel reads directly


# ---- operators ---------------------------------------------------------------------------------


class Status(Message, frozen=True):
    pass


class StatusReply(Message, frozen=True):
    """Plain values, see docs/operations.md."""

    status: dict[str, Any]


class CacheState(Message, frozen=True):
    """Requests how many bytes of each file are cached."""

    namespace: NamespaceId
    inos: list[int]


class CacheStateReply(Message, frozen=True):
    cached_bytes: list[int]


class Free(Message, frozen=True):
    """Frees the cached bytes of everything at or below `path`. Names stay."""

    namespace: NamespaceId
    path: bytes


class Freed(Message, frozen=True):
    files: int
    bytes: int
    busy_files: int  # open or mapped: freed by the kernel when the last user closes


class SetPolicy(Message, frozen=True):
    """Sets policy fields at a path, and removes the fields `unset`. Answered by PolicySet once the
    change is durable and, if it protects files, no worker can evict them (after 10 s at most).
    Raises BadConfig, and NotFound for a path that does not exist, unless it only removes fields.
    `node`: only `pin` is set or unset, as that of the node's freeze, beside those of others."""

    namespace: NamespaceId
    path: bytes
    policy: Policy
    unset: list[str] = msgspec.field(default_factory=list)
    node: str = ""


class PolicySet(Message, frozen=True):
    """Reply to SetPolicy: the policy set at the path now."""

    policy: Policy


class GetPolicies(Message, frozen=True):
    """Requests the policies at a path and those set below it. Answered by PoliciesAt."""

    namespace: NamespaceId
    path: bytes


class PolicySaid(msgspec.Struct, frozen=True):
    path: bytes
    policy: Policy


class PoliciesAt(Message, frozen=True):
    """Reply to GetPolicies. `policy`: the effective values; `where`: field -> the path that sets
    it; `said`: the policy set at this path. `below` is truncated, `below_count` is not. `quotas`:
    (path, bytes) of those that apply."""

    policy: Policy
    where: dict[str, str]
    said: Policy
    below: list[PolicySaid] = msgspec.field(default_factory=list)
    below_count: int = 0
    quotas: list[tuple[bytes, int]] = msgspec.field(default_factory=list)


class StartSync(Message, frozen=True):
    """Compares a path with its origin now, even if its names are fresh; `recursive`: and all below
    it. `dry_run`: only reports. Answered by SyncReply at once; poll with GetSync."""

    namespace: NamespaceId
    path: bytes
    recursive: bool = False
    dry_run: bool = False


class GetSync(Message, frozen=True):
    """Requests the state of a sync, with its changes from index `after` on. Raises NotFound."""

    namespace: NamespaceId
    sync: int
    after: int = 0
    stop: bool = False  # stop the sync


class SyncReply(Message, frozen=True):
    sync: SyncStatus
    changes: list[Change] = msgspec.field(default_factory=list)


Body = (
    Hello | Welcome | Attach | Attached | Detach | Leaving | MountFacts | Cancel | Done | Failure
    | Lookup | GetAttr | Found | ListDir | Listing | Resolve | Invalidate
    | Open | Opened | Ensure | Ensured | TierState | PublishedDirectory | Release | Used
    | Status | StatusReply | CacheState | CacheStateReply
    | Free | Freed
    | SetPolicy | PolicySet | GetPolicies | PoliciesAt
    | SubmitJob | JobSubmitted | AddJobPaths | GetJob | JobReply | ListJobs | JobTable
    | GetJobFailures | JobFailures | ControlJob | StartSync | GetSync | SyncReply
    | AnnounceOrder | AnnounceFunction | EndOrder | OrderState | OrderStateReply
    | GetChangedFolders | ChangedFolders
    | Cover | Uncover | CoverChanged | Freeze | Thaw | ListViews | ViewTable
)  # fmt: skip


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A datagram. The client draws an `id` per request; the reply has the same id."""

    id: int
    body: Body


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode(id: int, body: Message) -> bytes:
    return _encoder.encode((id, body))


def decode(data: bytes | bytearray | memoryview) -> Frame:
    """Decodes a frame. Raises ProtocolError."""
    try:
        return _decoder.decode(data)
    except DECODE_ERRORS as err:
        raise errors.ProtocolError(f"not a frame: {err}") from err


def failure_of(err: errors.CacheFSError) -> Failure:
    return Failure(err.code, err.cause, err.remedy, err.path, err.request_id)


def error_of(failure: Failure) -> errors.CacheFSError:
    """Returns the typed error. An unknown code (of a newer peer) becomes the base class (EIO)."""
    cls, request_id = errors.BY_CODE.get(failure.code, errors.CacheFSError), failure.request_id
    return cls(failure.cause, remedy=failure.remedy, path=failure.path, request_id=request_id)
