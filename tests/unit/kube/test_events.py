"""Events tell changes once, and name their object."""

from __future__ import annotations

import msgspec

from cachefs.kube import events
from cachefs.kube.events import Event
from cachefs.kube.status import Phase, Status, Type
from tests.unit.kube.things import claim, parsed


def reasons(before: Status, after: Status) -> list[str]:
    dataset = msgspec.structs.replace(parsed(), status=before)
    return [one.reason for one in events.of_change(dataset, after)]


def test_a_change_of_phase_is_told() -> None:
    loading = Status(phase=Phase.LOADING, job=3)
    failed = loading.with_(phase=Phase.FAILED).told(Type.LOADED, False, "LoadFailed", "3 files")
    assert reasons(Status(), loading) == ["Loading"]
    assert reasons(loading, failed) == ["LoadFailed"]
    assert reasons(loading, loading.with_(phase=Phase.LOADED)) == ["Loaded"]
    assert reasons(failed, failed) == []


def test_a_cause_is_told_once() -> None:
    away = Status().told(Type.MASTER, False, "MasterAway", "no answer")
    assert reasons(Status(), away) == ["MasterAway"]
    assert reasons(away, away) == []
    assert reasons(away, away.told(Type.MASTER, False, "MasterAway", "refused")) == ["MasterAway"]
    assert reasons(Status(), Status().told(Type.ATTACHED, False, "Attaching")) == []


def test_the_same_event_has_the_same_name() -> None:
    one = Event(events.of_dataset(parsed()), events.NORMAL, "Loaded", "all")
    other = Event(events.of_dataset(parsed(uid="u2")), events.NORMAL, "Loaded", "all")
    assert events.name_of(one) == events.name_of(one) != events.name_of(other)
    assert events.name_of(one).startswith("one.")
    long = Event(events.of_dataset(parsed(name="a" * 253)), events.NORMAL, "Loaded", "all")
    assert len(events.name_of(long)) <= 253


def test_the_body_names_its_object() -> None:
    body = events.body_of(Event(events.of_claim(claim()), events.WARNING, "Failed", "a\nb"), "t")
    assert body["involvedObject"] == {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ml", "name": "data",
        "uid": "c1",
    }  # fmt: skip
    assert (body["message"], body["type"], body["lastTimestamp"]) == ("a b", "Warning", "t")
