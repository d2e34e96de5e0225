"""Claims of a StorageClass, on a real API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cachefs.kube.names import DRIVER, PATH, SOURCE
from tests.kube.real.cluster import Manifest
from tests.kube.real.operator.lab import Lab

BOUND_S = 10.0  # 2 s on a quiet machine


def storage_class(name: str, **parameters: str) -> Manifest:
    return {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": DRIVER, "parameters": parameters,
    }  # fmt: skip


def claim(space: str, name: str, of: str, **annotations: str) -> Manifest:
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": space, "annotations": annotations},
        "spec": {
            "storageClassName": of, "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _classes(lab: Lab) -> Iterator[None]:
    path = "/${pvc.namespace}/${pvc.name}"
    lab.control.apply(
        storage_class("confined", path=path),
        storage_class("wide", path=path, confine="false"),
        storage_class("sourced", claimSources="true", load="true"),
    )
    yield
    lab.control.kubectl("delete", "storageclass", "confined", "wide", "sourced")


def volume_of(lab: Lab, space: str, name: str) -> dict[str, Any]:
    lab.control.wait(f"pvc/{name}", "jsonpath={.status.phase}=Bound", namespace=space)
    volume = lab.control.get("pvc", name, "-n", space)["spec"]["volumeName"]
    found: dict[str, Any] = lab.control.get("pv", volume)
    return found


def test_a_claim_is_bound_and_its_volume_deleted(lab: Lab, space: str) -> None:
    lab.control.apply(claim(space, "data", "confined"))
    began_s = time.monotonic()
    volume = volume_of(lab, space, "data")
    print(f"a claim is bound {time.monotonic() - began_s:.2f} s after it was made")
    assert time.monotonic() - began_s <= BOUND_S
    assert volume["spec"]["csi"]["volumeAttributes"] == {"path": f"/{space}/data"}
    lab.remove(space, "pvc/data")
    lab.control.wait(f"pv/{volume['metadata']['name']}", "delete")


def test_a_claim_reaches_its_namespace_only(lab: Lab, space: str) -> None:
    lab.control.apply(
        claim(space, "own", "confined", **{PATH: f"/{space}/x/y"}),
        claim(space, "foreign", "confined", **{PATH: "/other/x"}),
        claim(space, "wide", "wide", **{PATH: "/other/x"}),
        claim(space, "sourced", "confined", **{SOURCE: "s3://bucket/x"}),
    )
    own, wide = volume_of(lab, space, "own"), volume_of(lab, space, "wide")
    assert own["spec"]["csi"]["volumeAttributes"]["path"] == f"/{space}/x/y"
    assert wide["spec"]["csi"]["volumeAttributes"]["path"] == "/other/x"
    for name in ("foreign", "sourced"):
        lab.until(lambda n=name: "ProvisioningFailed" in lab.reasons(space, n), "an event")  # type: ignore[misc]
        assert lab.control.get("pvc", name, "-n", space)["status"]["phase"] == "Pending"


def test_a_claim_with_a_source_has_a_dataset(lab: Lab, space: str) -> None:
    source = lab.source("claimed")
    lab.control.apply(claim(space, "data", "sourced", **{SOURCE: source}))
    volume_of(lab, space, "data")
    lab.until_phase(space, "data", "Loaded")
    assert lab.sources()[f"/{space}/data"] == source
    lab.remove(space, "pvc/data")
    lab.until(lambda: f"/{space}/data" not in lab.sources(), "the source is detached")
    lab.control.wait("dataset/data", "delete", namespace=space)
