"""Datasets on a real API server, with a real master: what they become, and when things fail."""

from __future__ import annotations

import copy
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachefs.core.jobs import JobSpec
from cachefs.kube import dataset as datasets
from cachefs.kube.names import FINALIZER
from cachefs.kube.rules import Rules
from master.state.job_record import MAX_UNFINISHED
from tests.kube.real.cluster import ClusterFailed, Manifest
from tests.kube.real.operator.lab import CRD, Lab, Replica, dataset, pod, static_volume

SCHEDULED_S = 6.0  # from the end of a load to the pod with a node: 3 s on a quiet machine
LARGE = 2_000_000
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"source": "file:///a", "credentials": {"profile": "x"}}, "only a source s3"),
    ({"source": "gs://b", "credentials": {"profile": "x"}}, "only a source s3"),
    ({"source": "hdfs://n/a", "credentials": {"name": "x"}}, "have a credential"),
    ({"source": "s3://b", "credentials": {"name": "x", "profile": "x"}}, "exclude each other"),
    ({"source": "s3://b", "options": {"region": "x"}}, r"in spec\.s3"),
    ({"source": "gs://b", "s3": {"region": "x"}}, "only a source s3"),
    ({"source": "fsspec+local:///etc"}, r"spec\.source"),
    ({"source": "gs://b", "push": "often"}, r"spec\.push"),
]


def test_a_pod_is_let_go_when_its_data_is_loaded(lab: Lab, space: str) -> None:
    lab.control.apply(
        dataset(space, "one", lab.source("one", files=200), volume={"create": True}),
        pod(space, "trainer", "one", claim="one"),
        pod(space, "other", "one,missing"),
    )
    lab.until(lambda: "trainer" not in lab.unscheduled(space), "the pod has a node")
    scheduled_s = time.time()
    status = lab.status(space, "one")
    (job,) = [job for job in lab.jobs() if job.job == status["job"]]
    print(f"the pod was seen scheduled {scheduled_s - job.ended_at_s:.2f} s after the job's end")
    assert scheduled_s - job.ended_at_s <= SCHEDULED_S
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


def test_a_pod_without_a_controller_waits(lab: Lab, space: str, replica: Replica) -> None:
    """Nothing stops while the controller is away, and gates stay shut."""
    lab.control.apply(dataset(space, "one", lab.source("waits"), volume={"create": True}))
    lab.until_phase(space, "one", "Loaded")
    replica.kill()
    lab.control.apply(
        pod(space, "gated", "one", claim="one"), pod(space, "free", claim="one"),
    )  # fmt: skip
    lab.until(lambda: lab.unscheduled(space) == ["gated"], "the pod without a gate has a node")
    assert lab.gated(space) == ["gated"]
    assert f"/{space}/one" in lab.sources()
    lab.start_acting()
    lab.until(lambda: not lab.unscheduled(space), "the gated pod has a node")


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


def test_the_master_keeps_policies_as_they_were_sent(lab: Lab, space: str) -> None:
    """Else the controller would set them again and again."""
    given = {
        "pin": False, "replicas": 1, "ttl": "never", "quota": "none", "admission": "always",
        "eviction": "lru", "localCopy": "never", "syncBackground": "none", "profile": "train-read",
    }  # fmt: skip
    made = dataset(space, "one", lab.source("kept-policies"), policies=given, syncInterval="never")
    lab.control.apply(made)
    lab.until_phase(space, "one", "Loaded")
    thing = lab.control.get("dataset", "one", "-n", space)
    wanted = datasets.parse(thing, Rules(file_sources=True)).policy
    assert lab.admin.policies_at(f"/{space}/one".encode()).said == wanted
    assert None not in [getattr(wanted, name) for name in ("pin", "ttl_s", "quota_bytes")]


def test_a_load_waits_for_its_turn(lab: Lab, space: str) -> None:
    """The master takes no more than MAX_UNFINISHED loads; without a worker none ends."""
    source = lab.source("turns", files=MAX_UNFINISHED)
    lab.cache.add_ufs(source, "/turns")
    worker = lab.cache.workers[0]
    worker.kill()
    try:
        for number in range(MAX_UNFINISHED):
            lab.admin.submit_job(JobSpec((f"/turns/{number}".encode(),)))
        lab.control.apply(dataset(space, "one", source))
        lab.until(
            lambda: lab.condition(space, "one", "Loaded").get("reason") == "WaitsForLoads",
            "the condition names the cause",
        )
        assert lab.status(space, "one")["phase"] == "Pending"
    finally:
        worker.start()
    lab.until_phase(space, "one", "Loaded")
    lab.admin.remove_source(b"/turns")


def test_sources_of_every_store_are_taken(lab: Lab, space: str) -> None:
    """None of them can be reached here: the condition has the cause."""
    credentials = {"name": "team"}
    lab.control.apply(
        dataset(space, "gs", "gs://bucket/a", credentials=credentials),
        dataset(space, "az", "az://account/container", credentials=credentials),
        dataset(space, "s3", "s3://bucket/a", credentials=credentials, push="webhook:team"),
        dataset(space, "hdfs", "hdfs://127.0.0.1:1/a", options={"user": "ml"}, push="poll:5s"),
    )
    for name in ("gs", "az", "s3", "hdfs"):
        lab.until(
            lambda n=name: lab.condition(space, n, "Attached").get("message"),  # type: ignore[misc]
            f"the condition of {name} has a cause",
        )
        told = lab.condition(space, name, "Attached")
        print(name, told["reason"], told["message"])
        assert told["status"] == "False"
        assert told["reason"] != "BadConfig"


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
    for refused, said in REFUSED:
        with pytest.raises(ClusterFailed, match=said):
            lab.control.apply(dataset(space, "two", **refused))
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


def test_a_definition_that_is_older_than_the_controller(lab: Lab, space: str) -> None:
    """What it does not know is not stored; all else goes on, and the status is whole."""
    made = dataset(space, "one", lab.source("older"), policies={"syncBackground": "1h"})
    newer = yaml.safe_load(CRD.read_text())
    lab.control.apply(older(newer))
    try:
        lab.until(lambda: stored_policies(lab, made) == {}, "the older definition is in force")
        lab.control.kubectl("apply", "--validate=false", "-f", "-", input=json.dumps(made))
        lab.until_phase(space, "one", "Loaded")
        found = lab.control.get("dataset", "one", "-n", space)
        assert found["spec"]["policies"] == {}
        assert (found["status"]["files"], found["status"]["job"] > 0) == (5, True)
    finally:
        lab.control.apply(newer)
    lab.until(lambda: stored_policies(lab, made), "the newer definition is in force")
    lab.control.apply(made)
    path = f"/{space}/one".encode()
    lab.until(lambda: lab.admin.policies_at(path).said.sync_background_s, "the policy is set")


def stored_policies(lab: Lab, made: Manifest) -> Any:
    """Returns the policies that the API server would store."""
    said = lab.control.kubectl(
        "apply", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-",
        input=json.dumps(made),
    )  # fmt: skip
    return json.loads(said)["spec"]["policies"]


def older(definition: dict[str, Any]) -> dict[str, Any]:
    """Returns a definition without rules, without newer fields and without those of the status."""
    found: dict[str, Any] = copy.deepcopy(definition)
    (version,) = found["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    del schema["status"]["properties"], schema["spec"]["x-kubernetes-validations"]
    version["additionalPrinterColumns"] = []
    spec = schema["spec"]["properties"]
    for name in ("options", "push", "syncInterval"):
        del spec[name]
    del spec["credentials"]["properties"]["name"], spec["load"]["properties"]["verify"]
    del spec["policies"]["properties"]["syncBackground"]
    return found


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
