"""A Kubernetes cluster of one node: a whole control plane, containerd and the kubelet, as processes
of a test, on loopback and below one directory. Without a node it has no containerd and no kubelet:
pods are scheduled to a node that is only an object, and nothing runs.

    with Cluster(directory) as cluster:
        cluster.apply(pod)
        cluster.wait("pod/one", "condition=Ready", namespace="ml")

It runs in the namespaces of `namespaces.py`. At its end every process that it started, those of
containers too, is ended by SIGKILL to its pid, and its mounts, control groups and files are
removed. Tests need not delete what they created.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.kube.real import configuration, programs
from tests.kube.real.cgroups import PREFIX, ControlGroup
from tests.kube.real.configuration import NODE, Layout
from tests.kube.real.image import write_image
from tests.kube.real.namespaces import INSIDE, NODE_ADDRESS, run_command
from tests.kube.real.part import Part
from tests.services.authority import Authority
from tests.services.processes import wait_until
from tests.services.s3_server import free_port

START_S: Final = 60.0
COMMAND_LIMIT_S: Final = 30.0
CONTAINER_NAMESPACE: Final = "k8s.io"
LOG_LINES: Final = 15

Manifest = dict[str, Any]


class ClusterFailed(Exception):
    """A command or a part of the cluster failed; the text says what."""


class Cluster:
    """A cluster, from `__enter__` to `__exit__`."""

    def __init__(self, directory: Path, *, has_node: bool = True) -> None:
        assert os.environ.get(INSIDE), "a cluster changes mounts: run it by `make kube`"
        programs.check()
        self._group = ControlGroup(f"{PREFIX}{secrets.token_hex(4)}")
        self.layout = Layout(
            directory, self._group.name,
            etcd_port=free_port(), etcd_peer_port=free_port(), api_port=free_port(),
            kubelet_port=free_port(),
        )  # fmt: skip
        self._has_node = has_node
        self._parts: list[Part] = []
        self._undo = contextlib.ExitStack()

    @property
    def kubelet_directory(self) -> Path:
        return self.layout.kubelet

    # ---- start and end ---------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        try:
            self._prepare()
            self._start()
        except BaseException:
            print(self.last_lines())
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        """Makes what is undone last: files, control groups, the mount for containers' mounts."""
        layout = self.layout
        layout.directory.mkdir()
        self._undo.callback(shutil.rmtree, layout.directory)
        self._undo.callback(self._unmount, _mounts())
        self._undo.callback(self._group.remove)
        self._group.make()
        layout.kubelet.mkdir()
        # Mounts that a driver makes in its container are seen here and by other containers.
        run_command("mount", "--bind", str(layout.kubelet), str(layout.kubelet))
        run_command("mount", "--make-rshared", str(layout.kubelet))
        self._undo.callback(self._group.kill)
        self._write_files()

    def _write_files(self) -> None:
        layout = self.layout
        authority = Authority(layout.directory)
        for name in ("api-server", "kubelet", "accounts"):
            authority.issue(name, hosts=("127.0.0.1", NODE_ADDRESS))
        tokens = {client: secrets.token_urlsafe() for client in configuration.CLIENTS}
        layout.tokens.write_text(configuration.tokens_csv(tokens))
        for client, token in tokens.items():
            layout.kubeconfig(client).write_text(configuration.kubeconfig(layout, token))
        for name, text in (
            ("kubelet.yaml", configuration.kubelet_config(layout)),
            ("containerd.toml", configuration.containerd_config(layout, self._snapshotter())),
            ("cni/pods.conflist", configuration.cni_config(layout)),
        ):
            path = layout.directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def _snapshotter(self) -> str:
        """Returns overlayfs if the directory of the cluster can be the upper one of an overlay."""
        place = self.layout.directory / "overlay"
        for name in ("lower", "upper", "work", "root"):
            (place / name).mkdir(parents=True)
        options = ",".join(f"{name}dir={place}/{name}" for name in ("lower", "upper", "work"))
        root = str(place / "root")
        if not self._succeeds("mount", "-t", "overlay", "overlay", "-o", options, root):
            return "native"
        run_command("umount", root)
        return "overlayfs"

    def _start(self) -> None:
        """Starts the parts, and returns when the node is Ready."""
        layout = self.layout
        self._start_part("etcd", configuration.etcd(layout))
        self._start_part("api-server", configuration.api_server(layout))
        if not self._has_node:
            return self._start_without_node()
        self._start_part("containerd", configuration.containerd(layout))
        archive = layout.directory / "image.tar"
        write_image(archive)
        self._until(lambda: self._succeeds(*self._ctr("version")), "containerd answers")
        self.import_image(archive)
        self._start_controllers()
        self._start_part("scheduler", configuration.scheduler(layout))
        self._start_part("kubelet", configuration.kubelet(layout))
        self._until(self._is_node_ready, "the node is Ready")

    def _start_without_node(self) -> None:
        self._start_controllers()
        self._start_part("scheduler", configuration.scheduler(self.layout))
        node, status = configuration.node_object(NODE)
        self.apply(node)
        self.kubectl("patch", "node", NODE, "--subresource=status", "-p", json.dumps(status))

    def _start_controllers(self) -> None:
        self._until_answers()
        self._start_part("controller-manager", configuration.controller_manager(self.layout))

    def _until_answers(self) -> None:
        self._until(lambda: self._succeeds("kubectl", "get", "--raw", "/readyz"), "the API answers")

    def kill_api_server(self) -> None:
        """Ends the API server by SIGKILL."""
        (part,) = [part for part in self._parts if part.name == "api-server"]
        part.kill()
        self._parts.remove(part)

    def start_api_server(self) -> None:
        """Starts the API server again, and returns when it answers."""
        self._start_part("api-server", configuration.api_server(self.layout))
        self._until_answers()

    def _start_part(self, name: str, command: list[str]) -> None:
        log = self.layout.directory / f"{name}.log"
        self._parts.append(Part(name, command, log, self.environment, self._group))
        self._undo.callback(self._parts[-1].kill)

    def _until(self, holds: Callable[[], object], what: str) -> None:
        def is_so() -> bool:
            for part in self._parts:
                if not part.is_running:
                    raise ClusterFailed(f"{part.name} ended with {part.popen.returncode}")
            return bool(holds())

        wait_until(is_so, what, START_S)

    def _is_node_ready(self) -> bool:
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self._output("kubectl", "get", "node", NODE, "-o", path, check=False) == "True"

    def close(self) -> None:
        """Ends the parts and then the containers; removes mounts, groups and files. Idempotent."""
        self._undo.close()

    def _unmount(self, before: list[str]) -> None:
        """Unmounts the kubelet's directory, and what containers and the parts left mounted. Raises
        NotInTime if something stays."""

        def is_unmounted() -> bool:
            for place in reversed(_mounts()):
                if place not in before:  # an unmount of another may have unmounted it
                    self._succeeds("umount", "--lazy", place)
            return not {*_mounts()} - {*before}

        wait_until(is_unmounted, "what the cluster mounted is unmounted", COMMAND_LIMIT_S)

    def last_lines(self) -> str:
        """Returns the last lines of the log of each part."""
        return "\n".join(
            f"---- {part.name} ({'runs' if part.is_running else 'ended'})\n{part.tail(LOG_LINES)}"
            for part in self._parts
        )

    # ---- commands --------------------------------------------------------------------------------

    def kubectl(
        self, *arguments: str, input: str | None = None, limit_s: float = COMMAND_LIMIT_S
    ) -> str:
        """Returns what kubectl prints. Raises ClusterFailed with its errors."""
        return self._output("kubectl", *arguments, input=input, limit_s=limit_s)

    def get(self, *arguments: str) -> Any:
        """Returns objects, decoded: `get("pod", "one", "-n", "ml")`."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *manifests: Manifest) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": [*manifests]}
        self.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def wait(
        self, what: str, condition: str, *, namespace: str = "default", limit_s: float = 60.0
    ) -> None:
        """Waits until an object has a condition: `delete`, `condition=Ready`, `jsonpath=...`."""
        self.kubectl(
            "wait", what, f"--for={condition}", "-n", namespace, f"--timeout={limit_s:.0f}s",
            limit_s=limit_s + COMMAND_LIMIT_S,
        )  # fmt: skip

    def wait_for_roll_out(self, what: str, *, namespace: str, limit_s: float = 90.0) -> None:
        """Waits until each pod of a DaemonSet or a Deployment is of its newest form and ready."""
        self.kubectl(
            "rollout", "status", what, "-n", namespace, f"--timeout={limit_s:.0f}s",
            limit_s=limit_s + COMMAND_LIMIT_S,
        )  # fmt: skip

    def logs(self, pod: str, *, namespace: str, container: str = "") -> str:
        chosen = ["-c", container] if container else []
        return self.kubectl("logs", pod, "-n", namespace, *chosen)

    def report(self, namespace: str) -> str:
        """Returns the pods, the events and the last lines of the logs of a namespace."""
        commands = [["get", "pods", "-o", "wide"], ["get", "events"]]
        for pod in self.get("pods", "-n", namespace)["items"]:
            name = pod["metadata"]["name"]
            commands.append(["logs", name, "--all-containers", "--prefix", f"--tail={LOG_LINES}"])
        return "\n".join(
            self._output("kubectl", *command, "-n", namespace, check=False) for command in commands
        )

    # ---- containers ------------------------------------------------------------------------------

    def import_image(self, archive: Path) -> None:
        """Imports a docker archive, for pods of the node."""
        self._run(*self._ctr("images", "import", str(archive)))

    def pods(self, selector: str, *, namespace: str) -> list[str]:
        """Returns the names of the running pods with these labels that are not being deleted."""
        found = self.get("pods", "-n", namespace, "-l", selector)["items"]
        return [
            pod["metadata"]["name"]
            for pod in found
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def container_id(self, pod: str, container: str, *, namespace: str) -> str:
        for status in self.get("pod", pod, "-n", namespace)["status"]["containerStatuses"]:
            if status["name"] == container:
                return str(status["containerID"]).removeprefix("containerd://")
        raise ClusterFailed(f"{pod} has no container {container}")

    def pid(self, pod: str, container: str, *, namespace: str) -> int:
        """Returns the pid of the first process of a container, as the node sees it."""
        wanted = self.container_id(pod, container, namespace=namespace)
        for line in self._output(*self._ctr("tasks", "ls")).splitlines()[1:]:
            name, pid, *_ = line.split()
            if name == wanted:
                return int(pid)
        raise ClusterFailed(f"{container} of {pod} has no process")

    def run_in(self, pid: int, *command: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Returns what a command prints that runs, as root, with the mounts of a container."""
        enter = ["nsenter", "--target", str(pid), "--mount", "--root", "--wd=/"]
        return self._output(*enter, "--", *command, limit_s=limit_s)

    # ---- processes -------------------------------------------------------------------------------

    def pids(self) -> set[int]:
        """Returns every process of the cluster: its parts, shims and containers."""
        return self._group.pids()

    def _ctr(self, *arguments: str) -> list[str]:
        socket = str(self.layout.containerd_socket)
        return ["ctr", "--address", socket, "--namespace", CONTAINER_NAMESPACE, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client with all rights."""
        return {
            "PATH": programs.PATH,
            "HOME": str(self.layout.directory),
            "KUBECONFIG": str(self.layout.kubeconfig("admin")),
        }

    def _output(
        self, *command: str, input: str | None = None, limit_s: float = COMMAND_LIMIT_S,
        check: bool = True,
    ) -> str:  # fmt: skip
        done = self._run(*command, input=input, limit_s=limit_s, check=check)
        return done.stdout

    def _succeeds(self, *command: str) -> bool:
        return self._run(*command, check=False).returncode == 0

    def _run(
        self, *command: str, input: str | None = None, limit_s: float = COMMAND_LIMIT_S,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        done = subprocess.run(
            command, input=input, capture_output=True, text=True, timeout=limit_s,
            env=self.environment,
        )  # fmt: skip
        if check and done.returncode:
            raise ClusterFailed(f"{' '.join(command)}: {done.stderr.strip()}")
        return done


def _mounts() -> list[str]:
    """Returns the mount points of this namespace, in the order of their mounts."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines]
