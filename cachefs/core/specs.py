"""The specifications that a launcher passes to a process that it starts: one msgpack document on
standard input, so that nothing of it appears in a process title. The process reports one `Started`
on the ready descriptor."""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.messages import Failure
from cachefs.core.model import UfsSpec

HEARTBEATS: Final = 3  # a server's timeout is three times a client's: it may serve many mounts


class ServerSpec(msgspec.Struct, frozen=True):
    """An embedded server (master + worker): `python -I -m cachefs.launcher.embedded`."""

    home: str  # the state home; see `cachefs.launcher.state`
    source: UfsSpec  # its first source; others join by Attach
    cache_dir: str
    cache_size_bytes: int
    memory_limit_bytes: int = 0  # 0: a share of what the process may have
    metrics: str = ""  # HOST:PORT of the Prometheus page
    admin_socket: str = ""  # path of the socket of its admin API
    sync_interval_s: float = 60.0
    background_listings: int = 10  # a second
    admission: str = "fill"
    eviction: str = "sieve"
    idle_after_s: float = 3600.0
    files_ahead: int = 256  # small files to prefetch in the order of their names; 0: none
    origin_deadline_s: float = 30.0
    log_level: str = "info"
    log_to_stderr: bool = False
    trust_directories: bool = False  # warn about those that other users can write, but use them
    launch_fds: tuple[int, ...] = ()  # inherited launch locks, closed once Started was sent


class Security(msgspec.Struct, frozen=True):
    """The credentials and trust of a process on the network: paths of files, "" for none. See
    `cachefs.core.access` for the token file."""

    token_file: str = ""
    tls_cert: str = ""  # PEM: a server's certificate and its chain
    tls_key: str = ""
    tls_ca: str = ""  # PEM: authorities to trust, instead of the system's
    # The token file is that of this machine's cluster: on loopback the token is presented only to
    # processes of this user and of root.
    own_token: bool = False


class MasterAccess(msgspec.Struct, frozen=True):
    """How the commands about a mount reach its master, as the user of the mount chose it."""

    token_file: str = ""  # "": that of a master of this machine
    tls: bool = False
    tls_ca: str = ""


class MasterSpec(msgspec.Struct, frozen=True):
    """A master: `python -I -m cachefs.launcher.masterd`."""

    listen: str  # HOST:PORT, port 0: any free one
    store_dir: str
    security: Security = Security()
    token_home: str = ""  # the state home in which it creates a token; "": it creates none
    open_home: str = ""  # without tokens: the state home from which it removes its port's token
    origin_deadline_s: float = 30.0
    lost_after_s: float = 10.0  # a worker without a heartbeat for this time is lost
    background_listings: int = 10  # a second
    trust_directories: bool = False
    log_file: str = ""
    log_level: str = "info"
    log_to_stderr: bool = False


class WorkerSpec(msgspec.Struct, frozen=True):
    """A node's worker, a member of a cluster: `python -I -m cachefs.launcher.node`."""

    home: str
    master: str  # http(s)://host:port
    name: str  # of its directory among the nodes of this master in the state home
    tiers: tuple[str, ...]  # as `cachefs.core.tiers` reads them, the first one first
    listen: str = "127.0.0.1:0"
    socket: str = ""  # for the mounts of this machine; "": in the state home
    advertise: str = ""  # URL for peers; "": that of `listen`
    weight: float = -1.0  # -1: by capacity; 0: owns nothing
    stays: bool = True  # runs without a mount, too
    security: Security = Security()
    memory_limit_bytes: int = 0
    admission: str = "fill"
    eviction: str = "sieve"
    idle_after_s: float = 3600.0
    files_ahead: int = 256  # small files to prefetch in the order of their names; 0: none
    origin_deadline_s: float = 30.0
    migration_bytes_s: int = 200 << 20
    log_level: str = "info"
    log_to_stderr: bool = False
    trust_directories: bool = False
    launch_fds: tuple[int, ...] = ()  # as of `ServerSpec`


class Held(msgspec.Struct, frozen=True):
    """The descriptors that keep a mount alive. A process that inherits them can start a
    supervisor."""

    fuse_fd: int
    table_fd: int
    negotiated: bytes  # as `cachefs.fuse.supervisor.wire` encodes it


class DepositRef(msgspec.Struct, frozen=True):
    """The deposit of a mount in the node's holder, which keeps the mount alive. The processes
    that serve such a mount never unmount it."""

    holder: str  # path of the holder's socket
    key: str
    name: str  # of the claimant, for other processes
    device: str  # major:minor of the mount, whose mount point may not be visible here


class ClientSpec(msgspec.Struct, frozen=True):
    """A FUSE client: `python -I -m cachefs.fuse.client`."""

    home: str
    socket: str  # of the node's server
    source: UfsSpec
    mountpoint: str
    sync_interval_s: float = 60.0
    read_only: bool = True
    allow_other: bool = False
    default_permissions: bool = True
    uid: int = -1  # if the origin has none; -1: the mounting user
    gid: int = -1
    file_mode: int = 0o644
    dir_mode: int = 0o755
    transport: str = "pyfuse3"
    mount_options: tuple[str, ...] = ()  # see `cachefs.fuse.mount_flags`
    passthrough: str = "auto"  # "off": the kernel sends every read to the client
    log_file: str = ""
    log_level: str = "info"
    log_to_stderr: bool = False
    log_json: bool = False  # one JSON document a line
    debug: bool = False
    server: ServerSpec | None = None  # to restart the embedded server if it dies
    node: WorkerSpec | None = None  # to restart the node's worker of a cluster if none is running
    heartbeat_timeout_s: float = 10.0  # a client without a heartbeat for this time is replaced
    control_fd: int = -1  # to its supervisor, inherited; -1: no supervisor
    successor: bool = False  # it replaces a client that ended: the mount exists
    held: Held | None = None  # for a successor that is the only client of its mount
    worker_wait_s: float = 0.0  # >0: use only the worker at `socket`; wait this long for it
    memory_budget_bytes: int = 0  # a successor replaces a client that uses more; 0: no budget
    deposit: DepositRef | None = None  # None: this mount is in no holder
    # major:minor of the mount, from when it exists. Another mount may lie over it later.
    device: str = ""
    master_access: MasterAccess = MasterAccess()  # only recorded: a client calls no master


class OrphanedMount(msgspec.Struct, frozen=True):
    """A mount that lost its supervisor, and its client `pid`. Descriptors are inherited."""

    pid: int
    control_fd: int
    fuse_fd: int
    table_fd: int
    negotiated: bytes  # as `cachefs.fuse.supervisor.wire` encodes it
    serving: bool = True  # False: the client is still starting, and no other one serves


class SupervisorSpec(msgspec.Struct, frozen=True):
    """A supervisor: `python -I -m cachefs.fuse.supervisor`."""

    client: ClientSpec
    # Without `adopt` and `held` the supervisor mounts and starts a client.
    adopt: OrphanedMount | None = None  # a mount with its client
    held: Held | None = None  # a mount without a client


class Started(msgspec.Struct, frozen=True):
    """The one line (JSON) on a child's ready descriptor: it is ready, or why it failed."""

    pid: int
    failure: Failure | None = None
    warning: str = ""
    url: str = ""  # of a master or a worker
