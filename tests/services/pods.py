"""A node of pods without Kubernetes: a holder, agents in pid namespaces of their own, and mounts
that the holder keeps. An agent's end ends everything that it started, as a container's does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec
from cachefs.fuse import mounting
from cachefs.fuse.deposits import Deposit, HolderClient, new_key
from cachefs.fuse.kernel.mount import answer_init, mount
from cachefs.fuse.kernel.table import TakeoverTable
from cachefs.fuse.supervisor import wire
from tests.services.commands import CACHEFS
from tests.services.environment import environment_of
from tests.services.namespaces import container
from tests.services.processes import children, is_running, wait_until

ROOT: Final = Path(__file__).parents[2]
# `python -I -m cachefs.holder`, without site-packages and what an editable installation puts there.
START_HOLDER: Final = (
    "import sys; sys.path.append(sys.argv.pop(1)); from cachefs.holder.__main__ import main; main()"
)
END_S: Final = 20.0
LOG_SHOWN: Final = 4000  # characters of each agent, for a test that fails


class HolderProcess:
    """A holder in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START_HOLDER, str(ROOT), str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        self.greeting = self.popen.stdout.readline()

    @property
    def path(self) -> str:
        return str(self.directory / "holder.sock")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()


class AgentPod:
    """The fuse container of a pod: `cachefs fuse-agent` as the first process of a pid namespace."""

    def __init__(self, node: PodNode, name: str) -> None:
        self.name = name
        self.home = node.root / f"agent-{name}"
        self.home.mkdir(exist_ok=True)
        self.ready = self.home / "ready"
        self.ready.unlink(missing_ok=True)  # a container starts with the files of its image
        self.log_path = self.home / "log"
        command = container(
            *("setpriv", "--bounding-set=-all,+sys_admin", "--no-new-privs"),
            *(str(CACHEFS), "fuse-agent"),
            *("--holder", node.holder.path, "--worker-socket", str(node.worker_socket)),
            *("--name", name, "--ready-file", str(self.ready), *node.agent_options),
        )
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(
                node.contained(name, command),
                stderr=log,
                env=environment_of(self.home),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def wait_until_ready(self) -> None:
        wait_until(lambda: self.ready.exists() or not self.is_running, f"{self.name} serves")
        assert self.is_running, self.log

    @property
    def is_running(self) -> bool:
        return self.popen.poll() is None

    @property
    def first(self) -> int:
        """The pid of the agent, outside of its namespace."""
        (pid,) = wait_until(lambda: children(self.popen.pid), "the agent runs")
        return int(pid)

    def processes(self, module: str) -> list[int]:
        """The pids of its processes that run a module, outside of its namespace."""
        found, waiting = [], [self.popen.pid]
        while waiting:
            below = [pid for pid in children(waiting.pop()) if is_running(pid)]
            waiting += below
            found += [pid for pid in below if module in _title(pid)]
        return found

    def kill(self) -> None:
        """Ends the container, and everything in it, by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it as the kubelet does: SIGTERM to its first process."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.is_running:
            os.kill(self.first, number)
            self.popen.wait(END_S)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class PodNode:
    """A node with a worker's socket. As a context manager it unmounts and ends what is left."""

    def __init__(self, root: Path, worker_socket: Path, *agent_options: str) -> None:
        self.root = root
        self.worker_socket = worker_socket
        self.agent_options = agent_options
        self.holder = HolderProcess(root / "holder")
        self.agents: list[AgentPod] = []
        self.mountpoints: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for mountpoint in self.mountpoints:
            if mounting.device_at(str(mountpoint)):
                subprocess.run(["umount", "-l", str(mountpoint)], check=False, timeout=END_S)
        for agent in self.agents:
            agent.kill()
            print(f"--- log of {agent.name}\n{agent.log[-LOG_SHOWN:]}")
        self.holder.kill()

    def restart_holder(self) -> None:
        self.holder.kill()
        self.holder = HolderProcess(self.holder.directory)

    def agent(self, name: str) -> AgentPod:
        self.agents.append(AgentPod(self, name))
        return self.agents[-1]

    def contained(self, name: str, command: list[str]) -> list[str]:
        """Returns what runs the command of the container with this name."""
        return command

    def connect(self) -> HolderClient:
        return HolderClient(self.holder.path)

    def claimants(self) -> dict[str, str]:
        with self.connect() as holder:
            return holder.claimants()

    def mount(self, source: str, name: str, **client: Any) -> tuple[Path, str]:
        """Mounts a path of a cluster, and deposits the mount. `client`: fields of its spec. Returns
        its place and its key."""
        mountpoint = self.root / name
        mountpoint.mkdir()
        self.mountpoints.append(mountpoint)
        key = new_key(str(mountpoint))
        spec = ClientSpec(
            home="", socket="", source=UfsSpec(source), mountpoint=str(mountpoint),
            allow_other=True, transport="kernel", worker_wait_s=60.0, **client,
        )  # fmt: skip
        fuse_fd = mount(spec)
        negotiated = answer_init(fuse_fd, spec)
        table_fd = TakeoverTable.make()
        try:
            device = mounting.device_at(str(mountpoint))
            deposit = Deposit(spec, wire.encode_negotiated(negotiated), device)
            with self.connect() as holder:
                holder.put(key, deposit, fuse_fd, table_fd)
        finally:
            os.close(fuse_fd)
            os.close(table_fd)
        return mountpoint, key
