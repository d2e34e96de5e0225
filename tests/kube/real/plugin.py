"""Our pods on the real node, and what can happen to them: `Plugin`. Each event returns when every
mount is served again, unless its text says something else."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final

from cachefs.core.errors import CacheFSError
from cachefs.core.mountinfo import FSTYPE
from cachefs.fuse.deposits import HolderClient
from cachefs.launcher.processes import CLIENT_MODULE
from tests.kube.real.cluster import Cluster
from tests.kube.real.manifests import DATA, DRIVER, HOLDER_SOCKET, SYSTEM, Installation, Manifest
from tests.services.commands import CACHEFS
from tests.services.environment import environment_of
from tests.services.processes import families, wait_until

START_S: Final = 60.0
LIMIT_S: Final = 60.0
METRICS_S: Final = 5.0


class Plugin:
    """Our pods, in a cluster."""

    def __init__(self, cluster: Cluster, installation: Installation) -> None:
        self._cluster = cluster
        self.installation = installation

    def install(self, home: Path) -> None:
        """Creates our pods, and returns when the kubelet can publish volumes."""
        self.installation.make_directories()
        self._cluster.apply(*self.installation.manifests())
        for what in ("deployment/master", "daemonset/worker", "daemonset/node", "daemonset/holder"):
            self._wait_for_roll_out(what)
        source = f"file://{self.installation.source}"
        add = ["ufs", "add", source, DATA, "--master", self.installation.master]
        wait_until(lambda: _runs(home, *add), "the master has the source", START_S)
        wait_until(self.is_registered, "the kubelet knows the driver", START_S)

    # ---- what there is ---------------------------------------------------------------------------

    def is_registered(self) -> bool:
        nodes = self._cluster.get("csinodes")["items"]
        names = [one["name"] for node in nodes for one in node["spec"].get("drivers") or []]
        return DRIVER in names

    def claimants(self) -> dict[str, str]:
        """Returns the name of the agent that serves a mount, by the mount's key; "" for none.
        Raises CacheFSError without a holder."""
        with HolderClient(str(HOLDER_SOCKET)) as holder:
            return holder.claimants()

    def mounts(self) -> list[str]:
        """Returns the places of our mounts on the node: the shared ones and those of pods."""
        lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        return [fields[1] for fields in lines if fields[2] == FSTYPE]

    def shared_mounts(self) -> list[str]:
        return [place for place in self.mounts() if f"/plugins/{DRIVER}/" in place]

    def pod(self, app: str) -> str:
        """Returns the name of the one pod of a kind."""
        (name,) = self._cluster.pods(f"app={app}", namespace=SYSTEM)
        return name

    def pid(self, app: str, container: str) -> int:
        return self._cluster.pid(self.pod(app), container, namespace=SYSTEM)

    def clients(self) -> list[int]:
        """Returns the client processes of the fuse container."""
        return [pid for pid in families([self.pid("node", "fuse")]) if _runs_client(pid)]

    def metrics(self, path: Path) -> str:
        """Returns the metrics that a process serves at a socket. Raises OSError."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(METRICS_S)
            sock.connect(str(path))
            connection = http.client.HTTPConnection("localhost", timeout=METRICS_S)
            connection.sock = sock
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    # ---- events ----------------------------------------------------------------------------------

    def roll(self, tag: str) -> None:
        """Upgrades the pods of csi and fuse to another tag of the image."""
        self.installation = self.installation.rolled(tag)
        self._cluster.apply(self.installation.node())
        self._wait_for_roll_out("daemonset/node")
        self.wait_until_served()

    def roll_to_one_that_cannot_start(self) -> None:
        """Upgrades to a version whose fuse container ends at once, and back."""
        before = self.pod("node")
        self._cluster.apply(_without_agent(self.installation.node()))
        wait_until(lambda: self._restarts_beside(before) > 0, "the new container ended", LIMIT_S)
        assert before in self._cluster.pods("app=node", namespace=SYSTEM)
        self._cluster.apply(self.installation.node())
        self._wait_for_roll_out("daemonset/node")
        wait_until(lambda: self._names("node") == [before], "the new pod is gone", LIMIT_S)
        self.wait_until_served()

    def kill(self, app: str, container: str) -> None:
        """Ends a container, as the kernel does when memory is short: by SIGKILL to its first
        process, with which every other one of it ends."""
        pod = self.pod(app)
        before = self._cluster.container_id(pod, container, namespace=SYSTEM)
        os.kill(self._cluster.pid(pod, container, namespace=SYSTEM), signal.SIGKILL)
        wait_until(
            lambda: self._cluster.container_id(pod, container, namespace=SYSTEM) != before,
            f"{container} of {pod} is started again",
            LIMIT_S,
        )
        self._cluster.wait(f"pod/{pod}", "condition=Ready", namespace=SYSTEM)
        self.wait_until_served()

    def kill_client(self) -> None:
        """Ends the client processes alone."""
        before = self.clients()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.clients() and not {*self.clients()} & {*before}, "a successor")
        self.wait_until_served()

    def delete(self, app: str) -> None:
        """Deletes the pod of a DaemonSet, which is created anew."""
        before = self.pod(app)
        self._cluster.kubectl("delete", "pod", before, "-n", SYSTEM, "--wait=false")
        wait_until(lambda: {*self._names(app)} - {before}, f"another pod {app}", LIMIT_S)
        wait_until(lambda: before not in self._names(app), f"{before} has ended", LIMIT_S)
        self._wait_for_roll_out(f"daemonset/{app}")
        self.wait_until_served()

    def remove_node_pods(self) -> None:
        """Removes the pods of csi and fuse, and returns when they have ended. Nothing serves."""
        self._cluster.kubectl("delete", "daemonset", "node", "-n", SYSTEM)
        wait_until(lambda: not self._names("node"), "the pods are removed", LIMIT_S)

    def create_node_pods(self) -> None:
        self._cluster.apply(self.installation.node())
        self._wait_for_roll_out("daemonset/node")
        self.wait_until_served()

    def lose(self) -> None:
        """Ends the holder and the fuse container at the same moment: every mount dies."""
        victims = [self.pid("holder", "holder"), self.pid("node", "fuse")]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    # ---- waiting ---------------------------------------------------------------------------------

    def wait_until_served(self) -> None:
        """Waits until the holder has a claimed deposit of each shared mount."""
        wait_until(self._is_served, "every mount is served", LIMIT_S)

    def _is_served(self) -> bool:
        try:
            claimants = self.claimants()
        except CacheFSError:  # the holder starts
            return False
        return len(claimants) >= len(self.shared_mounts()) and all(claimants.values())

    def _wait_for_roll_out(self, what: str) -> None:
        if what == "daemonset/holder":  # kubectl has no status of the strategy OnDelete
            is_ready = "jsonpath={.status.numberReady}=1"
            return self._cluster.wait(what, is_ready, namespace=SYSTEM, limit_s=START_S)
        return self._cluster.wait_for_roll_out(what, namespace=SYSTEM)

    def _names(self, app: str) -> list[str]:
        """Returns the pods of a kind, those that end too."""
        found = self._cluster.get("pods", "-n", SYSTEM, "-l", f"app={app}")["items"]
        return [pod["metadata"]["name"] for pod in found]

    def _restarts_beside(self, pod: str) -> int:
        found = self._cluster.get("pods", "-n", SYSTEM, "-l", "app=node")["items"]
        return sum(
            status["restartCount"]
            for other in found
            if other["metadata"]["name"] != pod
            for status in other["status"].get("containerStatuses", [])
        )


def _runs(home: Path, *arguments: str) -> bool:
    """Runs a command line of `cachefs`; prints the errors of one that fails."""
    done = subprocess.run(
        [str(CACHEFS), *arguments], capture_output=True, text=True, env=environment_of(home),
        timeout=START_S,
    )  # fmt: skip
    print(done.stderr, end="")
    return done.returncode == 0


def _runs_client(pid: int) -> bool:
    try:
        return CLIENT_MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _without_agent(daemon_set: Manifest) -> Manifest:
    for container in daemon_set["spec"]["template"]["spec"]["containers"]:
        if container["name"] == "fuse":
            container["command"] = ["/busybox", "false"]
    return daemon_set
