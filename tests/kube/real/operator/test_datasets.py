"""Datasets on a real API server, with a real master: what they become, and when things fail."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from cachefs.kube.names import FINALIZER
from tests.kube.real.cluster import ClusterFailed
from tests.kube.real.operator.lab import Lab, Replica, dataset, pod, static_volume

OPEN_S = 3.0  # from the end of a load to the pod without its gate
LARGE = 2_000_000


def test_a_pod_is_let_go_when_its_data_is_loaded(lab: Lab, space: str) -> None:
    lab.control.apply(
        dataset(space, "one", lab.source("one", files=200), volume={"create": True}),
        pod(space, "trainer", "one", claim="one"),
        pod(space, "other", "one,missing"),
    )
    lab.until(lambda: "trainer" not in lab.gated(space), "the gate is open")
    opened_s = time.time()
    status = lab.status(space, "one")
    (job,) = [job for job in lab.jobs() if job.job == status["job"]]
    print(f"the gate was seen open {opened_s - job.ended_at_s:.2f} s after the job's end")
    assert opened_s - job.ended_at_s <= OPEN_S
    assert status["phase"] == "Loaded"
    assert (status["files"], status["cached"]) == (200, "100 % of 3.81 MiB")
    assert lab.gated(space) == ["other"]
    assert {"Loading", "Loaded"} <= lab.reasons(space, "one")
    lab.until(lambda: "Loaded" in lab.reasons(space, "trainer"), "an event of the pod")
    lab.until(lambda: "WaitingForDataset" in lab.reasons(space, "trainer"), "the event before it")


def test_the_volume_is_bound_and_all_is_removed(lab: Lab, space: str) -> None:
    source = lab.source("bound")
    lab.control.apply(dataset(space, "one", source, volume={"create": True}))
    lab.until_bound(space, "one")
    volume = lab.control.get("pvc", "one", "-n", space)["spec"]["volumeName"]
    address = lab.cache.master.url.removeprefix("http://")
    csi = lab.control.get("pv", volume)["spec"]["csi"]
    assert csi["volumeHandle"] == f"cachefs://{address}/{space}/one"
    lab.until_phase(space, "one", "Loaded")
    lab.control.kubectl("delete", "pvc", "one", "-n", space)
    lab.until_bound(space, "one")
    lab.remove(space, "dataset/one")
    assert f"/{space}/one" not in lab.sources()
    assert not [job for job in lab.jobs() if job.paths == [f"/{space}/one"]]
    assert lab.control.get("pvc", "-n", space)["items"] == []
    assert volume not in [one["metadata"]["name"] for one in lab.control.get("pv")["items"]]
    assert len([*Path(source.removeprefix("file://")).iterdir()]) == 5


def test_policies_follow_the_spec(lab: Lab, space: str) -> None:
    source = lab.source("policies")
    path = f"/{space}/one".encode()
    first = {"replicas": 2, "ttl": "7d"}
    lab.control.apply(dataset(space, "one", source, policies=first, syncInterval="5m"))
    lab.until_phase(space, "one", "Loaded")
    said = lab.admin.policies_at(path).said
    assert (said.replicas, said.ttl_s, said.sync_interval_s) == (2, 7 * 86400.0, 300.0)
    lab.control.apply(dataset(space, "one", source, policies={"replicas": 1}))
    lab.until(lambda: lab.admin.policies_at(path).said.ttl_s is None, "the TTL is gone")
    assert lab.admin.policies_at(path).said.replicas == 1


def test_two_datasets_of_one_source_have_two_paths(lab: Lab, space: str) -> None:
    source = lab.source("shared")
    lab.control.apply(dataset(space, "one", source), dataset(space, "two", source))
    for name in ("one", "two"):
        lab.until_phase(space, name, "Loaded")
    assert {f"/{space}/one", f"/{space}/two"} <= lab.sources().keys()
    lab.remove(space, "dataset/one")
    assert f"/{space}/two" in lab.sources()
    assert lab.status(space, "two")["phase"] == "Loaded"


def test_a_failed_load_keeps_the_gate_shut(lab: Lab, space: str) -> None:
    source = lab.source("big", files=4, size_bytes=LARGE)
    lab.control.apply(
        dataset(space, "one", source, policies={"quota": "1MiB"}), pod(space, "trainer", "one")
    )
    lab.until_phase(space, "one", "Failed")
    told = lab.condition(space, "one", "Loaded")
    status = lab.status(space, "one")
    print(told["message"], status)
    assert (told["status"], told["reason"]) == ("False", "LoadFailed")
    assert "quota" in told["message"]
    assert lab.gated(space) == ["trainer"]
    lab.until(lambda: "LoadFailed" in lab.reasons(space, "one"), "an event of the Dataset")
    lab.until(lambda: "DatasetFailed" in lab.reasons(space, "trainer"), "an event of the pod")
    again = {"policies": {"quota": "none"}, "load": {"revision": 1}}
    lab.control.apply(dataset(space, "one", source, **again))
    lab.until_phase(space, "one", "Loaded")
    lab.until(lambda: not lab.gated(space), "the gate is open")


def test_a_source_that_comes_late_is_attached(lab: Lab, space: str) -> None:
    missing = lab.root / "sources" / "late"
    lab.control.apply(dataset(space, "one", f"file://{missing}"))
    lab.until(
        lambda: lab.condition(space, "one", "Attached").get("reason") not in (None, "Attaching"),
        "the condition has a cause",
    )
    told = lab.condition(space, "one", "Attached")
    assert lab.status(space, "one")["phase"] == "Pending"
    assert str(missing) in told["message"]
    lab.source("late")
    lab.until_phase(space, "one", "Loaded")


def test_a_path_of_somebody_else_is_left_alone(lab: Lab, space: str) -> None:
    source = lab.source("foreign")
    lab.cache.add_ufs(source, f"/{space}/one")
    lab.control.apply(dataset(space, "one", source))
    lab.until(
        lambda: lab.condition(space, "one", "Attached").get("reason") == "PathTaken",
        "the condition names the cause",
    )
    lab.remove(space, "dataset/one")
    assert f"/{space}/one" in lab.sources()
    lab.admin.remove_source(f"/{space}/one".encode())


def test_what_cannot_change_and_what_is_unknown(lab: Lab, space: str) -> None:
    source = lab.source("fixed")
    lab.control.apply(dataset(space, "one", source))
    with pytest.raises(ClusterFailed, match="source cannot change"):
        lab.control.apply(dataset(space, "one", lab.source("another")))
    with pytest.raises(ClusterFailed, match=r"spec\.source"):
        lab.control.apply(dataset(space, "two", "s3://key:secret@bucket"))
    with pytest.raises(ClusterFailed, match="only a source s3"):
        lab.control.apply(dataset(space, "two", source, credentials={"profile": "x"}))
    with pytest.raises(ClusterFailed, match="bandwidht"):
        lab.control.apply(dataset(space, "two", source, load={"bandwidht": "1MiB"}))
    patch = '{"spec": {"future": 1}, "metadata": {"labels": {"a": "b"}}}'
    lab.control.kubectl("patch", "dataset", "one", "-n", space, "--type=merge", "-p", patch)
    lab.until_phase(space, "one", "Loaded")


def test_pods_that_use_the_data_keep_it(lab: Lab, space: str) -> None:
    lab.control.apply(dataset(space, "one", lab.source("used"), volume={"create": True}))
    lab.until_phase(space, "one", "Loaded")
    lab.control.apply(pod(space, "trainer", claim="one", node="nowhere"))
    lab.control.kubectl("delete", "dataset", "one", "-n", space, "--wait=false")
    lab.until(
        lambda: lab.condition(space, "one", "Removable").get("reason") == "InUse",
        "the condition names the pods",
    )
    assert lab.condition(space, "one", "Removable")["message"] == f"used by {space}/trainer"
    lab.until(lambda: "InUse" in lab.reasons(space, "one"), "an event names them")
    assert f"/{space}/one" in lab.sources()
    assert FINALIZER in lab.control.get("dataset", "one", "-n", space)["metadata"]["finalizers"]
    lab.remove(space, "pod/trainer", "--grace-period=0", "--force")
    lab.control.wait("dataset/one", "delete", namespace=space)
    assert f"/{space}/one" not in lab.sources()


def test_pods_of_other_namespaces_keep_the_data(lab: Lab, space: str) -> None:
    """Pods with an inline volume, and with the claim of a volume that an administrator made."""
    lab.control.apply(dataset(space, "one", lab.source("used-elsewhere"), load={"enabled": False}))
    lab.until(lambda: f"/{space}/one" in lab.sources(), "the source is attached")
    other = lab.space(f"{space[:50]}-other")
    path = f"/{space}/one"
    lab.control.apply(
        *static_volume(other, "static", path),
        pod(other, "claims", claim="static", node="nowhere"),
        pod(other, "shows", inline=path, node="nowhere"),
    )
    lab.control.kubectl("delete", "dataset", "one", "-n", space, "--wait=false")
    users = f"used by {other}/claims, {other}/shows"
    lab.until(
        lambda: lab.condition(space, "one", "Removable").get("message") == users,
        "the condition names the pods",
    )
    assert path in lab.sources()
    lab.close_space(other)
    lab.control.kubectl("delete", "pv", f"{other}-static")
    lab.control.wait("dataset/one", "delete", namespace=space)
    assert path not in lab.sources()


def test_a_master_that_is_away_is_told_and_nothing_is_detached(lab: Lab, space: str) -> None:
    source = lab.source("kept")
    lab.control.apply(dataset(space, "one", source))
    lab.until_phase(space, "one", "Loaded")
    job = lab.status(space, "one")["job"]
    lab.cache.master.kill()
    try:
        lab.until(
            lambda: lab.condition(space, "one", "MasterReachable").get("status") == "False",
            "the status says so",
        )
        assert lab.status(space, "one")["phase"] == "Loaded"
        lab.control.apply(dataset(space, "two", source))
        lab.control.kubectl("delete", "dataset", "one", "-n", space, "--wait=false")
    finally:
        lab.cache.master.start()
    lab.until(lab.master_answers, "the master answers")
    lab.until_phase(space, "two", "Loaded")
    lab.control.wait("dataset/one", "delete", namespace=space)
    assert lab.condition(space, "two", "MasterReachable")["status"] == "True"
    assert lab.sources() == {f"/{space}/two": source}
    assert job not in [one.job for one in lab.jobs()]


def test_watches_resume_after_a_restart_of_the_api_server(
    lab: Lab, space: str, replica: Replica
) -> None:
    source = lab.source("resumed")
    lab.control.apply(dataset(space, "one", source))
    lab.until_phase(space, "one", "Loaded")
    lab.control.kill_api_server()
    lab.control.start_api_server()
    lab.control.apply(dataset(space, "two", source), pod(space, "trainer", "one,two"))
    lab.until(lambda: not lab.gated(space), "the gate is open")
    assert replica.popen.poll() is None


def test_no_secret_is_in_logs_events_or_objects(lab: Lab, space: str, replica: Replica) -> None:
    lab.control.apply(dataset(space, "one", "s3://bucket/x", credentials={"profile": "nobody"}))
    lab.until(
        lambda: lab.condition(space, "one", "Attached").get("reason") not in (None, "Attaching"),
        "the condition has a cause",
    )
    token = Path(lab.cache.security.token_file).read_text().split()[0]
    account = lab.root.joinpath("kubeconfig").read_text()
    texts = [
        replica.log.read_text(),
        lab.control.kubectl("get", "events,datasets,pv", "-A", "-o", "yaml"),
        subprocess.run(
            ["cat", f"/proc/{replica.popen.pid}/cmdline"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout,
    ]
    assert token not in "".join(texts)
    assert account.partition('"token": "')[2].partition('"')[0] not in "".join(texts)
