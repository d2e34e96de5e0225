"""Claims of our StorageClasses get volumes, confined to their namespace; users of a path are
found."""

from __future__ import annotations

from typing import Any

import pytest

from cachefs.csi.volumes import parse_volume
from cachefs.kube import volumes
from cachefs.kube.names import DRIVER, OWNER, PATH, PROVISIONED_BY, SOURCE, Object
from cachefs.kube.volumes import Given, Refused, provision
from tests.unit.kube.things import MASTER, claim, parsed, storage_class

TEMPLATE = "/${pvc.namespace}/${pvc.name}"


def given(found: Given | Refused) -> Object:
    assert isinstance(found, Given), found
    return found.volume


def refused(found: Given | Refused) -> str:
    assert isinstance(found, Refused), found
    return found.cause


def path_of(found: Given | Refused) -> Any:
    return given(found)["spec"]["csi"]["volumeAttributes"]["path"]


def test_the_class_names_the_path() -> None:
    volume = given(provision(claim(), storage_class(path=TEMPLATE, uid="7")))
    spec = volume["spec"]
    assert volume["metadata"]["name"] == "pvc-c1"
    assert volume["metadata"]["annotations"] == {PROVISIONED_BY: DRIVER}
    assert spec["csi"]["volumeAttributes"] == {"path": "/ml/data", "uid": "7"}
    assert spec["claimRef"]["uid"] == "c1"
    assert (spec["capacity"], spec["accessModes"]) == ({"storage": "5Gi"}, ["ReadOnlyMany"])


def test_the_driver_takes_the_volumes() -> None:
    """As `cachefs csi` parses what the kubelet gives it."""
    kubelet = {"csi.storage.k8s.io/ephemeral": "false", "csi.storage.k8s.io/pod.namespace": "x"}
    csi = given(provision(claim(), storage_class(path=TEMPLATE)))["spec"]["csi"]
    context = {**csi["volumeAttributes"], **kubelet}
    found = parse_volume(csi["volumeHandle"], context, (), MASTER, confine=True)
    assert found.url == f"cachefs://{MASTER}/ml/data"
    handle = volumes.volume_of(parsed(), MASTER)["spec"]["csi"]["volumeHandle"]
    assert (
        parse_volume(handle, kubelet, (), MASTER, confine=True).url == f"cachefs://{MASTER}/ml/one"
    )


def test_a_class_of_another_driver_does_not_count() -> None:
    """Its parameters may have names of ours, and the annotation that chooses us is the claim's."""
    other = storage_class(path="/ml/data", confine="false") | {"provisioner": "disks.example.com"}
    assert (
        refused(provision(claim(), other)) == "the StorageClass of the claim is of another driver"
    )


@pytest.mark.parametrize(
    "path", ["/other/data", "/", "/mlx", "/ml/../other", "ml/data", "/ml/\n", ""]
)
def test_a_claim_stays_in_its_namespace(path: str) -> None:
    assert refused(provision(claim({PATH: path} if path else {}), storage_class()))


def test_the_class_may_allow_every_path() -> None:
    wide = storage_class(confine="false")
    assert path_of(provision(claim({PATH: "/shared//x/"}), wide)) == "/shared/x"
    assert refused(provision(claim({PATH: "/a/.."}), wide))


def test_a_claim_names_a_source_only_if_its_class_says_so() -> None:
    asks = claim({SOURCE: "s3://b/p"})
    assert SOURCE in refused(provision(asks, storage_class(path=TEMPLATE)))
    found = provision(asks, storage_class(claimSources="true", profile="ml"))
    assert isinstance(found, Given)
    assert found.dataset is not None
    assert found.dataset["spec"] == {
        "source": "s3://b/p", "load": {"enabled": False}, "credentials": {"profile": "ml"}
    }  # fmt: skip
    assert found.dataset["metadata"]["ownerReferences"][0]["uid"] == "c1"
    assert path_of(found) == "/ml/data"


def test_the_class_names_a_credential() -> None:
    found = provision(claim(), storage_class(source="gs://b", credential="team"))
    assert isinstance(found, Given)
    assert found.dataset is not None
    assert found.dataset["spec"]["credentials"] == {"name": "team"}


def test_the_class_names_a_source() -> None:
    found = provision(claim(), storage_class(source="s3://b/${pvc.namespace}", load="true"))
    assert isinstance(found, Given)
    assert found.dataset is not None
    assert found.dataset["spec"] == {"source": "s3://b/ml", "load": {"enabled": True}}


@pytest.mark.parametrize(
    ("wanted", "parameters"),
    [
        (claim(accessModes=["ReadWriteOnce"]), {"path": TEMPLATE}),
        (claim(volumeMode="Block"), {"path": TEMPLATE}),
        (claim(selector={"a": "b"}), {"path": TEMPLATE}),
        (claim(), {"path": "/${pod.name}"}),
        (claim(), {"pth": TEMPLATE}),
    ],
)
def test_what_cannot_be_provisioned_is_refused(wanted: Object, parameters: dict[str, str]) -> None:
    assert refused(provision(wanted, storage_class(**parameters)))


def test_claims_that_wait_for_us_are_known() -> None:
    assert volumes.is_ours(claim())
    assert not volumes.is_ours(claim(volumeName="bound"))
    other = claim()
    other["metadata"]["annotations"] = {}
    assert not volumes.is_ours(other)


def released(**changes: Any) -> Object:
    volume = given(provision(claim(), storage_class(path=TEMPLATE)))
    return volume | {"status": {"phase": "Released"}} | changes


def test_only_released_volumes_of_ours_are_deleted() -> None:
    assert volumes.is_released(released())
    assert not volumes.is_released(released(status={"phase": "Bound"}))
    static = volumes.volume_of(parsed(), MASTER) | {"status": {"phase": "Released"}}
    assert not volumes.is_released(static)


def running(name: str, volume: dict[str, Any], phase: str = "Running", node: str = "n") -> Object:
    return {
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"nodeName": node, "volumes": [{"name": "d", **volume}]},
        "status": {"phase": phase},
    }


def inline(path: str, **attributes: str) -> dict[str, Any]:
    return {"csi": {"driver": DRIVER, "volumeAttributes": {"path": path, **attributes}}}


def test_users_of_a_path_are_pods_that_run_with_it() -> None:
    static = volumes.volume_of(parsed(), MASTER)
    below = given(provision(claim({PATH: "/ml/one/sub"}), storage_class()))
    claims = volumes.claims_of("/ml/one", [static, below])
    assert claims == {("ml", "one"), ("ml", "data")}
    assert not volumes.claims_of("/ml/on", [static, below])
    of_claim = {"persistentVolumeClaim": {"claimName": "one"}}
    pods = [
        running("claims", of_claim),
        running("ended", of_claim, phase="Succeeded"),
        running("gated", of_claim, node=""),
        running("inline", inline("/ml/one/x")),
        running("namespaced", inline("/one", namespaced="true")),
        running("other", inline("/ml/other")),
        running("empty", {"emptyDir": {}}),
    ]
    assert volumes.users_of("/ml/one", claims, pods) == (
        "ml/claims", "ml/inline", "ml/namespaced"
    )  # fmt: skip


@pytest.mark.parametrize("handle", ["any", f"cachefs://{MASTER}/one"])
def test_a_volume_below_the_namespace_of_its_claim_shows_that(handle: str) -> None:
    attributes = {"namespaced": "true"} | ({"path": "one"} if handle == "any" else {})
    csi = {"driver": DRIVER, "volumeHandle": handle, "volumeAttributes": attributes}
    claimed = {"spec": {"csi": csi, "claimRef": {"namespace": "ml", "name": "own"}}}
    assert volumes.claims_of("/ml/one", [claimed]) == {("ml", "own")}
    assert not volumes.claims_of("/one", [claimed]), "it shows nothing of others"


def test_a_volume_for_a_claim_without_a_namespace_is_used_by_no_pod() -> None:
    csi = {"driver": DRIVER, "volumeHandle": f"cachefs://{MASTER}/ml/one"}
    reserved = {"spec": {"csi": csi, "claimRef": {"name": "one"}}}
    claims = volumes.claims_of("/ml/one", [reserved])
    pods = [running("claims", {"persistentVolumeClaim": {"claimName": "one"}})]
    assert volumes.users_of("/ml/one", claims, pods) == ()


def test_a_confined_volume_that_names_a_path_of_others_does_not_use_it() -> None:
    """Such a pod never starts. It must not keep the Dataset of another namespace from its end."""
    pods = [
        running("other", inline("/team/one")),
        running("own", inline("/one")),
    ]
    assert volumes.users_of("/team/one", set(), pods) == ("ml/other",)
    assert volumes.users_of("/team/one", set(), pods, is_confined=True) == ()
    assert volumes.users_of("/ml/one", set(), pods, is_confined=True) == ("ml/own",)


def test_left_over_objects_are_those_with_our_label() -> None:
    dataset = parsed()
    own = volumes.claim_of(dataset)
    assert own["metadata"]["labels"][OWNER] == "u1"
    assert volumes.left_over(dataset, None, own) == volumes.Stale(own)
    assert volumes.left_over(dataset, None, {"metadata": {"name": "one"}}) is None
