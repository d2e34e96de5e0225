"""Datasets are created, changed and deleted at random, on a real API server, and the controller is
killed at random moments: in the end sources and jobs at the master are as the objects say."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kube.real.operator.lab import Lab, dataset
from tests.services.examples import examples

NAMES: Final = ("one", "two", "three")
SPECS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"volume": {"create": True}, "policies": {"replicas": 2}},
    {"load": {"revision": 1}},
    {"load": {"enabled": False}},
)
EVENTS: Final = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from(NAMES), st.sampled_from(SPECS)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just({})),
    st.tuples(st.just("kill"), st.just(""), st.just({})),
)
MOMENTS_S: Final = st.floats(0.0, 0.4)
HISTORIES: Final = st.lists(st.tuples(EVENTS, MOMENTS_S), min_size=4, max_size=12)
_numbers = itertools.count()


def apply(lab: Lab, space: str, source: str, event: tuple[str, str, dict[str, Any]]) -> None:
    match event:
        case ("apply", name, spec):
            lab.control.apply(dataset(space, name, source, **spec))
        case ("delete", name, _):
            lab.control.kubectl(
                "delete", "dataset", name, "-n", space, "--wait=false", "--ignore-not-found"
            )
        case _:
            lab.replicas[-1].kill()
            lab.give_lease_back()
            lab.start()


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
    assert made <= claims <= {one["metadata"]["name"] for one in found}
    volumes = lab.control.get("pv")["items"]
    bound = {one["spec"]["claimRef"]["name"] for one in volumes if _is_in(one, space)}
    assert bound == claims


def _is_in(volume: dict[str, Any], space: str) -> bool:
    return bool(volume["spec"]["claimRef"]["namespace"] == space)


def test_the_master_is_as_the_objects_say(lab: Lab) -> None:
    source = lab.source("random", files=10)
    for replica in lab.replicas:
        if replica.popen.poll() is None:
            replica.kill()
    lab.start_acting()

    @settings(
        max_examples=examples(8), deadline=None, suppress_health_check=[*HealthCheck],
        database=None, print_blob=True,
    )  # fmt: skip
    @given(HISTORIES)
    def run(history: list[tuple[tuple[str, str, dict[str, Any]], float]]) -> None:
        space = lab.space(f"random-{next(_numbers)}")
        for event, moment_s in history:
            threading.Event().wait(moment_s)  # the next event comes at any moment of this one
            apply(lab, space, source, event)
        lab.until(lambda: is_settled(lab, space), "every Dataset has come to its end", 90.0)
        check(lab, space)
        lab.close_space(space)
        assert not {path for path in lab.sources() if path.startswith(f"/{space}/")}

    run()
