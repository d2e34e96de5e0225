"""What must hold once the controller has done all that the Datasets of a namespace ask for."""

from __future__ import annotations

from typing import Any, Final

from tests.kube.real.operator.lab import Lab

NAMES: Final = ("one", "two", "three")
SPECS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"volume": {"create": True}, "policies": {"replicas": 2}},
    {"load": {"revision": 1}},
    {"load": {"enabled": False}},
)


def is_settled(lab: Lab, space: str) -> bool:
    """Returns whether each Dataset has come to its end."""
    found = lab.control.get("datasets", "-n", space)["items"]
    return all(_is_done(one) for one in found)


def _is_done(one: dict[str, Any]) -> bool:
    status, metadata = one.get("status") or {}, one["metadata"]
    loads = one["spec"].get("load", {}).get("enabled", True)
    return (
        "deletionTimestamp" not in metadata
        and status.get("phase") == ("Loaded" if loads else "Attached")
        and status.get("observedGeneration") == metadata["generation"]
    )


def check(lab: Lab, space: str) -> None:
    """Checks that what is at the master, and what volumes there are, is what the objects say."""
    found = lab.control.get("datasets", "-n", space)["items"]
    paths = {f"/{space}/{one['metadata']['name']}": one for one in found}
    assert {path for path in lab.sources() if path.startswith(f"/{space}/")} == paths.keys()
    jobs = [job for job in lab.jobs() if job.paths[0].startswith(f"/{space}/")]
    assert {job.paths[0] for job in jobs} <= paths.keys()
    numbers = {job.job for job in jobs}
    for path, one in paths.items():
        if one["status"]["phase"] == "Loaded":
            assert one["status"]["job"] in numbers
        replicas = one["spec"].get("policies", {}).get("replicas")
        assert lab.admin.policies_at(path.encode()).said.replicas == replicas
    claims = {one["metadata"]["name"] for one in lab.control.get("pvc", "-n", space)["items"]}
    made = {one["metadata"]["name"] for one in found if one["spec"].get("volume", {}).get("create")}
    names = {one["metadata"]["name"] for one in found}
    assert made <= claims <= names
    volumes = lab.control.get("pv")["items"]
    bound = {one["spec"]["claimRef"]["name"] for one in volumes if _is_in(one, space)}
    # A volume whose Dataset no longer wants one may lack its claim: it was made, the claim was not.
    assert claims <= bound <= names
    assert bound - claims <= names - made


def _is_in(volume: dict[str, Any], space: str) -> bool:
    return bool(volume["spec"]["claimRef"]["namespace"] == space)
