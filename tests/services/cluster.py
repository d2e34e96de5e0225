"""A real cluster for tests and benches: a master and workers as processes of the command line's,
each with a home of its own, as if each were on a machine of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from cachefs.client.credentials import presented_token
from cachefs.client.http import HttpClient
from cachefs.core.access import HEADER, header_of
from cachefs.core.cluster import ListWorkers, WorkerTable
from cachefs.core.errors import CacheFSError
from cachefs.core.specs import Security
from tests.services.commands import CACHEFS, run_program
from tests.services.environment import environment_of
from tests.services.files import files_below
from tests.services.metrics_page import exposed
from tests.services.processes import is_running, wait_until
from tests.services.server_process import free_port
from tests.services.transcript import Transcript

COMMAND_LIMIT_S = 60.0
END_S = 20.0
LOG_TAIL = 2000


class ClusterFailed(Exception):
    """A command or a process of the cluster did not do what it should; the text says what."""


@dataclass
class Machine:
    """A home, its command line, and one process of the cluster (`pid` 0: none runs)."""

    name: str
    root: Path
    environment: dict[str, str]
    command: list[str] = field(default_factory=list)
    pid: int = 0
    url: str = ""
    mounts: list[Path] = field(default_factory=list)
    transcript: Transcript = field(default_factory=Transcript, repr=False)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.environment = {**environment_of(self.root), **self.environment}

    @property
    def program(self) -> list[str | Path]:
        """The words that start its command line."""
        return [CACHEFS]

    def run(
        self,
        *arguments: str | Path,
        limit_s: float = COMMAND_LIMIT_S,
        codes: tuple[int, ...] = (0,),
    ) -> str:
        """Standard output of `cachefs ARGUMENTS`. Raises ClusterFailed for an exit code that is not
        among `codes`."""
        words = [*map(str, arguments)]
        done = self.transcript.of(
            words, lambda: run_program(self.program, words, self.environment, limit_s)
        )
        if done.returncode not in codes:
            said = (done.stderr or done.stdout).strip()
            raise ClusterFailed(f"{self.name}: cachefs {arguments[0]}: {said}{self.log_tail()}")
        return done.stdout

    def json(self, *arguments: str | Path, codes: tuple[int, ...] = (0,)) -> Any:
        return json.loads(self.run(*arguments, "--json", codes=codes))

    def start(self) -> None:
        """Starts its process (again), and waits until that answers."""
        assert not self.pid, f"{self.name} runs"
        started = self.json(*self.command, "--background")
        self.pid, self.url = started["pid"], started["url"]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and gone. Raises NotInTime when it does not end."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        pid, self.pid = self.pid, 0
        if pid and is_running(pid):
            os.kill(pid, number)
            wait_until(lambda: not is_running(pid), f"{self.name} (pid {pid}) ends", END_S)

    def mount(self, source: str, *options: str | Path, name: str = "mnt") -> Path:
        path = self.root / name
        path.mkdir(exist_ok=True)
        self.mounts.append(path)
        self.run("mount", source, path, *options)
        return path

    def umount(self, path: Path) -> None:
        self.run("umount", path)
        self.mounts.remove(path)

    def logs(self) -> dict[str, str]:
        """Every log of this machine, by path below its home."""
        found: dict[str, str] = {}
        for path in sorted(files_below(self.root / ".cache" / "cachefs")):
            if path.suffix == ".log":
                with contextlib.suppress(FileNotFoundError):  # its process has removed it
                    found[str(path.relative_to(self.root))] = path.read_text(errors="replace")
        return found

    def log_tail(self) -> str:
        return "".join(f"\n--- {name}\n{text[-LOG_TAIL:]}" for name, text in self.logs().items())

    def close(self) -> None:
        """Ends what is left: mounts by force, the process by SIGKILL."""
        for path in self.mounts:
            if os.path.ismount(path):
                subprocess.run(["umount", "-l", str(path)], check=False, timeout=COMMAND_LIMIT_S)
        if self.pid and is_running(self.pid):
            os.kill(self.pid, signal.SIGCONT)
            self.kill()


def _token_file(root: Path) -> str:
    """One for all machines, as an operator would copy it."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return str(path)


class Cluster:
    """Use as a context manager. `root` is best on tmpfs; `environment` has origins' credentials."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self.root = root
        self._environment = {"CACHEFS_TOKEN_FILE": _token_file(root), **environment}
        self.master = self._machine("master")
        # Not a port of the kernel's choice: others would get that while the master is down.
        self.master.command = ["master", "--listen", f"127.0.0.1:{free_port()}"]
        self.workers: list[Machine] = []

    def lose_soon(self) -> None:
        """Before `start`: a silent worker is lost after 5 s, for tests that wait for that."""
        self.master.command += ["--lost-after", "5s"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for machine in (*self.workers, self.master):
            machine.close()

    def _machine(self, name: str) -> Machine:
        return Machine(name, self.root / name, dict(self._environment))

    def start(self, workers: int, *options: str, size: str = "1GiB") -> None:
        """A master and workers, each with a tier of `size` in its home."""
        self.master.start()
        address = self.master.url.removeprefix("http://")
        self.master.command[2] = address  # the next one listens there too
        for _ in range(workers):
            self.add_worker(*options, size=size)

    def add_worker(self, *options: str, size: str = "1GiB") -> Machine:
        machine = self._machine(f"node{len(self.workers)}")
        tier = f"ssd:{machine.root / 'tier'}:{size}"
        machine.command = ["worker", "--master", self.master.url, "--tier", tier, *options]
        self.workers.append(machine)
        machine.start()
        return machine

    def add_ufs(self, source: str, path: str, *options: str) -> None:
        self.master.run("ufs", "add", source, path, "--master", self.master.url, *options)

    def mount(self, number: int, path: str, *options: str) -> Path:
        """Mounts a path of the namespace on a worker's machine."""
        return self.workers[number].mount(self.path(path), *options)

    def path(self, path: str) -> str:
        """A path of the namespace as a source of mounts."""
        return f"cachefs://{self.master.url.removeprefix('http://')}{path}"

    @property
    def security(self) -> Security:
        """How tests prove themselves."""
        return Security(token_file=self._environment["CACHEFS_TOKEN_FILE"])

    @property
    def headers(self) -> dict[str, str]:
        """The same for plain HTTP."""
        return {HEADER: header_of(presented_token(self.security))}

    def exposed(self, machine: Machine) -> dict[str, float]:
        """What its process says at /metrics. Raises OSError."""
        return exposed(machine.url, self.headers)

    def worker_rows(self) -> list[dict[str, Any]]:
        """What `cachefs workers` says, asked from here: waits ask often, and a process each time
        would take a CPU of its own. Raises ClusterFailed."""
        try:
            with HttpClient(self.master.url, self.security) as master:
                table = master.call(ListWorkers(), WorkerTable)
        except CacheFSError as err:
            raise ClusterFailed(f"workers: {err.one_line()}{self.master.log_tail()}") from err
        return [msgspec.to_builtins(row) for row in table.rows]

    def epoch(self, limit_s: float = 30.0) -> int:
        """The one epoch that all workers say they know, once they do."""

        def known() -> set[int]:
            found = {row["epoch"] for row in self.worker_rows()}
            return found if len(found) == 1 and 0 not in found else set()

        (epoch,) = wait_until(known, "all workers know one epoch", limit_s)
        return int(epoch)

    def wait_until_met(self, limit_s: float = 30.0) -> None:
        """Until all workers have heard where all others are: who starts again is at another
        address, in the same epoch, and the others hear that with the answer to a heartbeat. Before
        that they do not reach it, and ask the origin for what it has."""
        self.epoch(limit_s)
        since = time.monotonic()

        def heard() -> bool:
            beaten_s: list[float] = [row["seen_s"] for row in self.worker_rows()]
            return max(beaten_s) < time.monotonic() - since

        wait_until(heard, "all workers have heard of each other", limit_s)

    def wait_until_settled(self, limit_s: float = 30.0) -> None:
        """Until every block is in its place, and every worker knows where that is."""

        def settled() -> bool:
            rows = [row for row in self.worker_rows() if row["state"] != "lost"]
            newest = max(row["epoch"] for row in rows)
            return all(row["settled"] == newest for row in rows)

        wait_until(settled, "every block is in its place", limit_s)

    def wait_until_recorded(self, limit_s: float = 30.0) -> None:
        """Until a SIGKILL of any worker would cost no cached byte: readers have what they read
        before the index has it."""
        names = {"cachefs_worker_fills_in_flight", "cachefs_worker_tier_commits_waiting"}

        def recorded() -> bool:
            pages = [self.exposed(worker) for worker in self.workers if worker.pid]
            return not any(page[name] for page in pages for name in names)

        wait_until(recorded, "everything that was filled is recorded", limit_s)

    def wait_for_states(self, *states: str, limit_s: float = 30.0) -> None:
        """Until the workers are in these states, in any order."""

        def there() -> bool:
            return sorted(row["state"] for row in self.worker_rows()) == sorted(states)

        wait_until(there, f"workers are {states}", limit_s)
