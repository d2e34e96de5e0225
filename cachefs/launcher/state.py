"""The state home on disk: private directories per source, pointers to servers, mount records.

    <home>/                                   0700
      sources/<id>/                           id: first 16 hex digits of sha256(UfsSpec.key)
        launch.lock  server.json  server.sock  namespace/  cache/  log/
        pinned                              the namespace, in hex, while policies pin something
      clusters/<id>/                          id: the same hash of the master's cachefs://HOST:PORT
        log/  nodes/<name>/                   one per worker of this machine
          launch.lock  server.json  server.sock  cache/  log/
      master/                                 namespace/  log/     of `cachefs master`
      local/                                  cluster.json ...     of `cachefs up`
      mounts/<first 16 hex digits of sha256(mountpoint)>.json, .covers, .lock
      reserve                               room for a start on a full disk (`reserve.py`)
      tokens/<port>                          of masters of this machine; see `launcher.tokens`
    <cache dir>/launch.lock, server.json

Everything here is private to one user. Directories are opened with O_NOFOLLOW and must belong to
the caller, so that another user cannot point a client at a foreign server. Root may also read the
state home of another user. Files are replaced atomically (rename) and removed only by the process
that they name, under a lock on their directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cachefs.core.addresses import SCHEME, is_cluster, parse_cluster
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    CacheFSError,
    InUse,
    NoSpace,
    NotADirectory,
    lacks_descriptors,
)
from cachefs.core.model import NamespaceId, UfsSpec
from cachefs.core.owned_fd import OwnedFd, opened
from cachefs.core.specs import ClientSpec, MasterAccess
from cachefs.launcher.directories import check_unshared
from cachefs.launcher.process_watch import ProcessId, birth_of

POINTER_NAME: Final = "server.json"
SOCKET_NAME: Final = "server.sock"
LOCK_NAME: Final = "launch.lock"
NAMESPACE_NAME: Final = "namespace"
CACHE_NAME: Final = "cache"
LOG_NAME: Final = "log"
PINNED_NAME: Final = "pinned"
_MAX_RECORD_BYTES: Final = 1 << 20
_CHANGE_S: Final = 5.0  # for another process that changes one file
_CHANGE_PAUSE_S: Final = 0.005
_OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Pointer(msgspec.Struct, frozen=True):
    """The address of the server of a source or cache directory. `stays`: the server outlives its
    mounts, and its starter (a service manager, an operator) restarts it. `url`: its address for
    peers. `born`: see `ProcessId`."""

    socket: str
    pid: int
    stays: bool = False
    url: str = ""
    born: str = ""

    @classmethod
    def of_this_process(cls, socket: str, *, stays: bool = False, url: str = "") -> Pointer:
        return cls(socket, os.getpid(), stays, url, birth_of(os.getpid()))

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.born)


class MountRecord(msgspec.Struct, frozen=True):
    """A mount: mount point, source and processes. Written by the FUSE client, read by the CLI."""

    mountpoint: str
    source: UfsSpec
    pid: int
    socket: str
    sync_interval_s: float = 60.0
    read_only: bool = True
    supervisor: int = 0  # its pid; 0: none
    born: str = ""  # of the process `pid`, see `ProcessId`
    supervisor_born: str = ""
    uid: int = -1  # for inodes without one at the origin; of() sets the mounting user
    gid: int = -1
    file_mode: int = 0o644
    dir_mode: int = 0o755
    owner: int = -1  # user of the state home in which root found it; -1: the caller
    master_access: MasterAccess = MasterAccess()  # of a mount of a cluster

    @classmethod
    def of(cls, spec: ClientSpec, pid: int, supervisor: int = 0) -> MountRecord:
        """Returns the record of a client started with `spec`. That client calls it."""
        return cls(
            mountpoint=spec.mountpoint,
            source=spec.source,
            pid=pid,
            socket=spec.socket,
            sync_interval_s=spec.sync_interval_s,
            read_only=spec.read_only,
            supervisor=supervisor,
            born=birth_of(pid),
            supervisor_born=birth_of(supervisor) if supervisor else "",
            uid=spec.uid if spec.uid >= 0 else os.geteuid(),
            gid=spec.gid if spec.gid >= 0 else os.getegid(),
            file_mode=spec.file_mode,
            dir_mode=spec.dir_mode,
            master_access=spec.master_access,
        )

    @property
    def client_process(self) -> ProcessId:
        return ProcessId(self.pid, self.born)

    @property
    def supervisor_process(self) -> ProcessId:
        return ProcessId(self.supervisor, self.supervisor_born)

    def is_served(self) -> bool:
        """Returns whether the client or the supervisor of this mount lives."""
        return self.client_process.lives() or self.supervisor_process.lives()


def source_id(spec: UfsSpec) -> str:
    """Returns the name of a source's directory."""
    return _digest(spec.key)


def node_name(tier_path: str) -> str:
    """Returns the name of the worker whose first tier is at a path."""
    return f"worker-{_digest(os.path.realpath(tier_path))}"


def mount_id(mountpoint: str) -> str:
    """Returns the stem of a mount record's file name."""
    return hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:16]


def private_dir(path: str | os.PathLike[str]) -> Path:
    """Creates a directory (0700, with its parents) or checks the existing one.

    Raises AccessDenied for another user's, NotADirectory for a link, BadConfig or NoSpace when it
    cannot be created.
    """
    path = Path(path)
    with _classified(path):
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        with opened(os.open, path, _OPEN_DIR) as directory:
            _check_private(directory.fileno(), path)
    return path


class StateHome:
    """The state home of one user. Reading creates nothing; a missing home reads as empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def owner(self) -> int:
        """The user whose documents are read: the caller, or the owner of the home for root."""
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                return os.lstat(self.path).st_uid
        return os.geteuid()

    def directory(self, *names: str) -> Path:
        """Returns a private directory below the home; creates it and those above it. Raises as
        `private_dir`."""
        path = private_dir(self.path)
        for name in names:
            path = private_dir(path / name)
        return path

    def source_dir(self, spec: UfsSpec) -> Path:
        """Returns the private directory of a source, or of its cluster for any path in the cluster;
        creates it if missing. Raises as `private_dir`."""
        if is_cluster(spec.url):
            return self.cluster_dir(parse_cluster(spec.url).address)
        return self.directory("sources", source_id(spec))

    def has_pins(self, namespace: NamespaceId) -> bool:
        """Returns whether a source of this namespace has pinned paths."""
        for directory in _directories(self.path / "sources"):
            with contextlib.suppress(OSError):
                if (directory / PINNED_NAME).read_text() == namespace.hex():
                    return True
        return False

    def cluster_dir(self, address: str) -> Path:
        """Returns the private directory of the cluster with the master HOST:PORT; creates it."""
        return self.directory("clusters", _digest(SCHEME + address))

    def node_dir(self, address: str, name: str) -> Path:
        """Returns the private directory of one worker of a cluster; creates it."""
        return self.directory("clusters", _digest(SCHEME + address), "nodes", name)

    def node_dirs(self, address: str) -> list[Path]:
        """Returns the directories of every worker of a cluster ever started here, by name."""
        nodes = self.path / "clusters" / _digest(SCHEME + address) / "nodes"
        return _directories(nodes)

    def master_dir(self) -> Path:
        """Returns the directory of a master's files without a configured place; creates it."""
        return self.directory("master")

    def log_dir(self, spec: UfsSpec) -> Path:
        """Returns the log directory of the server and clients of a source; creates it."""
        self.source_dir(spec)
        return private_dir(self.log_path(spec))

    def log_path(self, spec: UfsSpec) -> Path:
        """Returns the path of `log_dir`; creates nothing."""
        if is_cluster(spec.url):
            address = parse_cluster(spec.url).address
            return self.path / "clusters" / _digest(SCHEME + address) / LOG_NAME
        return self.path / "sources" / source_id(spec) / LOG_NAME

    def server_dirs(self) -> list[Path]:
        """Returns the directories of every source and every worker that ever ran here."""
        nodes = (_directories(one / "nodes") for one in _directories(self.path / "clusters"))
        return [*_directories(self.path / "sources"), *(node for some in nodes for node in some)]

    def write_mount(self, record: MountRecord) -> None:
        """Writes a record, over that of an earlier mount at the same mount point."""
        name = _record_name(record.mountpoint)
        write_document(self.directory("mounts"), name, msgspec.to_builtins(record))

    def control_socket(self, mountpoint: str) -> Path:
        """Returns the path of a mount's control socket; creates the directory if missing."""
        return self.directory("mounts") / f"{mount_id(mountpoint)}.sock"

    def covers_file(self, mountpoint: str) -> Path:
        """Returns the path of the record of a mount's covers; creates the directory if missing."""
        return self.directory("mounts") / f"{mount_id(mountpoint)}.covers"

    def mount_lock(self, mountpoint: str) -> OwnedFd:
        """Returns a descriptor of the lock file of a mount point's starts; creates it if missing.
        Raises as `private_dir`."""
        path = self.directory("mounts") / f"{mount_id(mountpoint)}.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with _classified(path):
            return opened(os.open, path, flags, 0o600)

    def control_sockets(self) -> list[Path]:
        """Returns the control sockets of every mount, including stale ones after a crash. Returns
        none of another user's home, where root might follow a link."""
        if self.owner != os.geteuid():
            return []
        try:
            return sorted((self.path / "mounts").glob("*.sock"))
        except OSError:
            return []

    def find_mount(self, mountpoint: str) -> MountRecord | None:
        """Returns the record of a mount point (absolute, no trailing '/'), or None."""
        return self._record(_record_name(mountpoint))

    def remove_mount(self, mountpoint: str, pid: int | None = None) -> bool:
        """Removes a record if it names `pid` (None: any). Returns whether it did. Raises InUse."""
        return _remove(self.path / "mounts", _record_name(mountpoint), pid, self.owner)

    def mount_records(self) -> list[MountRecord]:
        """Returns every readable record, sorted by mount point. Raises OSError if this process may
        open no more files: there may be some."""
        try:
            names = os.listdir(self.path / "mounts")
        except OSError as err:
            if lacks_descriptors(err):
                raise
            return []
        found = (self._record(name) for name in names if name.endswith(".json"))
        return sorted((r for r in found if r is not None), key=lambda record: record.mountpoint)

    def _record(self, name: str) -> MountRecord | None:
        owner = self.owner
        record = _as_record(read_document(self.path / "mounts", name, owner))
        # A file with the record of another mount point than its name's is not trusted.
        if record is None or _record_name(record.mountpoint) != name:
            return None
        return msgspec.structs.replace(record, owner=-1 if owner == os.geteuid() else owner)


def read_pointer(directory: str | os.PathLike[str], owner: int = -1) -> Pointer | None:
    """Returns a directory's pointer; None if missing, torn or not the owner's (-1: the caller)."""
    try:
        return msgspec.convert(read_document(directory, POINTER_NAME, owner), Pointer)
    except msgspec.ValidationError:
        return None


def write_pointer(directory: str | os.PathLike[str], pointer: Pointer) -> None:
    """Writes the pointer atomically."""
    write_document(directory, POINTER_NAME, msgspec.to_builtins(pointer))


def remove_pointer(directory: str | os.PathLike[str], pid: int) -> bool:
    """Removes the pointer if it still names `pid`, not a successor. Returns whether it did."""
    return _remove(Path(directory), POINTER_NAME, pid)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _directories(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []


def _record_name(mountpoint: str) -> str:
    return f"{mount_id(mountpoint)}.json"


def _as_record(value: Any) -> MountRecord | None:
    try:
        return msgspec.convert(value, MountRecord)
    except msgspec.ValidationError:
        return None


def _check_private(fd: int, path: Path) -> None:
    info = os.fstat(fd)
    if info.st_uid != os.geteuid():
        raise AccessDenied(
            f"the directory belongs to user {info.st_uid}",
            remedy="use one of your own (--home, --cache-dir)",
            path=str(path),
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        check_unshared(path)
        os.fchmod(fd, 0o700)


@contextlib.contextmanager
def _classified(path: Path) -> Iterator[None]:
    """Turns an OSError into a typed error that names the directory."""
    try:
        yield
    except OSError as err:
        raise _dir_error(path, err) from err


def _dir_error(path: Path, err: OSError) -> CacheFSError:
    where = str(path)
    if isinstance(err, PermissionError):
        return AccessDenied("permission denied", remedy="use a directory of your own", path=where)
    if isinstance(err, NotADirectoryError):
        return NotADirectory("not a directory, or a symbolic link", path=where)
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace("no space left", remedy="make room or use another directory", path=where)
    return BadConfig(f"cannot be used: {err.strerror}", path=where)


@contextlib.contextmanager
def _locked_dir(path: Path) -> Iterator[int]:
    """Yields a descriptor of the directory, under a lock for one change in it. Raises OSError
    if another process holds the lock for `_CHANGE_S`."""
    with opened(os.open, path, _OPEN_DIR) as directory:
        lock_within(directory.fileno(), _CHANGE_S, _CHANGE_PAUSE_S)
        yield directory.fileno()


def lock_within(fd: int, wait_s: float, pause_s: float) -> None:
    """Takes an exclusive flock. Raises BlockingIOError if another process holds it for `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause_s)


def _read_at(dir_fd: int, name: str, owner: int = -1) -> Any:
    """Returns the JSON document; None if missing, torn, too long or not the owner's (-1: ours).
    Raises OSError if this process may open no more files: there may be one."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = opened(functools.partial(os.open, dir_fd=dir_fd), name, flags)
    except OSError as err:
        if lacks_descriptors(err):
            raise
        return None
    with file:
        try:
            info = os.fstat(file.fileno())
            wanted = os.geteuid() if owner < 0 else owner
            if info.st_uid != wanted or not stat.S_ISREG(info.st_mode):
                return None
            return json.loads(os.read(file.fileno(), _MAX_RECORD_BYTES))
        except (OSError, ValueError, RecursionError):
            return None


def read_document(directory: str | os.PathLike[str], name: str, owner: int = -1) -> Any:
    """Returns a JSON document; None if it is missing, torn or not the owner's (-1: ours)."""
    try:
        held = opened(os.open, directory, _OPEN_DIR)
    except OSError as err:
        if lacks_descriptors(err):
            raise
        return None
    with held:
        return _read_at(held.fileno(), name, owner)


def write_document(directory: str | os.PathLike[str], name: str, value: Any) -> None:
    """Writes a document of plain values atomically."""
    directory, temporary = Path(directory), f".{name}.{os.getpid()}"
    with _classified(directory), _locked_dir(directory) as dir_fd:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=dir_fd)  # of a dead process that had this pid
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        held = opened(functools.partial(os.open, dir_fd=dir_fd), temporary, flags, 0o600)
        try:
            with held, open(held.fileno(), "w", encoding="ascii", closefd=False) as file:
                json.dump(value, file)
            os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):  # a signal came after the rename
                os.unlink(temporary, dir_fd=dir_fd)
            raise


def _remove(directory: Path, name: str, pid: int | None, owner: int = -1) -> bool:
    try:
        with _locked_dir(directory) as dir_fd:
            if pid is not None:
                value = _read_at(dir_fd, name, owner)
                if not isinstance(value, dict) or value.get("pid") != pid:
                    return False
            os.unlink(name, dir_fd=dir_fd)
            return True
    except FileNotFoundError:
        return False
    except OSError as err:
        raise InUse(f"cannot be removed: {err.strerror}", path=str(directory / name)) from err
