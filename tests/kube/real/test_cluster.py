"""The real node itself: what every test on it relies on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.kube.real import configuration
from tests.kube.real.cluster import START_S, Cluster, ClusterFailed
from tests.kube.real.leftovers import nothing_left
from tests.kube.real.manifests import TRAINER_USER, namespace, restricted_pod
from tests.kube.real.programs import VERSION
from tests.services.processes import is_running, wait_until

SPACE = "restricted"


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> str:
    """A namespace that enforces restricted pod security."""
    cluster.apply(namespace(SPACE, "restricted"))
    cluster.wait("serviceaccount/default", "create", namespace=SPACE)
    return SPACE


def test_the_node_is_ready_within_a_minute(cluster: Cluster, start_s: float) -> None:
    (node,) = cluster.get("nodes")["items"]
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{VERSION}"
    assert start_s <= START_S


def test_a_restricted_pod_runs_as_a_user_and_prints(cluster: Cluster, space: str) -> None:
    cluster.apply(restricted_pod("printer", space, "/busybox", "id", "-u"))
    cluster.wait("pod/printer", "jsonpath={.status.phase}=Succeeded", namespace=space)
    assert cluster.logs("printer", namespace=space) == f"{TRAINER_USER}\n"


def test_a_restricted_namespace_refuses_a_privileged_pod(cluster: Cluster, space: str) -> None:
    pod = restricted_pod("refused", space, "/busybox", "true")
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ClusterFailed, match="violates PodSecurity"):
        cluster.apply(pod)


def test_a_container_is_killed_by_its_pid(cluster: Cluster, space: str) -> None:
    cluster.apply(restricted_pod("sleeper", space, "/busybox", "sleep", "1000"))
    cluster.wait("pod/sleeper", "condition=Ready", namespace=space)
    assert cluster.pods("app=sleeper", namespace=space) == ["sleeper"]
    pid = cluster.pid("sleeper", "main", namespace=space)
    assert pid in cluster.pids()
    assert cluster.run_in(pid, "/busybox", "hostname") != ""
    assert "user:x:1000" in cluster.run_in(pid, "/busybox", "cat", "/etc/passwd")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the container ends")
    cluster.wait("pod/sleeper", "jsonpath={.status.phase}=Failed", namespace=space)


def test_requests_without_a_token_are_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterFailed, match=r"Unauthorized|logged in"):
        cluster.kubectl("--token=none", "--kubeconfig=/dev/null", *_server(cluster), "get", "nodes")


def test_a_failed_start_shows_its_logs_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(configuration, "etcd", lambda layout: ["sh", "-c", "echo broken; exit 3"])
    with nothing_left(), pytest.raises(ClusterFailed, match="etcd ended with 3"):
        Cluster(tmp_path / "c").__enter__()
    assert "---- etcd (ended)\nbroken" in capsys.readouterr().out
    assert not (tmp_path / "c").exists()


def _server(cluster: Cluster) -> list[str]:
    layout = cluster.layout
    return [f"--server={layout.api_url}", f"--certificate-authority={layout.authority}"]
