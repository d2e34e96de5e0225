"""Late events change nothing."""

from __future__ import annotations

from cachefs.kube import gates
from cachefs.kube.known import Datasets, Pods
from cachefs.kube.status import Phase
from tests.unit.kube.things import parsed, pod


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    known = Datasets()
    assert known.put(parsed(resourceVersion="10"))
    assert not known.put(parsed(resourceVersion="9", status={"phase": "Loaded"}))
    assert known.by_key["ml", "one"].resource_version == "10"
    assert known.put(parsed(resourceVersion="11", status={"phase": "Loaded"}))
    assert not known.put(parsed(resourceVersion="12", status={"phase": "Loaded", "files": 3}))
    assert known.phases() == {**dict.fromkeys(Phase, 0), Phase.LOADED: 1}


def test_a_watch_does_not_replace_a_spec_that_was_read() -> None:
    """A watch that is older than the definition shows less of the spec, in each version."""
    known = Datasets()
    key = ("ml", "one")
    known.put(parsed(resourceVersion="10", generation=2))
    known.put_read(parsed({"load": {"revision": 1}}, resourceVersion="10", generation=2))
    known.put(parsed(resourceVersion="11", generation=2, status={"files": 3}))
    assert (known.by_key[key].resource_version, known.by_key[key].status.files) == ("11", 3)
    assert known.by_key[key].spec.load.revision == 1
    known.put(parsed(resourceVersion="12", generation=3))
    assert known.by_key[key].spec.load.revision == 0, "another generation has another spec"


def test_what_was_read_has_the_spec_of_newer_versions_of_its_generation() -> None:
    known = Datasets()
    known.put(parsed(resourceVersion="11", generation=2, status={"files": 3}))
    known.put_read(parsed({"load": {"revision": 1}}, resourceVersion="10", generation=2))
    found = known.by_key["ml", "one"]
    assert (found.resource_version, found.status.files, found.spec.load.revision) == ("11", 3, 1)
    known.put_read(parsed({"load": {"revision": 9}}, resourceVersion="9", generation=1))
    assert known.by_key["ml", "one"].spec.load.revision == 1


def test_a_read_that_nothing_overtook_is_newer_whatever_its_version() -> None:
    """An API server that was restored has earlier versions."""
    known = Datasets()
    known.put(parsed(resourceVersion="11", generation=2, status={"files": 3}))
    seen = known.by_key["ml", "one"]
    known.put_read(parsed(resourceVersion="5", generation=1), seen)
    assert known.by_key["ml", "one"].resource_version == "5"
    known.put(parsed(resourceVersion="6", generation=2))
    known.put_read(parsed(resourceVersion="5", generation=1), seen)
    assert known.by_key["ml", "one"].resource_version == "6"


def test_the_end_of_a_former_object_is_not_that_of_its_successor() -> None:
    known = Datasets()
    known.put(parsed(uid="u2", resourceVersion="20"))
    assert not known.drop(("ml", "one"), "u1")
    assert known.drop(("ml", "one"), "u2")
    assert not known.replace(parsed(uid="u2", resourceVersion="21"))
    assert known.by_key == {}


def test_pods_are_found_by_the_datasets_that_they_name() -> None:
    pods = Pods()
    for name, names in (("p", "one"), ("q", "two, one"), ("r", "two")):
        found = gates.parse(pod(name, names))
        assert found is not None
        pods.put(found, 1.0)
    assert [one.name for one in pods.waiting_for(("ml", "one"))] == ["p", "q"]
    assert [*pods.waiting_for(("other", "one"))] == []
    pods.drop(("ml", "p"), "another")
    assert len(pods) == 3
    pods.drop(("ml", "p"), "pod-p")
    assert pods.get(("ml", "p")) is None
