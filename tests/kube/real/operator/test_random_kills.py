"""Datasets are created, changed and deleted at random, on a real API server, and the controller's
process is killed at random moments: in the end sources and jobs at the master are as the objects
say. `test_kills_at_calls.py` ends a controller at every call."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kube.real.operator.at_rest import NAMES, SPECS, check, is_settled
from tests.kube.real.operator.lab import Lab, dataset
from tests.services.examples import examples

pytestmark = pytest.mark.timeout(600)  # of all histories together, beside other load

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
            lab.apply_again(dataset(space, name, source, **spec))
        case ("delete", name, _):
            lab.control.kubectl(
                "delete", "dataset", name, "-n", space, "--wait=false", "--ignore-not-found"
            )
        case _:
            lab.replicas[-1].kill()
            lab.give_lease_back()
            lab.start()


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
