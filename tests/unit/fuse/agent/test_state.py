"""The agent's decisions: which mounts it starts a supervisor for, and when it gives one up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.fuse.agent import state as s

GIVE_UP_S = 900.0


class World:
    """An agent, and a clock."""

    def __init__(self, name: str = "new", claimants: dict[str, str] | None = None) -> None:
        self.now = 100.0
        self.agency = s.Agency(name, GIVE_UP_S)
        self.first = self.on(s.Connected(claimants or {}))

    def on(self, event: s.Event) -> list[s.Action]:
        return self.agency.handle(event, self.now)

    def waits(self, seconds: float) -> list[s.Action]:
        until, found = self.now + seconds, []
        while self.now < until:
            self.now += 0.1
            found += self.on(s.Tick())
        return found


def test_a_new_agent_takes_every_mount_over() -> None:
    world = World(claimants={"free": "", "taken": "old"})
    assert world.first == [s.Start("free", "start"), s.Start("taken", "start")]
    assert not world.agency.is_ready
    world.on(s.Claimed("free", "new"))
    assert not world.agency.is_ready, "an older agent still serves one"
    world.on(s.Claimed("taken", "new"))
    assert world.agency.is_ready
    assert world.waits(60) == []


def test_a_mount_that_is_deposited_is_served_at_once() -> None:
    world = World()
    assert world.agency.is_ready
    assert world.on(s.Put("k")) == [s.Start("k", "new")]
    assert not world.agency.is_ready
    world.on(s.Claimed("k", "new"))
    assert world.agency.is_ready
    assert world.on(s.Dropped("k")) == []
    assert world.agency.keys == []


def test_a_client_has_the_time_to_replace_its_supervisor() -> None:
    world = World()
    world.on(s.Put("k"))
    world.on(s.Claimed("k", "new"))
    world.on(s.SupervisorEnded("k"))
    world.on(s.Freed("k"))
    assert world.waits(s.GRACE_S - 0.2) == []
    world.on(s.Claimed("k", "new"))
    assert world.waits(60) == []
    world.on(s.Freed("k"))
    assert world.waits(s.GRACE_S + 0.2) == [s.Start("k", "lost")]
    assert world.waits(60) == [], "its supervisor waits for the worker"


def test_an_agent_that_was_followed_serves_again_when_its_successor_dies() -> None:
    world = World("old", {"k": ""})
    world.on(s.Claimed("k", "old"))
    world.on(s.Claimed("k", "new"))
    world.on(s.SupervisorEnded("k"))
    assert world.on(s.Put("other")) == []
    world.on(s.Claimed("other", "new"))
    assert world.waits(60) == []
    world.on(s.Freed("k"))
    assert world.waits(s.RETIRED_GRACE_S - 0.2) == [], "the container of the other one restarts"
    assert world.waits(0.4) == [s.Start("k", "lost")]


def test_a_supervisor_that_fails_is_followed_after_growing_pauses() -> None:
    world = World(claimants={"k": ""})
    pauses = []
    for _ in range(8):
        world.on(s.SupervisorEnded("k"))
        began = world.now
        while not world.on(s.Tick()):
            world.now += 0.1
        pauses.append(round(world.now - began))
    assert pauses == sorted(pauses)
    assert pauses[0] == s.PAUSE_FIRST_S
    assert pauses[-1] == s.PAUSE_MAX_S


def test_a_mount_of_an_older_agent_stays_there_until_this_one_can_serve() -> None:
    world = World(claimants={"k": "old"})
    world.on(s.SupervisorEnded("k"))
    assert world.waits(s.PAUSE_FIRST_S + 0.2) == [s.Start("k", "start")]
    assert not world.agency.is_ready
    assert world.waits(2 * GIVE_UP_S) == [], "it is served"


@pytest.mark.parametrize("flapping", [False, True])
def test_a_mount_that_nothing_can_serve_is_aborted(flapping: bool) -> None:
    world, began = World(claimants={"k": ""}), 100.0
    found: list[s.Action] = []
    while not any(isinstance(action, s.Abort) for action in found):
        found += world.waits(5.0)
        if flapping:  # its clients claim it, and die at once
            world.on(s.Claimed("k", "new"))
            world.on(s.SupervisorEnded("k"))
            world.on(s.Freed("k"))
        assert world.now < began + 2 * GIVE_UP_S
    assert world.now >= began + GIVE_UP_S
    assert world.agency.keys == []


def test_a_newer_agent_that_dies_soon_does_not_end_a_mount_that_was_served() -> None:
    world = World(claimants={"k": ""})
    world.on(s.Claimed("k", "new"))
    world.waits(2 * GIVE_UP_S)
    world.on(s.Claimed("k", "newer"))
    world.on(s.SupervisorEnded("k"))
    world.waits(1.0)
    world.on(s.Freed("k"))
    assert world.waits(s.RETIRED_GRACE_S + 0.2) == [s.Start("k", "lost")]


def test_a_mount_whose_clients_fail_under_every_supervisor_is_aborted() -> None:
    """They die or hang: each supervisor reports it some time after its claim, and gives up."""
    world, began = World(claimants={"k": ""}), 100.0
    found: list[s.Action] = []
    while not any(isinstance(action, s.Abort) for action in found):
        found += world.on(s.Claimed("k", "new"))
        found += world.waits(s.FAILING_S - 10)
        found += world.on(s.Claimed("k", ""))
        found += world.waits(60)
        found += world.on(s.SupervisorEnded("k"))
        found += world.on(s.Freed("k"))
        found += world.waits(5)
        assert world.now < began + 2 * GIVE_UP_S
    assert world.now >= began + GIVE_UP_S


def test_a_claimant_that_fails_is_left_alone_and_may_serve_again() -> None:
    world = World(claimants={"k": ""})
    world.on(s.Claimed("k", "new"))
    for _ in range(4):
        assert world.waits(s.FAILING_S) == []
        world.on(s.Claimed("k", ""))
        assert world.waits(GIVE_UP_S - 1) == []
        assert world.agency.is_ready
        world.on(s.Claimed("k", "new"))


def test_a_service_of_some_time_counts() -> None:
    world = World(claimants={"k": ""})
    world.waits(GIVE_UP_S - 10)
    world.on(s.Claimed("k", "new"))
    world.waits(s.GOOD_S + 1)
    world.on(s.Freed("k"))
    assert not any(isinstance(action, s.Abort) for action in world.waits(GIVE_UP_S - 10))


def test_a_holder_that_was_started_again_is_filled_by_supervisors() -> None:
    """The agent starts no second supervisor for what its own ones deposit again."""
    world = World(claimants={"a": "", "b": ""})
    world.on(s.Claimed("a", "new"))
    world.on(s.Claimed("b", "new"))
    assert world.on(s.Connected({})) == []
    assert world.waits(5) == []
    assert world.on(s.Connected({"a": ""})) == []
    assert world.on(s.Put("b")) == []
    assert world.waits(s.GRACE_S - 0.2) == []
    world.on(s.Claimed("a", "new"))
    world.on(s.Claimed("b", "new"))
    assert world.waits(60) == []
    assert world.agency.is_ready


def test_a_mount_that_ended_while_there_was_no_holder_is_forgotten() -> None:
    world = World(claimants={"a": ""})
    world.on(s.Claimed("a", "new"))
    world.on(s.Connected({}))
    assert world.waits(s.MISSING_S + 1) == []
    assert world.agency.keys == []
    assert world.agency.is_ready


def test_a_mount_whose_supervisor_is_gone_is_served_again_once_it_is_deposited() -> None:
    world = World(claimants={"a": ""})
    world.on(s.Claimed("a", "new"))
    world.on(s.SupervisorEnded("a"))
    world.on(s.Connected({}))
    world.on(s.Put("a"))
    assert world.waits(s.GRACE_S + 0.2) == [s.Start("a", "lost")]


def test_a_mount_whose_path_is_gone_is_not_waited_for() -> None:
    """Of the others, an older agent still serves one."""
    world = World(claimants={"gone": "old", "free": "", "taken": "old"})
    for key in ("gone", "free"):
        world.on(s.SupervisorEnded(key, has_path=False))
    assert not world.agency.is_ready
    world.on(s.Claimed("taken", "new"))
    assert world.agency.is_ready
    assert {*world.waits(s.PAUSE_FIRST_S + 0.2)} == {
        s.Start("gone", "start"),
        s.Start("free", "start"),
    }
    world.on(s.SupervisorEnded("gone"))
    assert not world.agency.is_ready, "there is another cause now"


keys = st.sampled_from("abc")
names = st.sampled_from(["new", "old", ""])
events = st.one_of(
    st.builds(s.Put, keys),
    st.builds(s.Dropped, keys),
    st.builds(s.Claimed, keys, names),
    st.builds(s.Freed, keys),
    st.builds(s.SupervisorEnded, keys),
    st.builds(s.Connected, st.dictionaries(keys, st.sampled_from(["", "new", "old"]))),
    st.just(s.Tick()),
)


@given(st.lists(st.tuples(events, st.sampled_from([0.0, 0.5, 5.0])), max_size=60))
def test_one_supervisor_at_a_time_and_none_is_forgotten(
    steps: list[tuple[s.Event, float]],
) -> None:
    world = World()
    running: set[str] = set()
    for event, pause in steps:
        if isinstance(event, s.SupervisorEnded):
            running.discard(event.key)
        before = {*world.agency.keys}
        for action in world.on(event):
            if isinstance(action, s.Start):
                assert action.key not in running or action.key not in before
                running.add(action.key)
        running &= {*world.agency.keys}
        world.now += pause
    for key in world.agency.keys:
        world.on(s.Put(key))
        world.on(s.Claimed(key, "old"))
        world.on(s.SupervisorEnded(key))
        world.on(s.Freed(key))
    free = {*world.agency.keys}
    started = {action.key for action in world.waits(s.PAUSE_MAX_S + s.RETIRED_GRACE_S + 1)}
    assert started >= free
