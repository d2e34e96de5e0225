"""A release of the chart on the real node: `Release`. Its pods run the image that tests build. The
command lines are those of docs/kubernetes.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.deploy import image
from tests.deploy.chart import CHART, ROOT, helm
from tests.kube.real.cluster import Cluster, Manifest
from tests.kube.real.manifests import DRIVER, SERVICE_USER
from tests.kube.real.namespaces import NODE_ADDRESS
from tests.services.files import files_below
from tests.services.s3_server import free_port

NAME: Final = "cachefs"
SPACE: Final = "cachefs"
PAGE: Final = ROOT / "docs" / "kubernetes.md"
TAGS: Final = ("1", "2")  # the same image: an upgrade needs a name that changes
RUN: Final = Path("/run/cachefs-chart")
IN_MEMORY: Final = Path("/run/cachefs-chart-memory")  # /run is a tmpfs here
SOURCE: Final = "/srv/source"  # in containers
LINGER: Final = "3s"
LABEL: Final = f"app.kubernetes.io/instance={NAME}"
WAIT_S: Final = 150.0
ACCESS_KEY: Final = "AKIAPLANTEDPLANTED00"
OTHER_KEY: Final = "planted/secret/key/of/the/tests/00000000"
IN_PAGE: Final = {  # words of the page, and what stands in their place here
    "REGISTRY/cachefs": image.NAME,
    "s3://bucket/imagenet": f"file://{SOURCE}",
    "debian:12": f"{image.NAME}:{TAGS[0]}",
    "--wait": f"--wait --timeout {WAIT_S:.0f}s",
    "--timeout=1h": f"--timeout={WAIT_S:.0f}s",
}
# What a release may leave: names of sources, and the definition of data sets.
KINDS: Final = (
    "all,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,"
    "poddisruptionbudgets,storageclasses,csidrivers,configmaps"
)


class Release:
    """The release. `root` is a directory of the node."""

    def __init__(self, cluster: Cluster, root: Path, source: Path) -> None:
        self._cluster = cluster
        self._root = root
        self._source = source
        self._port = free_port()
        self.values = root / "values.json"
        self._home = root / "home"

    # ---- installing ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Imports the image, and makes the volume of the master."""
        self._root.mkdir()
        archive = self._root / "image.tar"
        image.write_archive(image.built(), archive, *TAGS)
        self._cluster.import_image(archive)
        archive.unlink()
        store = self._root / "store"
        store.mkdir(mode=0o700)
        os.chown(store, SERVICE_USER, SERVICE_USER)
        self.values.write_text(json.dumps(self._values()))
        self._cluster.apply(_volume(store))
        self._write_home()

    def _values(self) -> dict[str, Any]:
        files = {"name": "source", "hostPath": {"path": str(self._source), "type": "Directory"}}
        mount = {"name": "source", "mountPath": SOURCE, "readOnly": True}
        source = {"extraVolumes": [files], "extraVolumeMounts": [mount]}
        address = {
            "KUBERNETES_SERVICE_HOST": NODE_ADDRESS,
            "KUBERNETES_SERVICE_PORT": str(self._cluster.layout.api_port),
        }
        return {
            "image": {"repository": image.NAME, "tag": TAGS[0], "pullPolicy": "Never"},
            "runDir": str(RUN),
            "kubeletDir": str(self._cluster.kubelet_directory),
            "master": {
                "address": f"{NODE_ADDRESS}:{self._port}", "port": self._port, "hostNetwork": True,
                "persistence": {"storageClassName": "-"}, **source,
            },
            "worker": {
                "tiers": self.tiers(64), "memoryBudget": "512MiB",
                "stateDir": str(self._root / "worker"), **source,
            },
            "node": {"linger": LINGER},
            # The node has no proxy for addresses of services.
            "controller": {
                "fileSources": True,
                "extraEnv": [{"name": name, "value": value} for name, value in address.items()],
            },
        }  # fmt: skip

    def tiers(self, in_memory_mib: int) -> list[dict[str, str]]:
        return [
            {"type": "mem", "size": f"{in_memory_mib}MiB", "hostPath": str(IN_MEMORY)},
            {"type": "ssd", "size": "1GiB", "hostPath": str(self._root / "tier")},
        ]

    def _write_home(self) -> None:
        """Writes what the page's commands find: credentials, and a helm that adds our values."""
        (self._home / ".aws").mkdir(parents=True)
        keys = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {OTHER_KEY}\n"
        (self._home / ".aws" / "credentials").write_text(keys)
        added = f'case $1 in upgrade) set -- "$@" --values {self.values} ;; esac'
        shim = self._home / "helm"
        shim.write_text(f'#!/bin/sh\n{added}\nexec {helm()} "$@"\n')
        shim.chmod(0o755)
        (self._home / "deploy").symlink_to(ROOT / "deploy")

    # ---- the page --------------------------------------------------------------------------------

    def follow_page(self, number: int) -> str:
        """Runs a block of the page's command lines, and returns what it prints. Raises
        AssertionError."""
        (text,) = re.findall("^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.M)[number:][:1]
        for words, ours in IN_PAGE.items():
            text = text.replace(words, ours)
        environment = self._cluster.environment
        path = f"{self._home}:{environment['PATH']}"
        done = subprocess.run(
            ["sh", "-euc", text], cwd=self._home, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=2 * WAIT_S,
            env={**environment, "HOME": str(self._home), "PATH": path},
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self._cluster.report(SPACE)}"
        return done.stdout

    def secrets(self) -> list[str]:
        """Returns what no log, event or object may have."""
        return [(self._home / "cachefs-token").read_text().strip(), ACCESS_KEY, OTHER_KEY]

    # ---- helm ------------------------------------------------------------------------------------

    def upgrade(self, tag: str, values: dict[str, Any]) -> None:
        """Upgrades the release, and returns when its pods are ready. Raises AssertionError with
        helm's words and the state of the pods."""
        given = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        more = [word for one in given for word in ("--set-json", one)]
        done = self.run(
            "upgrade", NAME, str(CHART), "--reuse-values", "--wait", f"--timeout={WAIT_S:.0f}s",
            "--set-string", f"image.tag={tag}", *more,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{self._cluster.report(SPACE)}"
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Waits for pods that helm takes as ready because they may be unavailable."""
        for part in ("worker", "node"):
            self._cluster.wait_for_roll_out(f"daemonset/{NAME}-{part}", namespace=SPACE)

    def uninstall(self) -> subprocess.CompletedProcess[str]:
        return self.run("uninstall", NAME, "--wait", f"--timeout={WAIT_S:.0f}s")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs helm in the namespace of the release."""
        return subprocess.run(
            [helm(), *arguments, "--namespace", SPACE], capture_output=True, text=True,
            timeout=2 * WAIT_S, env=self._cluster.environment,
        )  # fmt: skip

    # ---- what there is ---------------------------------------------------------------------------

    def containers(self) -> Iterator[tuple[str, int]]:
        """Yields the containers that run, with the pid of the first process of each."""
        for pod in self._cluster.get("pods", "-n", SPACE, "-l", LABEL)["items"]:
            name = pod["metadata"]["name"]
            for status in pod["status"].get("containerStatuses", ()):
                if "running" in status["state"]:
                    yield status["name"], self._cluster.pid(name, status["name"], namespace=SPACE)

    def objects(self) -> set[str]:
        """Returns the objects of the release, in every namespace."""
        found = self._cluster.kubectl("get", KINDS, "-A", "-l", LABEL, "-o", "name")
        return {*found.split()}

    def is_registered(self) -> bool:
        nodes = self._cluster.get("csinodes")["items"]
        return DRIVER in [
            one["name"] for node in nodes for one in node["spec"].get("drivers") or []
        ]

    def in_memory_bytes(self) -> int:
        """Returns the bytes of the tier in memory. A file may have several names."""
        found: dict[int, int] = {}
        for path in files_below(IN_MEMORY):
            with contextlib.suppress(FileNotFoundError):  # the worker has removed it
                status = path.lstat()
                found[status.st_ino] = status.st_blocks * 512
        return sum(found.values())

    def images(self) -> set[str]:
        """Returns the tags that the pods of the release run, those of the holder aside."""
        pods = self._cluster.get("pods", "-n", SPACE, "-l", LABEL)["items"]
        return {
            re.sub(".*:", "", container["image"])
            for pod in pods
            if "-holder-" not in pod["metadata"]["name"]
            for container in pod["spec"]["containers"]
        }

    def texts(self) -> str:
        """Returns the logs and the events of the release, and the objects that are no secrets."""
        return self._cluster.report(SPACE) + self._cluster.kubectl(
            "get", "all,events,configmaps,datasets", "-A", "-o", "yaml"
        )


def _volume(directory: Path) -> Manifest:
    """Returns the volume of the master's claim."""
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "chart-store"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"},
            "storageClassName": "", "hostPath": {"path": str(directory)},
            "claimRef": {"namespace": SPACE, "name": f"store-{NAME}-master-0"},
        },
    }  # fmt: skip
