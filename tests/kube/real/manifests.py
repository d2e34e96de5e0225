"""The objects that tests create: our driver, agents, holder, worker and master on a node, and the
pods that use a volume. They are fixtures, and no model of a deployment.

Containers run this clone and the machine's Python, at the same paths as here.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.kube.real import image, reader

ROOT: Final = Path(__file__).parents[3]
SYSTEM: Final = "cachefs-system"
DRIVER: Final = "csi.cachefs.io"
RUN: Final = Path("/run/cachefs")
HOLDER_SOCKET: Final = RUN / "holder" / "holder.sock"
WORKER_SOCKET: Final = RUN / "worker" / "worker.sock"
CSI_METRICS: Final = RUN / "csi-metrics.sock"
AGENT_METRICS: Final = RUN / "agent-metrics.sock"
READY_FILE: Final = "/tmp/ready"
LINGER_S: Final = 3.0
DATA: Final = "/data"  # of the cluster: where it has the reader's files
SERVICE_USER: Final = 65532
TRAINER_USER: Final = 1000
READER: Final = Path(__file__).with_name("reader.py")
_BIN: Final = Path(sys.executable).parent
_NO_RIGHTS: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
RESTRICTED: Final = {
    "runAsUser": TRAINER_USER,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}

Manifest = dict[str, Any]


def host_directories() -> list[Path]:
    """Returns what a container needs to run this clone: the machine's programs and libraries, its
    Python, the virtual environment, the clone."""
    wanted = sorted({Path("/usr"), Path(sys.base_prefix).resolve(), Path(sys.prefix), ROOT})
    return [path for path in wanted if not any(other in path.parents for other in wanted)]


def namespace(name: str, level: str) -> Manifest:
    """Returns a namespace that enforces a level of pod security."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }


def csi_driver() -> Manifest:
    spec = {
        "attachRequired": False,
        "podInfoOnMount": True,
        "requiresRepublish": True,
        "fsGroupPolicy": "None",
        "seLinuxMount": False,
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    }
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": spec,
    }


# ---- pods of a restricted namespace --------------------------------------------------------------


def host_claim(namespace: str) -> list[Manifest]:
    """Returns a volume with the machine's files and its claim: a restricted namespace has no
    volumes of the type hostPath, but claims."""
    common = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
    }
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/"},
        "claimRef": {"namespace": namespace, "name": "host"},
    }
    claim = {
        **common,
        "volumeName": f"host-{namespace}",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"host-{namespace}"},
            "spec": volume,
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "host", "namespace": namespace},
            "spec": claim,
        },
    ]


def restricted_pod(name: str, namespace: str, *command: str) -> Manifest:
    """Returns a pod that a restricted namespace admits, with busybox alone."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": _restricted_spec([_container("main", *command)], []),
    }


def _restricted_spec(containers: list[Manifest], volumes: list[Manifest]) -> Manifest:
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": RESTRICTED,
        "restartPolicy": "Never",
        "containers": containers,
        "volumes": volumes,
    }


def trainer(name: str, namespace: str, path: str, seconds: float) -> Manifest:
    """Returns a pod that reads a path of the cluster for some seconds; see reader.py. The namespace
    needs its `host_claim`."""
    command = [sys.executable, "-I", str(READER), "read", "/data", f"{seconds:g}"]
    mounts = [
        {"name": "host", "mountPath": str(where), "subPath": str(where)[1:], "readOnly": True}
        for where in host_directories()
    ]
    container = _container("main", *command)
    container["volumeMounts"] = [*mounts, {"name": "data", "mountPath": "/data"}]
    container["startupProbe"] = {
        "exec": {"command": ["/busybox", "test", "-e", reader.READY]},
        "periodSeconds": 1,
        "failureThreshold": 60,
    }
    volumes = [
        {"name": "host", "persistentVolumeClaim": {"claimName": "host"}},
        {"name": "data", "csi": inline_volume(path)},
    ]
    pod = restricted_pod(name, namespace)
    pod["spec"] = _restricted_spec([container], volumes)
    return pod


def checker(name: str, namespace: str, path: str, file: str, digest: str) -> Manifest:
    """Returns a small pod that compares a file of a path again and again with its SHA-256, and
    fails if it differs or cannot be read."""
    right = f'test "$(/busybox sha256sum < /data/{file})" = "{digest}  -"'
    loop = f"while {right}; do /busybox sleep 2; done; exit 1"
    return _small(name, namespace, path, "/busybox", "sh", "-c", loop)


def keeper(name: str, namespace: str, path: str) -> Manifest:
    """Returns a small pod that has a volume and does not read it."""
    return _small(name, namespace, path, "/busybox", "sleep", "1000")


def _small(name: str, namespace: str, path: str, *command: str) -> Manifest:
    container = _container("main", *command)
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    pod = restricted_pod(name, namespace)
    pod["metadata"]["labels"] = {"app": "small"}
    pod["spec"] = _restricted_spec([container], [{"name": "data", "csi": inline_volume(path)}])
    return pod


def inline_volume(path: str) -> Manifest:
    """Returns the volume's source that a pod names in its own manifest."""
    return {"driver": DRIVER, "readOnly": True, "volumeAttributes": {"path": path}}


# ---- our own pods --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Installation:
    """Our pods on a node. `state` is a directory for the master's store and the worker's tier,
    `source` one with files, which the cluster has as a source."""

    kubelet: Path
    state: Path
    source: Path
    master_port: int
    tag: str = image.TAGS[0]

    @property
    def master(self) -> str:
        return f"127.0.0.1:{self.master_port}"

    def rolled(self, tag: str) -> Installation:
        """Returns the same with another tag of the image."""
        return replace(self, tag=tag)

    def make_directories(self) -> None:
        """Makes what pods expect on the node: as root, before the pods are created."""
        RUN.mkdir(exist_ok=True)
        for path in (HOLDER_SOCKET.parent, WORKER_SOCKET.parent, self.state):
            path.mkdir(exist_ok=True)
        for name in ("master", "worker", "tier"):
            (self.state / name).mkdir(exist_ok=True)
            (self.state / name).chmod(0o700)
            os.chown(self.state / name, SERVICE_USER, 0)
        HOLDER_SOCKET.parent.chmod(0o700)
        WORKER_SOCKET.parent.chmod(0o750)
        os.chown(WORKER_SOCKET.parent, SERVICE_USER, 0)

    def manifests(self) -> list[Manifest]:
        """Returns all objects, those first that others need."""
        system = namespace(SYSTEM, "privileged")
        return [system, csi_driver(), *self.cluster(), self.holder(), self.node()]

    def cluster(self) -> list[Manifest]:
        """Returns the master and the worker."""
        return [self.master_deployment(), self.worker()]

    def master_deployment(self) -> Manifest:
        home = self.state / "master"
        container = self._ours(
            "master", str(_BIN / "cachefs"), "master", "--no-token", "--listen", self.master,
            "--home", str(home), "--store", f"lmdb:{home}/store",
        )  # fmt: skip
        spec = self._service(container, [home, self.source])
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "master", "namespace": SYSTEM},
            "spec": {"strategy": {"type": "Recreate"}, **_templated("master", spec)},
        }

    def worker(self) -> Manifest:
        home, tier = self.state / "worker", self.state / "tier"
        container = self._ours(
            "worker", str(_BIN / "cachefs"), "worker", "--no-token", "--master", self.master,
            "--socket", str(WORKER_SOCKET), "--home", str(home), "--tier", f"ssd:{tier}:1GiB",
            "--memory-limit", "1GiB",
        )  # fmt: skip
        spec = self._service(container, [home, tier, WORKER_SOCKET.parent, self.source])
        return _daemon_set("worker", spec, {"type": "RollingUpdate"})

    def _service(self, container: Manifest, writable: list[Path]) -> Manifest:
        """Returns the spec of a pod of a server, which has no rights and the node's network."""
        container["securityContext"] = {
            "runAsUser": SERVICE_USER, "runAsGroup": 0, "runAsNonRoot": True, **_NO_RIGHTS,
        }  # fmt: skip
        return {"hostNetwork": True, **_pod_spec([container], writable)}

    def holder(self) -> Manifest:
        container = self._ours(
            "holder", sys.executable, "-I", "-m", "cachefs.holder", str(HOLDER_SOCKET.parent)
        )
        container["securityContext"] = {**_NO_RIGHTS, "readOnlyRootFilesystem": True}
        spec = _pod_spec([container], [HOLDER_SOCKET.parent])
        return _daemon_set("holder", spec, {"type": "OnDelete"})

    def node(self) -> Manifest:
        """Returns the pods that are replaced by an upgrade: the new pod starts beside the old."""
        surge = {"maxSurge": 1, "maxUnavailable": 0}
        spec = _pod_spec([self._csi(), self._fuse()], [RUN])
        spec["volumes"] += [
            _host_volume(self.kubelet), _host_volume(self.plugin, "DirectoryOrCreate"),
        ]  # fmt: skip
        made = _daemon_set("node", spec, {"type": "RollingUpdate", "rollingUpdate": surge})
        made["spec"]["minReadySeconds"] = 1
        return made

    @property
    def plugin(self) -> Path:
        return self.kubelet / "plugins" / DRIVER

    def _csi(self) -> Manifest:
        container = self._ours(
            "csi", str(_BIN / "cachefs"), "csi", "--node-id", "$(NODE_NAME)",
            "--endpoint", f"unix:{self.plugin}/csi.sock",
            "--registration-dir", f"{self.kubelet}/plugins_registry",
            "--kubelet-dir", str(self.kubelet), "--master", self.master,
            "--holder", str(HOLDER_SOCKET), "--linger", f"{LINGER_S:g}s",
            "--metrics", f"unix:{CSI_METRICS}", "--log-format", "json",
        )  # fmt: skip
        container["securityContext"] = {"privileged": True}
        container["env"].append(_field("NODE_NAME", "spec.nodeName"))
        container["volumeMounts"] += [
            _mount(RUN), {**_mount(self.kubelet), "mountPropagation": "Bidirectional"},
        ]  # fmt: skip
        return container

    def _fuse(self) -> Manifest:
        container = self._ours(
            "fuse", str(_BIN / "cachefs"), "fuse-agent", "--name", "$(POD_NAME)",
            "--holder", str(HOLDER_SOCKET), "--worker-socket", str(WORKER_SOCKET),
            "--ready-file", READY_FILE, "--metrics", f"unix:{AGENT_METRICS}",
            "--log-format", "json",
        )  # fmt: skip
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        }
        container["env"].append(_field("POD_NAME", "metadata.name"))
        container["readinessProbe"] = {
            "exec": {"command": ["/busybox", "test", "-e", READY_FILE]},
            "periodSeconds": 1,
        }
        container["volumeMounts"] += [
            _mount(RUN), {**_mount(self.plugin), "mountPropagation": "HostToContainer"},
        ]  # fmt: skip
        return container

    def _ours(self, name: str, *command: str) -> Manifest:
        """Returns a container that runs this clone."""
        container = _container(name, *command, tag=self.tag)
        container["env"] = [{"name": "HOME", "value": "/tmp"}]
        container["resources"] = {"requests": {"cpu": "10m", "memory": "24Mi"}}
        container["volumeMounts"] = [_mount(path, read_only=True) for path in host_directories()]
        return container


def _container(name: str, *command: str, tag: str = image.TAGS[0]) -> Manifest:
    return {
        "name": name,
        "image": f"{image.NAME}:{tag}",
        "imagePullPolicy": "Never",
        "command": [*command],
        "securityContext": _NO_RIGHTS,
    }


def _pod_spec(containers: list[Manifest], writable: list[Path]) -> Manifest:
    """Returns a pod's spec. Its one container, if it has one, mounts the writable directories."""
    if len(containers) == 1:
        containers[0]["volumeMounts"] += map(_mount, writable)
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 3,
        "tolerations": [{"operator": "Exists"}],
        "containers": containers,
        "volumes": [*map(_host_volume, [*host_directories(), *writable])],
    }


def _templated(name: str, spec: Manifest) -> Manifest:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"selector": {"matchLabels": labels}, "template": template}


def _daemon_set(name: str, spec: Manifest, strategy: Manifest) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": SYSTEM},
        "spec": {"updateStrategy": strategy, **_templated(name, spec)},
    }


def _volume_name(path: Path) -> str:
    return "host" + "".join(c if c.isalnum() else "-" for c in str(path).lower())[-50:].rstrip("-")


def _host_volume(path: Path, kind: str = "Directory") -> Manifest:
    return {"name": _volume_name(path), "hostPath": {"path": str(path), "type": kind}}


def _mount(path: Path, *, read_only: bool = False) -> Manifest:
    return {"name": _volume_name(path), "mountPath": str(path), "readOnly": read_only}


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
