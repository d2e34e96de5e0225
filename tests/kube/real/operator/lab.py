"""A real API server, a real master and worker, and replicas of the controller: `Lab`.

The controller has the account and the rights of docs/datasets.md, and no others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from cachefs.client.admin import AdminClient
from cachefs.core import admin as a
from cachefs.core.errors import CacheFSError
from cachefs.kube.names import COMPONENT, DATASETS, DRIVER, GATE, GROUP, VERSION
from tests.kube.real.cluster import Cluster, ClusterFailed, Manifest
from tests.services.cluster import Cluster as Cache
from tests.services.commands import CACHEFS
from tests.services.metrics_page import exposed_at_socket
from tests.services.processes import wait_until

ROOT: Final = Path(__file__).parents[4]
CRD: Final = ROOT / "deploy" / "helm" / "cachefs" / "crds" / "datasets.yaml"
PAGE: Final = ROOT / "docs" / "datasets.md"
SYSTEM: Final = "cachefs"
END_S: Final = 10.0
LIMIT_S: Final = 60.0


class Replica:
    """One process of the controller."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.name = name
        self.log = lab.root / f"{name}.log"
        self.metrics_socket = lab.root / f"{name}.sock"
        command = [
            str(CACHEFS), "operator", "--master", lab.cache.master.url, "--file-sources",
            "--name", name, "--metrics", f"unix:{self.metrics_socket}", "--log-format", "json",
        ]  # fmt: skip
        with open(self.log, "ab") as file:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=lab.environment, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self.popen.kill()
        self.popen.wait(END_S)

    def stop(self) -> int:
        """Ends it by SIGTERM; returns its exit code."""
        self.popen.terminate()
        return self.popen.wait(END_S)

    def metrics(self) -> dict[str, float]:
        """Returns its metrics; {} before it listens."""
        try:
            return exposed_at_socket(self.metrics_socket)
        except OSError:
            return {}

    @property
    def acts(self) -> bool:
        return self.metrics().get("cachefs_operator_leader") == 1.0

    @property
    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.popen.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


class Lab:
    """Everything, from `start` to `close`."""

    def __init__(self, control: Cluster, cache: Cache, root: Path) -> None:
        self.control = control
        self.cache = cache
        self.root = root
        self.replicas: list[Replica] = []
        self.admin = AdminClient(cache.master.url, cache.security)

    def prepare(self) -> None:
        """Defines Datasets, and makes the controller's account."""
        control = self.control
        control.kubectl("apply", "-f", str(CRD))
        control.kubectl("wait", "crd/datasets.cachefs.io", "--for=condition=Established")
        account = {"kind": "ServiceAccount", "name": "operator", "namespace": SYSTEM}
        role, local = rights()
        control.apply(
            namespace(SYSTEM),
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named("operator", SYSTEM)},
            role,
            local,
            _binding("ClusterRoleBinding", role, account),
            _binding("RoleBinding", local, account),
        )
        token = control.kubectl(
            "create", "token", "operator", "-n", SYSTEM, "--duration=4h"
        ).strip()
        (self.root / "kubeconfig").write_text(self._kubeconfig(token))

    def _kubeconfig(self, token: str) -> str:
        layout = self.control.layout
        found = json.loads(layout.kubeconfig("admin").read_text())
        found["users"][0]["user"] = {"token": token}
        found["contexts"][0]["context"]["namespace"] = SYSTEM
        return json.dumps(found)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.cache.master.environment,
            "KUBECONFIG": str(self.root / "kubeconfig"),
            "HOME": str(self.root),
        }

    def close(self) -> None:
        self.admin.close()
        for replica in self.replicas:
            if replica.popen.poll() is None:
                replica.kill()

    # ---- replicas --------------------------------------------------------------------------------

    def start(self, name: str = "a") -> Replica:
        replica = Replica(self, f"{name}{len(self.replicas)}")
        self.replicas.append(replica)
        return replica

    def start_acting(self, name: str = "a") -> Replica:
        """Starts a replica that takes the Lease at once, as no other one runs."""
        self.give_lease_back()
        replica = self.start(name)
        wait_until(lambda: replica.acts, f"{replica.name} acts", LIMIT_S)
        return replica

    def give_lease_back(self) -> None:
        """Removes the Lease of a replica that was killed, so that no test waits for its end."""
        self.control.kubectl("delete", "lease", COMPONENT, "-n", SYSTEM, "--ignore-not-found")

    # ---- sources ---------------------------------------------------------------------------------

    def source(self, name: str, files: int = 5, size_bytes: int = 20_000) -> str:
        """Returns the URL of a directory with these files."""
        directory = self.root / "sources" / name
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            (directory / str(number)).write_bytes(os.urandom(size_bytes))
        return f"file://{directory}"

    # ---- objects ---------------------------------------------------------------------------------

    def apply_again(self, *manifests: Manifest) -> None:
        """Applies objects that may go between kubectl's look at them and its change of them."""
        try:
            self.control.apply(*manifests)
        except ClusterFailed as err:
            if "(NotFound)" not in str(err):
                raise
            self.control.apply(*manifests)

    def space(self, name: str) -> str:
        self.control.apply(namespace(name))
        self.control.wait("serviceaccount/default", "create", namespace=name)
        return name

    def status(self, space: str, name: str) -> dict[str, Any]:
        found = self.control.get("dataset", name, "-n", space)
        status: dict[str, Any] = found.get("status") or {}
        return status

    def condition(self, space: str, name: str, type: str) -> dict[str, Any]:
        conditions = self.status(space, name).get("conditions") or []
        return next((one for one in conditions if one["type"] == type), {})

    def until_phase(self, space: str, name: str, phase: str, limit_s: float = LIMIT_S) -> None:
        self.until(
            lambda: self.status(space, name).get("phase") == phase,
            f"{space}/{name} is {phase}",
            limit_s,
        )

    def until_bound(self, space: str, claim: str) -> None:
        self.control.wait(f"pvc/{claim}", "create", namespace=space)
        bound = "jsonpath={.status.phase}=Bound"
        self.control.wait(f"pvc/{claim}", bound, namespace=space)

    def until(self, holds: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        wait_until(holds, what, limit_s)

    def unscheduled(self, space: str) -> list[str]:
        """Returns the pods that have no node."""
        pods = self.control.get("pods", "-n", space)["items"]
        return [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]

    def gated(self, space: str) -> list[str]:
        """Returns the pods whose gate is shut."""
        pods = self.control.get("pods", "-n", space)["items"]
        return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("schedulingGates")]

    def reasons(self, space: str, name: str) -> set[str]:
        """Returns the reasons of the events of an object."""
        field = f"--field-selector=involvedObject.name={name}"
        events = self.control.get("events", "-n", space, field)["items"]
        return {event["reason"] for event in events}

    def remove(self, space: str, *what: str) -> None:
        self.control.kubectl("delete", "-n", space, *what, "--timeout=60s", limit_s=90.0)

    def close_space(self, space: str) -> None:
        """Deletes what a test made. Raises ClusterFailed if a Dataset stays."""
        for kind in ("pods", "datasets", "pvc"):
            self.remove(space, kind, "--all", "--grace-period=0", "--force")

    # ---- the master ------------------------------------------------------------------------------

    def sources(self) -> dict[str, str]:
        """Returns the URLs of the sources at the master, by path."""
        return {"/" + row.path.decode().strip("/"): row.source.url for row in self.admin.sources()}

    def jobs(self) -> list[a.Job]:
        return [job for page in self.admin.pages("/jobs", a.Jobs) for job in page.items]

    def master_answers(self) -> bool:
        try:
            self.admin.about()
        except CacheFSError:
            return False
        return True


def dataset(space: str, name: str, source: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": "Dataset", "metadata": _named(name, space),
        "spec": {"source": source, **spec},
    }  # fmt: skip


def pod(
    space: str, name: str, names: str = "", *, claim: str = "", inline: str = "", node: str = ""
) -> Manifest:
    """A pod, gated if it names Datasets, with a volume: a claim, or inline with this path."""
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": "nothing"}],
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],  # no kubelet keeps the node ready
    }
    metadata = _named(name, space)
    if names:
        metadata["annotations"] = {DATASETS: names}
        spec["schedulingGates"] = [{"name": GATE}]
    if claim:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    if inline:
        csi = {"driver": DRIVER, "readOnly": True, "volumeAttributes": {"path": inline}}
        spec["volumes"] = [{"name": "data", "csi": csi}]
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def static_volume(space: str, name: str, path: str) -> tuple[Manifest, Manifest]:
    """A volume as an administrator makes it, without a label of ours, and its claim."""
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    claim = {"namespace": space, "name": name}
    csi = {"driver": DRIVER, "readOnly": True, "volumeHandle": f"cachefs://localhost:1{path}"}
    volume = {**common, "capacity": {"storage": "1Gi"}, "claimRef": claim, "csi": csi}
    wanted = {**common, "resources": {"requests": {"storage": "1Gi"}}}
    return (
        {
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": f"{space}-{name}"}, "spec": volume,
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": _named(name, space),
            "spec": {**wanted, "volumeName": f"{space}-{name}"},
        },
    )  # fmt: skip


def namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def rights() -> tuple[Manifest, Manifest]:
    """Returns the ClusterRole and the Role of the page."""
    blocks: Iterable[str] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)
    found = {one.get("kind"): one for one in map(yaml.safe_load, blocks) if one}
    return found["ClusterRole"], found["Role"]


def _named(name: str, space: str) -> dict[str, Any]:
    return {"name": name, "namespace": space}


def _binding(kind: str, role: Manifest, account: dict[str, str]) -> Manifest:
    group = "rbac.authorization.k8s.io"
    metadata = role["metadata"]
    reference = {"apiGroup": group, "kind": role["kind"], "name": metadata["name"]}
    return {
        "apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "roleRef": reference,
        "subjects": [account],
    }  # fmt: skip


def passed(seconds: float) -> Callable[[], bool]:
    """Returns a condition that holds after a time that is measured, not waited for."""
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s
