"""A node with a driver, whose processes are in a control group, and pods that a fake kubelet gives
volumes."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import Any, Final

from tests.kube.driver_process import DriverProcess, driver_command
from tests.kube.fake_kubelet import FakeKubelet, mounts_below
from tests.services.control_group import ControlGroup, hierarchy
from tests.services.pods import LOG_SHOWN, AgentPod, PodNode

LINGER: Final = "500ms"
DRIVER: Final = "csi"  # the name of its control group


class CsiPodNode(PodNode):
    """A node with a driver. Each container is a control group, in which its processes are."""

    def __init__(self, root: Path, worker_socket: Path, master: str) -> None:
        root.mkdir()
        super().__init__(root, worker_socket)
        self.group = ControlGroup(hierarchy() / f"cachefs-test-{secrets.token_hex(4)}")
        self.kubelet = FakeKubelet(root / "k")
        self.kubelet.directory.mkdir()
        self.master = master
        self.log_path = root / "csi.log"
        self.driver = self.start_driver()

    def contained(self, name: str, command: list[str]) -> list[str]:
        return self.group.below(name).entered_by(*command)

    def kill_group(self, agent: AgentPod) -> None:
        """Ends every process of a container at once, as the kernel does for lack of memory."""
        self.group.below(agent.name).kill()
        agent.popen.wait()

    # ---- the driver ------------------------------------------------------------------------------

    def start_driver(self) -> DriverProcess:
        """Starts a driver, and registers it."""
        command = driver_command(
            self.kubelet.directory, self.holder.path, "--master", self.master, "--linger", LINGER
        )
        home = self.root / "home"
        self.driver = DriverProcess(self.contained(DRIVER, command), home, self.log_path)
        self.kubelet.register()
        return self.driver

    def restart_driver(self) -> None:
        self.driver.stop()
        self.start_driver()

    # ---- what is there ---------------------------------------------------------------------------

    def shared(self) -> list[str]:
        return [place for place in mounts_below(self.root) if "/plugins/" in place]

    def state(self) -> dict[str, Any]:
        """Returns what volumes need, and what their end must remove: mounts and their directories,
        what the holder has, processes, and which descriptors each part has."""
        agents = [agent.first for agent in self.agents if agent.is_running]
        return {
            "mounts": mounts_below(self.root),
            "places": os.listdir(self.kubelet.directory / "plugins/csi.cachefs.io/mounts"),
            "held": self.claimants(),
            "processes": sorted(map(_name, self.group.pids())),
            "driver": _descriptors(self.driver.pid),
            "holder": _descriptors(self.holder.popen.pid),
            "agents": sorted(map(_descriptors, agents)),
        }

    def __exit__(self, *exc: object) -> None:
        self.driver.kill()
        print(f"--- log of the driver\n{self.log_path.read_text()[-LOG_SHOWN:]}")
        self.mountpoints += [Path(place) for place in reversed(mounts_below(self.root))]
        super().__exit__(*exc)
        self.group.kill()
        self.group.remove()


def descriptor_count(state: dict[str, Any]) -> int:
    """Returns how many descriptors the parts had, which open some for moments."""
    return sum(map(len, [state["driver"], state["holder"], *state["agents"]]))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has ended


def _descriptors(pid: int) -> list[str]:
    """Returns what the descriptors of a process are, without numbers in their names."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(re.sub("[0-9]+", "", os.readlink(path)))
    return sorted(found)
