"""Our driver on the real node: pods of any user in a restricted namespace read right bytes, while
containers of ours are killed and replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kube.real import reader
from tests.kube.real.cluster import Cluster
from tests.kube.real.image import TAGS
from tests.kube.real.manifests import (
    DRIVER,
    SYSTEM,
    Installation,
    host_claim,
    namespace,
    trainer,
)  # fmt: skip
from tests.services.commands import CACHEFS
from tests.services.environment import environment_of
from tests.services.processes import wait_until
from tests.services.s3_server import free_port

pytestmark = pytest.mark.timeout(300)

SPACE = "ml"
LIMIT_S = 150.0  # of a reader; tests end it before
NEWER = TAGS[1]
INSTALL_S = 60.0
LONGEST_OPEN_S = 10.0  # while others want the two CPUs; the bench has the bars


@pytest.fixture(scope="module")
def installation(cluster: Cluster) -> Installation:
    """Our pods, and a path of the cluster with the reader's files."""
    root = cluster.layout.directory / "cachefs"
    source = root / "source"
    reader.write(source)
    made = Installation(cluster.kubelet_directory, root / "state", source, free_port())
    try:
        _install(cluster, made, root)
    except BaseException:
        print(cluster.report(SYSTEM))
        raise
    return made


@pytest.fixture(scope="module")
def space(cluster: Cluster, installation: Installation) -> str:
    """A namespace that enforces restricted pod security, with a claim of the node's files."""
    cluster.apply(namespace(SPACE, "restricted"), *host_claim(SPACE))
    cluster.wait("serviceaccount/default", "create", namespace=SPACE)
    return SPACE


def _install(cluster: Cluster, made: Installation, home: Path) -> None:
    """Creates our pods, and returns when the kubelet can publish volumes."""
    made.make_directories()
    cluster.apply(*made.manifests())
    for what in ("deployment/master", "daemonset/worker", "daemonset/node"):
        cluster.wait_for_roll_out(what, namespace=SYSTEM, limit_s=INSTALL_S)
    is_held = "jsonpath={.status.numberReady}=1"
    cluster.wait("daemonset/holder", is_held, namespace=SYSTEM, limit_s=INSTALL_S)
    add = ["ufs", "add", f"file://{made.source}", "/data", "--master", made.master]
    wait_until(lambda: _runs(home, *add), "the master has the source", INSTALL_S)
    wait_until(lambda: _is_registered(cluster), "the kubelet knows the driver", INSTALL_S)


def _runs(home: Path, *arguments: str) -> bool:
    """Runs a command line of `cachefs`; prints the errors of one that fails."""
    command = [str(CACHEFS), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment_of(home), timeout=INSTALL_S
    )
    print(done.stderr, end="")
    return done.returncode == 0


def _is_registered(cluster: Cluster) -> bool:
    found = cluster.get("csinodes")["items"]
    return any(
        driver["name"] == DRIVER for node in found for driver in node["spec"].get("drivers") or []
    )


def results_of(cluster: Cluster, pod: str) -> dict[str, Any]:
    """Ends a reader, which must still be running, and returns what it saw."""
    os.kill(cluster.pid(pod, "main", namespace=SPACE), signal.SIGTERM)
    cluster.wait(f"pod/{pod}", "jsonpath={.status.phase}=Succeeded", namespace=SPACE)
    found: dict[str, Any] = json.loads(cluster.logs(pod, namespace=SPACE))
    print(pod, found)
    return found


def test_readers_notice_neither_a_killed_container_nor_an_upgrade(
    cluster: Cluster, installation: Installation, space: str
) -> None:
    names = ["reader-0", "reader-1"]
    cluster.apply(*(trainer(name, space, "/data", LIMIT_S) for name in names))
    for name in names:
        cluster.wait(f"pod/{name}", "condition=Ready", namespace=space)
    kill_and_wait_for_restart(cluster, "node", "fuse")
    cluster.apply(installation.rolled(NEWER).node())
    cluster.wait_for_roll_out("daemonset/node", namespace=SYSTEM)
    for name in names:
        results = results_of(cluster, name)
        assert results["files"] > 0
        assert results["parts"] > 0
        assert (results["errors"], results["wrong"]) == (0, 0), results
        assert results["longest_open_s"] < LONGEST_OPEN_S


def kill_and_wait_for_restart(cluster: Cluster, app: str, container: str) -> None:
    """Ends a container of our one pod of a kind, as the kernel does when memory is short."""
    (pod,) = cluster.pods(f"app={app}", namespace=SYSTEM)
    before = cluster.container_id(pod, container, namespace=SYSTEM)
    os.kill(cluster.pid(pod, container, namespace=SYSTEM), signal.SIGKILL)
    wait_until(
        lambda: cluster.container_id(pod, container, namespace=SYSTEM) != before,
        f"{container} of {pod} is started again",
    )
    cluster.wait(f"pod/{pod}", "condition=Ready", namespace=SYSTEM)
