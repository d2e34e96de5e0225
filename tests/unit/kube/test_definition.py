"""The CustomResourceDefinition and the controller know the same fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cachefs.core import policies
from cachefs.core.units import parse_size
from cachefs.kube.dataset_spec import Spec
from cachefs.kube.names import GROUP, KIND, PLURAL, VERSION
from cachefs.kube.status import Condition, Status, Type

ROOT = Path(__file__).parents[3]
FILE = ROOT / "deploy" / "helm" / "cachefs" / "crds" / "datasets.yaml"
INNER = {"attachments", "policy", "jobKey", "jobSettings"}  # of the status, for the controller


def definition() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found["spec"]


def properties() -> dict[str, Any]:
    (version,) = definition()["versions"]
    assert version["name"] == VERSION
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def names_of(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def test_the_names_are_those_of_the_controller() -> None:
    spec = definition()
    assert (spec["group"], spec["scope"]) == (GROUP, "Namespaced")
    assert (spec["names"]["kind"], spec["names"]["plural"]) == (KIND, PLURAL)


def test_the_spec_has_the_same_fields() -> None:
    spec = properties()["spec"]["properties"]
    assert spec.keys() == names_of(Spec)
    for field in msgspec.structs.fields(Spec):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            inner = spec[field.encode_name]["properties"].keys()
            assert inner == names_of(field.type), field.encode_name


def test_the_status_has_the_same_fields() -> None:
    status = properties()["status"]["properties"]
    assert status.keys() == names_of(Status) - INNER
    inner = status["conditions"]["items"]["properties"]
    assert inner.keys() == names_of(Condition)
    assert {one.value for one in Type} >= {"Attached", "Loaded"}


def test_the_choices_are_those_of_the_policies() -> None:
    spec = properties()["spec"]["properties"]["policies"]["properties"]
    assert tuple(spec["admission"]["enum"]) == policies.ADMISSIONS
    assert tuple(spec["eviction"]["enum"]) == policies.EVICTIONS
    assert tuple(spec["localCopy"]["enum"]) == policies.LOCAL_COPIES
    assert tuple(spec["profile"]["enum"]) == tuple(policies.PROFILES)
    assert spec["replicas"]["maximum"] == policies.MOST_REPLICAS


def test_each_size_that_kubernetes_accepts_is_understood() -> None:
    spec = properties()["spec"]["properties"]
    quota = re.compile(spec["policies"]["properties"]["quota"]["pattern"])
    bandwidth = re.compile(spec["load"]["properties"]["bandwidth"]["pattern"])
    units = ["", "B", *(f"{letter}{rest}" for letter in "KMGTP" for rest in ("", "B", "i", "iB"))]
    for unit in units:
        text = f"2.5 {unit}"
        assert quota.search(text), text
        assert bandwidth.search(f"{text}/s"), text
        assert parse_size(text) > 0
    assert not quota.search("2 X")
