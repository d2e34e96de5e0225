"""What a launcher tells the processes it starts: one msgpack document on their standard input, so
that nothing of it shows in a process title. Each answers with one `Started` on the ready
descriptor.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cachefs.core.messages import Failure
from cachefs.core.model import UfsSpec

HEARTBEATS: Final = 3  # a server gets three times a client's time: it may be busy for all mounts


class ServerSpec(msgspec.Struct, frozen=True):
    """An embedded server (master + worker): `python -I -m cachefs.launcher.embedded`."""

    home: str  # the state home; see `cachefs.launcher.state`
    source: UfsSpec  # its first source; others join by Attach
    cache_dir: str
    cache_size_bytes: int
    memory_limit_bytes: int = 0  # 0: a share of what the process may have
    metrics: str = ""  # HOST:PORT at which it answers Prometheus
    admin_socket: str = ""  # path of the socket of its admin API
    sync_interval_s: float = 60.0
    admission: str = "fill"
    eviction: str = "sieve"
    idle_after_s: float = 3600.0
    files_ahead: int = 256  # small files that are brought before they are opened in order; 0: none
    origin_deadline_s: float = 30.0
    log_level: str = "info"
    log_to_stderr: bool = False
    trust_directories: bool = False  # warn of those that others may write, and use them
    launch_fds: tuple[int, ...] = ()  # of launch locks, inherited: closed once it has said Started


class Security(msgspec.Struct, frozen=True):
    """How a process knows others on the network, and is known to them: paths of files, "" for none.
    See `cachefs.core.access` for the token file."""

    token_file: str = ""
    tls_cert: str = ""  # PEM: a server's certificate, and those that lead to its authority
    tls_key: str = ""
    tls_ca: str = ""  # PEM: authorities to trust, instead of the system's
    # The token is that of this machine's cluster: on loopback it is presented only to processes of
    # this user and of root.
    own_token: bool = False


class MasterSpec(msgspec.Struct, frozen=True):
    """A master: `python -I -m cachefs.launcher.masterd`."""

    listen: str  # HOST:PORT, port 0: any free one
    store_dir: str
    security: Security = Security()
    token_home: str = ""  # the state home in which it makes a token; "": it makes none
    open_home: str = ""  # without tokens: the state home in which the token of its port is removed
    origin_deadline_s: float = 30.0
    lost_after_s: float = 10.0  # a worker that is silent for so long is lost
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
    advertise: str = ""  # URL at which peers reach it; "": of where it listens
    weight: float = -1.0  # -1: by capacity; 0: owns nothing
    stays: bool = True  # without a mount too
    security: Security = Security()
    memory_limit_bytes: int = 0
    admission: str = "fill"
    eviction: str = "sieve"
    idle_after_s: float = 3600.0
    files_ahead: int = 256  # small files that are brought before they are opened in order; 0: none
    origin_deadline_s: float = 30.0
    migration_bytes_s: int = 200 << 20
    log_level: str = "info"
    log_to_stderr: bool = False
    trust_directories: bool = False
    launch_fds: tuple[int, ...] = ()  # as of `ServerSpec`


class Held(msgspec.Struct, frozen=True):
    """What keeps a mount alive: a process that inherits these descriptors can start a supervisor
    for it."""

    fuse_fd: int
    table_fd: int
    negotiated: bytes  # as `cachefs.fuse.supervisor.wire` encodes it


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
    uid: int = -1  # shown where the origin has none; -1: the user who mounts
    gid: int = -1
    file_mode: int = 0o644
    dir_mode: int = 0o755
    transport: str = "pyfuse3"
    mount_options: tuple[str, ...] = ()  # see `cachefs.fuse.mount_flags`
    passthrough: str = "auto"  # "off": the kernel asks for every byte
    log_file: str = ""
    log_level: str = "info"
    log_to_stderr: bool = False
    debug: bool = False
    server: ServerSpec | None = None  # how to start the embedded server again, should it die
    node: WorkerSpec | None = None  # the same of a cluster's node, where there is no other
    heartbeat_timeout_s: float = 10.0  # a client that does not beat for so long is replaced
    control_fd: int = -1  # to its supervisor, inherited; -1: it has none
    successor: bool = False  # it follows one that ended: the mount is there
    held: Held | None = None  # of a successor that is the only client of its mount


class Adopted(msgspec.Struct, frozen=True):
    """A mount whose supervisor is lost, and its client `pid`; descriptors are inherited."""

    pid: int
    control_fd: int
    fuse_fd: int
    table_fd: int
    negotiated: bytes  # as `cachefs.fuse.supervisor.wire` encodes it
    serving: bool = True  # False: the client is still starting, and nobody serves


class SupervisorSpec(msgspec.Struct, frozen=True):
    """A supervisor: `python -I -m cachefs.fuse.supervisor`."""

    client: ClientSpec
    adopt: Adopted | None = None  # None: it mounts, and starts a client


class Started(msgspec.Struct, frozen=True):
    """The one line (JSON) on a child's ready descriptor: it answers now, or why it never will."""

    pid: int
    failure: Failure | None = None
    warning: str = ""
    url: str = ""  # where a master or a worker listens
