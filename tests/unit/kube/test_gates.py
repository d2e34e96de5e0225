"""A pod's gate opens when all Datasets that it names are loaded, and at no other time."""

from __future__ import annotations

import msgspec
import pytest

from cachefs.kube import gates
from cachefs.kube.dataset import Dataset
from cachefs.kube.gates import Open, Shut, WaitingPod
from cachefs.kube.names import GATE
from cachefs.kube.status import Phase, Status
from tests.unit.kube.things import parsed, pod


def in_phase(phase: Phase, name: str = "one") -> Dataset:
    found = parsed(name=name)
    status = Status(phase=phase, job_key=found.job_key(1), attachments=1)
    return msgspec.structs.replace(found, status=status)


def verdict(names: str | None, *datasets: Dataset) -> Open | Shut:
    waiting = gates.parse(pod(names=names))
    assert waiting is not None
    return gates.decide(waiting, {one.key: one for one in datasets})


def test_every_named_dataset_must_be_loaded() -> None:
    one, two = in_phase(Phase.LOADED), in_phase(Phase.LOADED, "two")
    assert verdict("one, two,", one, two) == Open()
    assert isinstance(verdict("one,two", one), Shut)
    assert isinstance(verdict("one,two", one, in_phase(Phase.LOADING, "two")), Shut)


@pytest.mark.parametrize("phase", [one for one in Phase if one is not Phase.LOADED])
def test_in_no_other_phase_the_gate_opens(phase: Phase) -> None:
    assert isinstance(verdict("one", in_phase(phase)), Shut)


def test_a_newer_load_must_end_first() -> None:
    again = msgspec.structs.replace(
        in_phase(Phase.LOADED), spec=parsed({"load": {"revision": 1}}).spec
    )
    assert isinstance(verdict("one", again), Shut)


def test_a_dataset_that_is_being_deleted_opens_nothing() -> None:
    leaving = msgspec.structs.replace(in_phase(Phase.LOADED), is_deleting=True)
    assert isinstance(verdict("one", leaving), Shut)


@pytest.mark.parametrize("names", [None, "", " , "])
def test_a_gate_without_names_stays(names: str | None) -> None:
    found = verdict(names)
    assert isinstance(found, Shut)
    assert found.reason == "NoDatasets"


def test_the_cause_of_a_failure_is_told() -> None:
    failed = in_phase(Phase.FAILED)
    bad = msgspec.structs.replace(
        failed, status=failed.status.told(gates.Type.LOADED, False, "LoadFailed", "3 files")
    )
    found = verdict("one", bad)
    assert isinstance(found, Shut)
    assert "3 files" in found.text


def test_the_patch_removes_our_gate_alone() -> None:
    waiting = gates.parse(pod())
    assert waiting == WaitingPod("ml", "p", "pod-p", 1, ("one",))
    assert gates.opening(waiting) == [
        {"op": "test", "path": "/metadata/uid", "value": "pod-p"},
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": GATE},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]


def test_other_pods_are_none_of_ours() -> None:
    free = pod()
    free["spec"]["schedulingGates"] = [{"name": "other"}]
    assert gates.parse(free) is None
    leaving = pod()
    leaving["metadata"]["deletionTimestamp"] = "now"
    assert gates.parse(leaving) is None
