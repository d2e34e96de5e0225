"""The table of all settings of CacheFS. Flags, `mount -o` options, environment variables, keys of
configuration files and docs/configuration.md are generated from it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

ENV_PREFIX: Final = "CACHEFS_"
LIST_SEPARATOR: Final = ";"

Scalar = str | int | float | bool | None


class Type(enum.Enum):
    """The type of a value: how it is written, and its Python type."""

    TEXT = "text"  # str; "" = not set
    PATH = "path"  # str, absolute; "" = not set
    URL = "URL"  # str, http:// or https://; "" = not set
    SIZE = "size"  # int, bytes
    DURATION = "duration"  # float, seconds
    SWITCH = "yes or no"  # bool; None = decided at mount time
    ID = "number"  # int; -1 = not set
    COUNT = "count"  # int
    MODE = "octal mode"  # int, permission bits
    CHOICE = "choice"  # str, one of `choices`
    LIST = "list"  # str, joined by ";"; a flag that may be repeated, a list in TOML


class Setting(msgspec.Struct, frozen=True):
    """A setting. `shown`: what an empty default stands for, in words."""

    name: str
    type: Type
    default: Scalar
    help: str
    shown: str = ""
    choices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ("mount",)  # that accept it as a flag
    minimum: float = 0
    option: str = ""  # the flag's name, if it differs from the setting's

    @property
    def flag(self) -> str:
        return "--" + (self.option or self.name).replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def taken_by(self) -> str:
        """The commands that accept the flag, for people; "" = mount alone."""
        if self.commands == ("mount",):
            return ""
        if self.commands == EVERY:
            return "every command"
        groups = set(self.commands)  # a group stands for its commands
        clients = set(CLIENT_COMMANDS) <= groups
        others = [c for c in self.commands if not (clients and c in CLIENT_COMMANDS)]
        named = [c for c in others if " " not in c or c.split()[0] not in groups]
        return ", ".join([*named, "client commands"] if clients else named)

    @property
    def accepts(self) -> str:
        """The accepted values, for people."""
        return " \\| ".join(self.choices) if self.choices else self.type.value


# Commands that send requests to a master, its workers, or the server of a mount.
CLIENT_COMMANDS: Final = (
    "status", "health", "top", "logs", "ls", "stat", "du", "sync", "load", "jobs", "free", "pin",
    "unpin", "ttl", "quota", "policy", "ufs", "ufs add", "workers", "location", "fsck",
)  # fmt: skip
_CLIENTS: Final = ("mount", "worker", *CLIENT_COMMANDS)
_SERVERS: Final = ("master", "worker")
_CACHES: Final = ("mount", "worker")
_SOURCES: Final = ("mount", "ufs add")
_AGENT: Final = ("fuse-agent",)
_DRIVER: Final = ("csi",)
_IN_PODS: Final = (*_DRIVER, *_AGENT)
_OPERATOR: Final = ("operator",)
_FOR_KUBERNETES: Final = (*_IN_PODS, *_OPERATOR)
EVERY: Final = (
    "mount", "umount", "doctor", "cache", "master", "worker", "up", "down", "config",
    *_FOR_KUBERNETES, *CLIENT_COMMANDS,
)  # fmt: skip
KNOWN: Final = frozenset(EVERY)

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "endpoint_url",
        Type.URL,
        "",
        "S3 endpoint, for stores other than Amazon's.",
        "Amazon S3",
        commands=_SOURCES,
    ),
    Setting(
        "aws_profile",
        Type.TEXT,
        "",
        "Profile of the AWS configuration files.",
        "the AWS default chain",
        commands=_SOURCES,
    ),
    Setting(
        "region",
        Type.TEXT,
        "",
        "Region of the bucket.",
        "detected from the bucket",
        commands=_SOURCES,
    ),
    Setting(
        "requester_pays",
        Type.SWITCH,
        False,
        "Accept the charges of requester-pays buckets.",
        commands=_SOURCES,
    ),
    Setting(
        "anonymous", Type.SWITCH, False, "Sign no requests (public buckets).", commands=_SOURCES
    ),
    Setting(
        "ca_bundle",
        Type.PATH,
        "",
        "PEM file of certificate authorities to trust.",
        "the system's",
        commands=_SOURCES,
    ),
    Setting(
        "addressing_style",
        Type.CHOICE,
        "auto",
        "Bucket in the path or in the host name; auto: path with an endpoint URL.",
        choices=("auto", "path", "virtual"),
        commands=_SOURCES,
    ),
    Setting(
        "cache_dir",
        Type.PATH,
        "",
        "Directory of the cached data.",
        "under the state home, one per source",
    ),
    Setting(
        "trust_directories",
        Type.SWITCH,
        False,
        "Use directories of caches and stores that other users can write; only warn about them.",
        commands=("mount", "worker", "master", "up"),
    ),
    Setting(
        "cache_size",
        Type.SIZE,
        0,
        "Limit of the cache directory, in allocated bytes.",
        "the smaller of 20 GiB and 80 % of free space plus what the cache holds",
        minimum=16 << 20,
        commands=("mount", "up"),
    ),
    Setting(
        "memory_limit",
        Type.SIZE,
        0,
        "Limit of the server's memory: buffers, read-ahead, metadata, and caches on tmpfs.",
        "80 % of the machine's memory, or of its control group's limit if that is less",
        minimum=128 << 20,
        commands=_CACHES,
    ),
    Setting(
        "metrics",
        Type.TEXT,
        "",
        "Address of the mount's Prometheus page (GET /metrics), as HOST:PORT on loopback.",
        "none; a cluster's processes serve it on the ports of their calls",
        commands=("mount",),
    ),
    Setting(
        "admin_socket",
        Type.PATH,
        "",
        "Socket (mode 0600) of the admin API of the mount's server.",
        "none; a cluster's master serves it on the port of its calls",
        commands=("mount",),
    ),
    Setting(
        "read_only", Type.SWITCH, True, "Mount read-only (this version mounts in no other way)."
    ),
    Setting(
        "sync_interval",
        Type.DURATION,
        60.0,
        "Age at which names and attributes are checked again at the origin;"
        " 0: every access, -1: never.",
        minimum=-1,
        commands=_SOURCES,
    ),
    Setting(
        "allow_other", Type.SWITCH, None, "Let other users see the mount.", "yes for root, else no"
    ),
    Setting("uid", Type.ID, -1, "Owner of files if the origin has none.", "the mounting user"),
    Setting("gid", Type.ID, -1, "Group of files if the origin has none.", "that user's group"),
    Setting("file_mode", Type.MODE, 0o644, "Mode of files if the origin has none."),
    Setting("dir_mode", Type.MODE, 0o755, "Mode of directories if the origin has none."),
    Setting(
        "admission",
        Type.CHOICE,
        "fill",
        "fill: a full cache keeps its data; always: every read replaces older data.",
        choices=("fill", "always"),
        commands=_CACHES,
    ),
    Setting(
        "eviction",
        Type.CHOICE,
        "sieve",
        "Order in which cached data is evicted.",
        choices=("sieve", "lru"),
        commands=_CACHES,
    ),
    Setting(
        "idle_after",
        Type.DURATION,
        3600.0,
        "Age from which unused data is evicted for new data, whatever the admission.",
        commands=_CACHES,
    ),
    Setting(
        "files_ahead",
        Type.COUNT,
        256,
        "Small files of a directory to prefetch, once its files are opened in the order of their"
        " names; 0: none.",
        commands=_CACHES,
    ),
    Setting(
        "origin_deadline",
        Type.DURATION,
        30.0,
        "Longest time that a system call on a mount, or a request to the origin, waits for the"
        " origin before it fails.",
        minimum=1,
        commands=("mount", "master", "worker"),
    ),
    Setting(
        "transport",
        Type.CHOICE,
        "auto",
        "Interface of the file system to the kernel; auto: the best available one.",
        choices=("auto", "kernel", "pyfuse3"),
    ),
    Setting(
        "lost_after",
        Type.DURATION,
        10.0,
        "A worker without a heartbeat for this time is lost; five heartbeats are due in it.",
        minimum=1,
        commands=("master",),
    ),
    Setting(
        "heartbeat_timeout",
        Type.DURATION,
        10.0,
        "A client without a heartbeat for this time is replaced (transport kernel); a server after"
        " three times as long.",
        minimum=1,
    ),
    Setting(
        "passthrough",
        Type.CHOICE,
        "auto",
        "Whether the kernel may read complete files of the cache directly; off: never.",
        choices=("auto", "off"),
    ),
    Setting(
        "master",
        Type.TEXT,
        "",
        "The cluster's master, as HOST:PORT or a URL.",
        "the cluster of `cachefs up`, else 127.0.0.1:19998",
        commands=("worker", *_DRIVER, *_OPERATOR, *CLIENT_COMMANDS),
    ),
    Setting(
        "token_file",
        Type.PATH,
        "",
        "File (mode 0600) of the accepted tokens; the first one is presented to other processes.",
        "the token of the master of this machine, in the state home",
        commands=("up", "master", *_OPERATOR, *_CLIENTS),
    ),
    Setting(
        "no_token",
        Type.SWITCH,
        False,
        "Require no token: listen on loopback only, and answer only this user and root.",
        commands=("up", "master", "worker"),
    ),
    Setting(
        "tls",
        Type.SWITCH,
        None,
        "Use TLS with a master given without a scheme; on a master: with its workers.",
        "yes if tls_ca is set",
        commands=("master", *_OPERATOR, *_CLIENTS),
    ),
    Setting(
        "tls_ca",
        Type.PATH,
        "",
        "PEM file of the authorities that sign the cluster's certificates.",
        "the system's",
        commands=("master", *_OPERATOR, *_CLIENTS),
    ),
    Setting(
        "tls_cert",
        Type.PATH,
        "",
        "PEM file of this server's certificate.",
        "no TLS",
        commands=_SERVERS,
    ),
    Setting(
        "tls_key",
        Type.PATH,
        "",
        "PEM file of the certificate's private key.",
        "in the certificate's file",
        commands=_SERVERS,
    ),
    Setting(
        "master_listen",
        Type.TEXT,
        "127.0.0.1:19998",
        "Address on which a master listens, as HOST:PORT.",
        commands=("master",),
        option="listen",
    ),
    Setting(
        "worker_listen",
        Type.TEXT,
        "127.0.0.1:0",
        "Address on which a worker listens, as HOST:PORT; port 0: any free one.",
        commands=("worker",),
        option="listen",
    ),
    Setting(
        "advertise",
        Type.TEXT,
        "",
        "Address that other workers use for this one, as HOST or HOST:PORT.",
        "the address on which it listens",
        commands=("worker",),
    ),
    Setting(
        "store",
        Type.TEXT,
        "",
        "Location of a master's namespace, as lmdb:DIR.",
        "under the state home",
        commands=("master",),
    ),
    Setting(
        "tier",
        Type.LIST,
        "",
        "Cache directory, as mem:DIR:SIZE or ssd:DIR:SIZE; repeat it for more, the fastest first.",
        "a directory under the state home",
        commands=("worker",),
    ),
    Setting(
        "weight",
        Type.TEXT,
        "auto",
        "A worker's share of the data, relative to others; auto: its capacity in GiB; 0: none.",
        commands=("worker",),
    ),
    Setting(
        "migration_rate",
        Type.SIZE,
        200 << 20,
        "Most bytes a second that a worker fetches while blocks move to new owners.",
        commands=("worker",),
        minimum=1 << 20,
    ),
    Setting(
        "log_level",
        Type.CHOICE,
        "info",
        "Lowest level of the lines to log.",
        choices=("debug", "info", "warning", "error"),
        commands=("mount", "master", "worker", "up", *_FOR_KUBERNETES),
    ),
    Setting(
        "socket",
        Type.PATH,
        "",
        "Socket for the mounts of this machine, in a directory that exists; its group may use it.",
        "in the state home",
        commands=("worker",),
    ),
    Setting(
        "worker_socket",
        Type.PATH,
        "",
        "Socket of the worker to use (its --socket); then no mount starts a worker.",
        "that of the best worker of this machine",
        commands=("mount", *_IN_PODS),
    ),
    Setting(
        "worker_wait",
        Type.DURATION,
        600.0,
        "Longest time that a mount with --worker-socket waits for its worker.",
        minimum=1,
        commands=("mount", *_IN_PODS),
    ),
    Setting(
        "holder",
        Type.PATH,
        "",
        "Socket of the node's holder, which keeps the mounts of pods alive.",
        "none",
        commands=_IN_PODS,
    ),
    Setting(
        "agent_name",
        Type.TEXT,
        "",
        "Name of this agent among those of its node; in a pod: the pod's name.",
        "the machine's host name",
        commands=_AGENT,
        option="name",
    ),
    Setting(
        "give_up_after",
        Type.DURATION,
        900.0,
        "A mount that no client could serve for this time is aborted: its users get an error.",
        minimum=1,
        commands=_AGENT,
    ),
    Setting(
        "client_memory",
        Type.SIZE,
        0,
        "Memory from which a mount's client is replaced by a new one; 0: no limit.",
        commands=_AGENT,
    ),
    Setting(
        "ready_file",
        Type.PATH,
        "",
        "File that exists while every mount is served, for a readiness probe.",
        "none",
        commands=_AGENT,
    ),
    Setting(
        "endpoint",
        Type.TEXT,
        "",
        "Socket of the CSI driver, as unix:PATH.",
        "none",
        commands=_DRIVER,
    ),
    Setting(
        "node_id",
        Type.TEXT,
        "",
        "Name of this node for Kubernetes.",
        "the machine's host name",
        commands=_DRIVER,
    ),
    Setting(
        "kubelet_dir",
        Type.PATH,
        "/var/lib/kubelet",
        "Directory of the kubelet, which the driver sees at the same path.",
        commands=_DRIVER,
    ),
    Setting(
        "registration_dir",
        Type.PATH,
        "",
        "Directory in which the kubelet looks for drivers.",
        "plugins_registry in the kubelet's directory",
        commands=_DRIVER,
    ),
    Setting(
        "linger",
        Type.DURATION,
        60.0,
        "A mount that no pod uses for this time is removed.",
        commands=_DRIVER,
    ),
    Setting(
        "confine",
        Type.SWITCH,
        False,
        "Inline volumes show only data below the namespace of their pod.",
        commands=_DRIVER,
    ),
    Setting(
        "replica_name",
        Type.TEXT,
        "",
        "Name of this controller among its replicas; in a pod: the pod's name.",
        "the machine's host name and the process's number",
        commands=_OPERATOR,
        option="name",
    ),
    Setting(
        "lease_namespace",
        Type.TEXT,
        "",
        "Namespace of the Lease that the acting replica holds.",
        "that of the controller's account",
        commands=_OPERATOR,
    ),
    Setting(
        "file_sources",
        Type.SWITCH,
        False,
        "Datasets may be files of the servers (file://): all that the servers' user can read.",
        commands=_OPERATOR,
    ),
    Setting(
        "own_profiles",
        Type.SWITCH,
        False,
        "A Dataset may use only the credentials profile with its namespace's name, or none.",
        commands=_OPERATOR,
    ),
    Setting(
        "node_metrics",
        Type.TEXT,
        "",
        "Address of /metrics and /healthz, as unix:PATH or HOST:PORT.",
        "none",
        commands=_FOR_KUBERNETES,
        option="metrics",
    ),
    Setting(
        "log_format",
        Type.CHOICE,
        "text",
        "Form of the log's lines on standard error.",
        choices=("text", "json"),
        commands=_FOR_KUBERNETES,
    ),
    Setting(
        "home",
        Type.PATH,
        "",
        "State home: sockets, namespaces, logs, records of mounts.",
        "$XDG_CACHE_HOME/cachefs or ~/.cache/cachefs",
        commands=EVERY,
    ),
)

BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}

# Settings of the source, with the name of the connectors' option.
SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    "endpoint_url": "endpoint_url",
    "aws_profile": "profile",
    "region": "region",
    "requester_pays": "requester_pays",
    "anonymous": "anonymous",
    "ca_bundle": "ca_bundle",
    "addressing_style": "addressing_style",
}
