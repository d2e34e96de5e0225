"""Every setting of CacheFS, once: flags, `mount -o` options, environment variables, keys of
configuration files and docs/configuration.md are made from this table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

ENV_PREFIX: Final = "CACHEFS_"
LIST_SEPARATOR: Final = ";"

Scalar = str | int | float | bool | None


class Type(enum.Enum):
    """How a value is written, and what it becomes."""

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
    LIST = "list"  # str, joined by ";"; a flag that may be given again, a list in TOML


class Setting(msgspec.Struct, frozen=True):
    """One setting. `shown` says in words what an empty default stands for."""

    name: str
    type: Type
    default: Scalar
    help: str
    shown: str = ""
    choices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ("mount",)  # that take it as a flag
    minimum: float = 0
    option: str = ""  # the flag's name, where it is not the setting's

    @property
    def flag(self) -> str:
        return "--" + (self.option or self.name).replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def taken_by(self) -> str:
        """Which commands take the flag, for people; "" = mount alone."""
        if self.commands == ("mount",):
            return ""
        if self.commands == EVERY:
            return "every command"
        groups = set(self.commands)  # with a group its commands need not be named
        asks = set(ASKERS) <= groups
        others = [c for c in self.commands if not (asks and c in ASKERS)]
        named = [c for c in others if " " not in c or c.split()[0] not in groups]
        return ", ".join([*named, "what asks"] if asks else named)

    @property
    def accepts(self) -> str:
        """What may be written, for people."""
        return " \\| ".join(self.choices) if self.choices else self.type.value


# Commands that ask a master, its workers, or the server of a mount.
ASKERS: Final = (
    "status", "health", "top", "logs", "ls", "stat", "du", "sync", "load", "jobs", "free", "pin",
    "unpin", "ttl", "quota", "policy", "ufs", "ufs add", "workers", "location", "fsck",
)  # fmt: skip
_CLIENTS: Final = ("mount", "worker", *ASKERS)
_SERVERS: Final = ("master", "worker")
_CACHES: Final = ("mount", "worker")
_SOURCES: Final = ("mount", "ufs add")
EVERY: Final = (
    "mount", "umount", "doctor", "cache", "master", "worker", "up", "down", "config", *ASKERS
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
        "found out from the bucket",
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
        "Directory of cached data.",
        "under the state home, one per source",
    ),
    Setting(
        "trust_directories",
        Type.SWITCH,
        False,
        "Use directories of caches and stores although other users can write them; warn of them.",
        commands=("mount", "worker", "master", "up"),
    ),
    Setting(
        "cache_size",
        Type.SIZE,
        0,
        "Limit of the cache directory, in bytes really allocated.",
        "the smaller of 20 GiB and 80 % of free space plus what the cache holds",
        minimum=16 << 20,
        commands=("mount", "up"),
    ),
    Setting(
        "memory_limit",
        Type.SIZE,
        0,
        "Limit of the server's memory: buffers, read-ahead, metadata, and caches on tmpfs.",
        "80 % of the machine's memory, or of its control group's limit where that is less",
        minimum=128 << 20,
        commands=_CACHES,
    ),
    Setting(
        "metrics",
        Type.TEXT,
        "",
        "Where the mount's server answers Prometheus (GET /metrics), as HOST:PORT on loopback.",
        "nowhere; a cluster's processes answer on the ports of their calls",
        commands=("mount",),
    ),
    Setting(
        "admin_socket",
        Type.PATH,
        "",
        "Socket (mode 0600) where the mount's server answers the admin API.",
        "none; a cluster's master answers on the port of its calls",
        commands=("mount",),
    ),
    Setting(
        "read_only", Type.SWITCH, True, "Mount read-only (this version mounts in no other way)."
    ),
    Setting(
        "sync_interval",
        Type.DURATION,
        60.0,
        "How old names and attributes may be before the origin is asked again;"
        " 0: every access, -1: never.",
        minimum=-1,
        commands=_SOURCES,
    ),
    Setting(
        "allow_other", Type.SWITCH, None, "Let other users see the mount.", "yes for root, else no"
    ),
    Setting("uid", Type.ID, -1, "Owner shown where the origin has none.", "the user who mounts"),
    Setting(
        "gid", Type.ID, -1, "Group shown where the origin has none.", "the group of who mounts"
    ),
    Setting("file_mode", Type.MODE, 0o644, "Mode of files where the origin has none."),
    Setting("dir_mode", Type.MODE, 0o755, "Mode of directories where the origin has none."),
    Setting(
        "admission",
        Type.CHOICE,
        "fill",
        "fill: a full cache keeps what it has; always: every read replaces older data.",
        choices=("fill", "always"),
        commands=_CACHES,
    ),
    Setting(
        "eviction",
        Type.CHOICE,
        "sieve",
        "Order in which cached data makes room.",
        choices=("sieve", "lru"),
        commands=_CACHES,
    ),
    Setting(
        "idle_after",
        Type.DURATION,
        3600.0,
        "Age from which unused data makes room for new data, whatever the admission.",
        commands=_CACHES,
    ),
    Setting(
        "files_ahead",
        Type.COUNT,
        256,
        "How many small files of a directory are brought before they are opened, once files are"
        " opened in the order of their names; 0: none.",
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
        "How the file system talks to the kernel; auto: the best that works here.",
        choices=("auto", "kernel", "pyfuse3"),
    ),
    Setting(
        "lost_after",
        Type.DURATION,
        10.0,
        "A worker that is silent for so long is lost; they say five times in it that they live.",
        minimum=1,
        commands=("master",),
    ),
    Setting(
        "heartbeat_timeout",
        Type.DURATION,
        10.0,
        "A client that shows no sign of life for so long is replaced (transport kernel); a server"
        " after three times as long.",
        minimum=1,
    ),
    Setting(
        "passthrough",
        Type.CHOICE,
        "auto",
        "Whether the kernel may read complete files of the cache by itself; off: never.",
        choices=("auto", "off"),
    ),
    Setting(
        "master",
        Type.TEXT,
        "",
        "The cluster's master, as HOST:PORT or a URL.",
        "the cluster of `cachefs up`, else 127.0.0.1:19998",
        commands=("worker", *ASKERS),
    ),
    Setting(
        "token_file",
        Type.PATH,
        "",
        "File (mode 0600) of the tokens that are asked for; its first one is presented to others.",
        "the token of the master of this machine, in the state home",
        commands=("up", "master", *_CLIENTS),
    ),
    Setting(
        "no_token",
        Type.SWITCH,
        False,
        "Ask for no token: loopback alone, and only processes of this user and root are answered.",
        commands=("up", "master", "worker"),
    ),
    Setting(
        "tls",
        Type.SWITCH,
        None,
        "Speak TLS with a master that was given without a scheme; a master: with its workers.",
        "yes where tls_ca is set",
        commands=("master", *_CLIENTS),
    ),
    Setting(
        "tls_ca",
        Type.PATH,
        "",
        "PEM file of the authorities that sign the cluster's certificates.",
        "the system's",
        commands=("master", *_CLIENTS),
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
        "Where a master listens, as HOST:PORT.",
        commands=("master",),
        option="listen",
    ),
    Setting(
        "worker_listen",
        Type.TEXT,
        "127.0.0.1:0",
        "Where a worker listens to others, as HOST:PORT; port 0: any free one.",
        commands=("worker",),
        option="listen",
    ),
    Setting(
        "advertise",
        Type.TEXT,
        "",
        "Address at which other workers reach this one, as HOST or HOST:PORT.",
        "where it listens",
        commands=("worker",),
    ),
    Setting(
        "store",
        Type.TEXT,
        "",
        "Where a master keeps its namespace, as lmdb:DIR.",
        "under the state home",
        commands=("master",),
    ),
    Setting(
        "tier",
        Type.LIST,
        "",
        "A directory to cache in, as mem:DIR:SIZE or ssd:DIR:SIZE; more of them in their order.",
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
        "Bytes a second that a worker fetches at most when data changes its place.",
        commands=("worker",),
        minimum=1 << 20,
    ),
    Setting(
        "log_level",
        Type.CHOICE,
        "info",
        "Least severe lines that are logged.",
        choices=("debug", "info", "warning", "error"),
        commands=("mount", "master", "worker", "up"),
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

# Settings that describe the source, by the name that connectors know them under.
SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    "endpoint_url": "endpoint_url",
    "aws_profile": "profile",
    "region": "region",
    "requester_pays": "requester_pays",
    "anonymous": "anonymous",
    "ca_bundle": "ca_bundle",
    "addressing_style": "addressing_style",
}
