"""A local cluster: a master and some workers as background processes, for trials and tests
(`cachefs up`, `cachefs down`).

    <directory>/cluster.json  master/namespace/ master/log/  worker-<n>/   (tiers)

The files persist: the next `up` in the same directory reuses the names, the cached bytes and the
master's port. `<home>/local.json` names the directory of the last `up`, and those of others that
ran then.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any, Final

import msgspec

from cachefs.core.access import parse_address
from cachefs.core.addresses import address_of
from cachefs.core.cluster import DEFAULT_PORT
from cachefs.core.errors import BadConfig, DeadlineExceeded
from cachefs.core.specs import MasterSpec, Security, Started, WorkerSpec
from cachefs.launcher import state, tokens
from cachefs.launcher.cluster import start_master, start_worker, tier_of
from cachefs.launcher.process_watch import ProcessId, Watch, birth_of
from cachefs.launcher.processes import cache_size, launch_lock
from cachefs.launcher.state import StateHome, private_dir, read_document, write_document

DIRECTORY_NAME: Final = "local"
DEFAULT_WORKERS: Final = 3
MOST_WORKERS: Final = 64
MOST_FORMER: Final = 16  # clusters that run beside that of the last `up`
END_S: Final = 20.0  # for a process to end after SIGTERM
_RECORD: Final = "cluster.json"
_POINTER: Final = "local.json"
_HOST: Final = "127.0.0.1"


class LocalProcess(msgspec.Struct, frozen=True):
    """A master or a worker. `pid` 0: it was never started. `born`: see `ProcessId`."""

    name: str
    url: str = ""
    pid: int = 0
    born: str = ""

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.born)

    @property
    def runs(self) -> bool:
        return self.process.lives()


class LocalCluster(msgspec.Struct, frozen=True):
    """The cluster that `up` created in `directory`."""

    directory: str
    home: str
    processes: list[LocalProcess]  # the master is the first
    cache_bytes: int = 0  # of each worker
    has_token: bool = False  # records of earlier versions have none

    @property
    def master(self) -> str:
        """The master's URL."""
        return self.processes[0].url

    @property
    def workers(self) -> list[LocalProcess]:
        return self.processes[1:]

    @property
    def runs(self) -> bool:
        """True if any of its processes runs."""
        return any(process.runs for process in self.processes)


def read(home: StateHome, directory: str = "") -> LocalCluster | None:
    """Returns the cluster in a directory; None if there is none. Without a directory: the last one
    started of those that run, else that of the last `up`."""
    if directory:
        return _recorded(directory)
    found = [one for one in map(_recorded, _directories(home)) if one is not None]
    return next((one for one in found if one.runs), found[0] if found else None)


def _directories(home: StateHome) -> list[str]:
    """Returns the directory of the last `up`, and those of clusters that ran then."""
    pointer = read_document(home.path, _POINTER)
    if not isinstance(pointer, dict):
        return []
    return [pointer.get("directory", ""), *pointer.get("former", [])]


def _recorded(directory: str) -> LocalCluster | None:
    record: Any = read_document(directory, _RECORD) if directory else None
    try:
        return msgspec.convert(record, LocalCluster)
    except msgspec.ValidationError:
        return None


class LocalClusterStarter:
    """Starts the processes of a cluster that do not run. `cache_bytes`: of each worker; 0: a share
    of the free space. `token_file` "": the token of this machine, or (`no_token`) none."""

    def __init__(
        self,
        home: StateHome,
        directory: str,
        *,
        cache_bytes: int = 0,
        log_level: str = "info",
        token_file: str = "",
        no_token: bool = False,
        trust_directories: bool = False,
    ) -> None:
        private_dir(home.path)
        self._home = home
        self._directory = private_dir(directory or home.path / DIRECTORY_NAME)
        self._asked_bytes = cache_bytes
        self._log_level = log_level
        self._token_file = token_file
        self._has_token = not no_token
        self._trusts = trust_directories
        self._warnings: list[str] = []

    def run(self, workers: int = 0) -> tuple[LocalCluster, list[str]]:
        """Returns the cluster, with at least `workers` workers (0: as before), and warnings for
        users. Raises the typed error of a process that cannot start. It has ended then, also after
        Ctrl-C; those started before keep running until `down`."""
        with launch_lock(self._directory):
            known = read(self._home, str(self._directory))
            self._cache_bytes = self._asked_bytes or (known.cache_bytes if known else 0)
            if known is not None and known.runs:
                self._has_token = known.has_token
            done = list(known.processes) if known is not None else [LocalProcess("master")]
            done += [LocalProcess(f"worker-{n}") for n in range(len(done), _count(workers, done))]
            for number, process in enumerate(done):
                if not process.runs:
                    self._cache_bytes = self._cache_bytes or self._share(len(done) - 1)
                    start = self._start_master if number == 0 else self._start_worker
                    done[number] = start(process, done)
                    self._record(done)
        return self._record(done), self._warnings

    def _share(self, workers: int) -> int:
        """Returns the cache size of each worker; the record keeps it for later workers."""
        return cache_size(self._directory, 0) // workers

    def _record(self, processes: list[LocalProcess]) -> LocalCluster:
        cluster = LocalCluster(
            str(self._directory),
            str(self._home.path),
            processes,
            self._cache_bytes,
            self._has_token,
        )
        write_document(self._directory, _RECORD, msgspec.to_builtins(cluster))
        pointer = {"directory": str(self._directory), "former": self._former()}
        write_document(self._home.path, _POINTER, pointer)
        return cluster

    def _former(self) -> list[str]:
        """Returns the directories of other clusters of this state home that run."""
        own = str(self._directory)
        others = (_recorded(one) for one in _directories(self._home) if one != own)
        return [one.directory for one in others if one is not None and one.runs][:MOST_FORMER]

    def _start_master(self, known: LocalProcess, _: list[LocalProcess]) -> LocalProcess:
        directory = private_dir(self._directory / "master")
        log = private_dir(directory / state.LOG_NAME)
        port = _free_port(known.url)
        home, makes_token = str(self._home.path), self._has_token and not self._token_file
        spec = MasterSpec(
            listen=f"{_HOST}:{port}",
            store_dir=str(directory / state.NAMESPACE_NAME),
            security=Security(self._token_file),
            token_home=home if makes_token else "",
            open_home="" if self._has_token else home,
            log_file=str(log / "master.log"),
            log_level=self._log_level,
            trust_directories=self._trusts,
        )
        try:
            started = start_master(spec, log / "master.err")
        except BadConfig:
            if not port or _free_port(known.url):
                raise
            other = msgspec.structs.replace(spec, listen=f"{_HOST}:0")  # the port was just taken
            started = start_master(other, log / "master.err")
        self._warnings += [started.warning] if started.warning else []
        return _started(known.name, started)

    def _start_worker(self, known: LocalProcess, done: list[LocalProcess]) -> LocalProcess:
        directory = self._directory / known.name
        spec = WorkerSpec(
            home=str(self._home.path),
            master=done[0].url,
            name=known.name,
            tiers=(tier_of(directory, self._cache_bytes, trust=self._trusts),),
            security=self._security(done[0].url),
            log_level=self._log_level,
            trust_directories=self._trusts,
        )
        started = start_worker(spec, background=True)
        self._warnings += [started.warning] if started.warning else []
        return _started(known.name, started)

    def _security(self, master: str) -> Security:
        """Returns the security of a worker."""
        if self._token_file or not self._has_token:
            return Security(self._token_file)
        return tokens.find_or_make(self._home, master) or Security()


def down(cluster: LocalCluster) -> list[LocalProcess]:
    """Ends the processes, the workers first, and returns those that ran. Raises DeadlineExceeded
    for a process that does not end."""
    with launch_lock(Path(cluster.directory)):
        ended = _end(cluster.workers)
        return [*_end(cluster.processes[:1]), *ended]


def _end(processes: list[LocalProcess]) -> list[LocalProcess]:
    watches = [(process, Watch(process.process)) for process in processes if process.runs]
    for _, watch in watches:
        watch.signal(signal.SIGTERM)
    for process, watch in watches:
        with watch:
            if not watch.ended(END_S):
                raise DeadlineExceeded(
                    f"{process.name} (pid {process.pid}) has not ended",
                    remedy=f"look at its log, or end it: kill -9 {process.pid}",
                )
    return [process for process, _ in watches]


def _started(name: str, started: Started) -> LocalProcess:
    return LocalProcess(name, started.url, started.pid, birth_of(started.pid))


def _count(workers: int, done: list[LocalProcess]) -> int:
    """Returns the number of processes to run."""
    return max(len(done), 1 + (workers or (0 if len(done) > 1 else DEFAULT_WORKERS)))


def _free_port(url: str) -> int:
    """Returns the port of `url`, or the default one; 0 (any) if it is taken."""
    port = parse_address(address_of(url), DEFAULT_PORT)[1] if url else DEFAULT_PORT
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return 0
    return port
