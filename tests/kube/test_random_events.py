"""Pods come and go while parts of their node end: after each event every volume has the right
bytes, and at the end of each history nothing is left. [S-pods]

Hypothesis draws the histories from the seed that the test prints; CACHEFS_SEED repeats them.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.kube.pod_world import CLIENT, KINDS, SUPERVISOR, data_cluster, pod_world
from tests.services.cluster import Cluster

SEED = int(os.environ.get("CACHEFS_SEED", random.SystemRandom().getrandbits(32)))
HISTORIES = 8  # Hypothesis leaves some rules out of each one, at random
STEPS = 16
PODS = st.sampled_from([f"pod-{letter}" for letter in "abcdefgh"])
VOLUMES = st.sampled_from(sorted(KINDS))
NUMBERS = st.integers(0, len(KINDS) - 1)

has_pods = precondition(lambda self: self.world.pods)


@seed(SEED)
class History(RuleBasedStateMachine):
    """A node of its own, with the worker that all histories share. The rule without an argument
    whose name is the first in the alphabet is cheap: Hypothesis's first history repeats it."""

    cluster: Cluster

    @initialize(volumes=st.lists(VOLUMES, min_size=1, max_size=3))
    def start(self, volumes: list[str]) -> None:
        self.stack = contextlib.ExitStack()
        self.world = self.stack.enter_context(pod_world(self.cluster))
        for number, volume in enumerate(volumes):
            self.world.publish(f"first-{number}", volume)

    def teardown(self) -> None:
        with getattr(self, "stack", contextlib.ExitStack()):
            self.world.end()

    def drawn(self, data: st.DataObject) -> str:
        """Draws one of the pods that are there."""
        return data.draw(st.sampled_from(sorted(self.world.pods)))

    # ---- pods ------------------------------------------------------------------------------------

    @rule(pod=PODS, volume=VOLUMES)
    def publish(self, pod: str, volume: str) -> None:
        self.world.publish(pod, volume)

    @rule()
    def ask_again(self) -> None:
        self.world.publish_again()

    @has_pods
    @rule(data=st.data())
    def unpublish(self, data: st.DataObject) -> None:
        self.world.unpublish(self.drawn(data))

    @has_pods
    @rule(data=st.data())
    def unpublish_several(self, data: st.DataObject) -> None:
        pods = st.sampled_from(sorted(self.world.pods))
        self.world.unpublish_all(data.draw(st.lists(pods, min_size=1, max_size=4, unique=True)))

    @has_pods
    @rule(data=st.data())
    def delete_without_driver(self, data: st.DataObject) -> None:
        self.world.delete_without_driver(self.drawn(data))

    @has_pods
    @rule(data=st.data(), volume=VOLUMES)
    def change_without_plugin(self, data: st.DataObject, volume: str) -> None:
        gone = self.drawn(data)
        new = data.draw(PODS.filter(lambda pod: pod != gone))
        self.world.change_pods_without_plugin(new, volume, gone)

    # ---- what serves -----------------------------------------------------------------------------

    @rule(whole_group=st.booleans())
    def kill_agent(self, whole_group: bool) -> None:
        self.world.kill_agents_group() if whole_group else self.world.kill_agent()

    @rule()
    def roll_agent(self) -> None:
        self.world.roll_agent()

    @has_pods
    @rule()
    def roll_to_a_broken_agent(self) -> None:
        self.world.roll_to_a_broken_agent()

    @rule(number=NUMBERS)
    def kill_client(self, number: int) -> None:
        self.world.kill_one(CLIENT, number)

    @rule(number=NUMBERS)
    def kill_supervisor(self, number: int) -> None:
        self.world.kill_one(SUPERVISOR, number)

    @rule(by_force=st.booleans())
    def restart_driver(self, by_force: bool) -> None:
        self.world.kill_driver() if by_force else self.world.restart_driver()

    @rule()
    def restart_holder(self) -> None:
        self.world.restart_holder()

    @rule()
    def kill_worker(self) -> None:
        self.world.kill_worker()

    @invariant()
    def holds(self) -> None:
        self.world.check()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with data_cluster(tmp_path_factory.mktemp("pods")) as made:
        History.cluster = made
        yield made


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("cluster")
def test_nothing_wrong_is_read_and_nothing_is_left() -> None:
    print(f"seed {SEED}")
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            verbosity=Verbosity.debug,  # each step is printed: a history may not fail again
            phases=[Phase.generate],  # shrinking would start hundreds of nodes, seconds each
            suppress_health_check=list(HealthCheck),
        ),
    )
