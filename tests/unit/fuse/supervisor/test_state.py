"""The supervisor's decisions, driven by made-up clients: whatever happens in whatever order, at
most one of them may read the device, and it always ends in a mount that is served or taken away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cachefs.core.errors import CacheFSError, Unreachable
from cachefs.core.messages import Failure
from cachefs.fuse.supervisor import events as e
from cachefs.fuse.supervisor import state as s
from tests.services.examples import examples

TIMEOUT_S = 10.0
WHY = Failure("FAILED", "why")


class World:
    """A supervision, the processes that it started and the mount that it made. Processes do what
    clients do: one that is told to retire goes on reading until it says so, or ends."""

    def __init__(self, state: s.Supervision | None = None, now: float = 100.0) -> None:
        self.now = now
        self.state = state if state is not None else s.Supervision(TIMEOUT_S)
        self.next_pid = 1
        self.alive: set[int] = set()
        self.readers: set[int] = set()  # were told to serve, have neither ended nor retired
        self.said: list[e.Action] = []
        self.code: int | None = None
        self.left_to = 0
        self.start_fails = self.mount_fails = False
        self.asked = 0  # upgrades that wait for an answer
        self.is_mounted = False
        self.is_held = False  # by a holder, which knows it
        self.retired_pids: set[int] = set()

    def on(self, event: e.Event) -> list[e.Action]:
        actions = self.state.handle(event, self.now)
        for action in actions:
            self._do(action)
        self.said += actions
        return actions

    def _do(self, action: e.Action) -> None:
        match action:
            case e.Start():
                self._start()
            case e.Mount():
                assert not self.is_mounted, "a second mount"
                self.is_mounted = not self.mount_fails
                self.on(e.Mounted(WHY if self.mount_fails else None))
            case e.Claim():
                assert self.is_held
                self.on(e.Claimed(self.is_mounted))
            case e.SendServe(pid):
                assert self.is_mounted
                assert not self.readers, f"{pid} is told to serve beside {self.readers}"
                if pid in self.alive:
                    self.readers.add(pid)
            case e.AnnounceUpgraded():
                self.asked = 0
            case e.GiveUp():
                self.is_mounted = self.is_held and self.is_mounted
            case e.Finish(code):
                self.code = code
            case e.Leave(pid):
                self.left_to = pid

    def _start(self) -> None:
        if self.start_fails:
            self.on(e.NotStarted("no memory"))
            return
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        self.alive.add(pid)
        self.on(e.Started(pid))

    @property
    def is_over(self) -> bool:
        return self.code is not None or self.left_to > 0

    def ends(self, pid: int, *, clean: bool = False, killed: bool = False) -> list[e.Action]:
        self.alive.discard(pid)
        self.readers.discard(pid)
        return self.on(e.Ended(pid, clean, killed))

    def retired(self, pid: int) -> list[e.Action]:
        self.readers.discard(pid)
        self.retired_pids.add(pid)
        return self.on(e.ClientRetired(pid))

    def waits(self, seconds: float) -> list[e.Action]:
        """In steps of a beat, with nobody beating."""
        actions: list[e.Action] = []
        until = self.now + seconds
        while self.now < until and not self.is_over:
            self.now += 0.25
            actions += self.on(e.Tick())
        return actions

    def serves(self, pid: int, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.on(e.ClientBeat(pid))
            self.on(e.Tick())


def mounted() -> World:
    """A mount that the client 1 serves."""
    world = World()
    world.on(e.Begin())
    world.on(e.ClientReady(1, "a warning"))
    world.on(e.ClientServing(1))
    assert world.readers == {1}
    return world


def held(*, serving: bool = True) -> World:
    """A mount of the holder that the client 1 serves, or will serve."""
    world = World(s.Supervision.of_held(TIMEOUT_S))
    world.is_held = world.is_mounted = True
    world.on(e.Begin())
    if serving:
        world.on(e.ClientReady(1))
        world.on(e.ClientServing(1))
        assert world.readers == {1}
    return world


def of_kind(actions: list[e.Action], kind: type[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


# ---- starting ------------------------------------------------------------------------------------


def test_a_mount_is_announced_when_its_client_serves() -> None:
    world = World()
    assert world.on(e.Begin()) == [e.Start()]
    assert world.on(e.ClientReady(1, "a warning")) == [e.Mount()]
    assert e.SendServe(1, takeover=False) in world.said
    assert world.on(e.ClientServing(1)) == [e.AnnounceStarted(1, "a warning")]


@pytest.mark.parametrize(
    "event", [e.ClientFailed(1, WHY), e.Ended(1, clean=False), e.Ended(1, clean=True)]
)
def test_a_first_client_that_fails_fails_the_mount(event: e.Event) -> None:
    world = World()
    world.on(e.Begin())
    actions = world.on(event)
    assert of_kind(actions, e.AnnounceFailed)
    assert world.code == 1


@pytest.mark.parametrize(("killed", "code"), [(True, Unreachable.code), (False, CacheFSError.code)])
def test_a_first_client_that_was_killed_may_be_started_again(killed: bool, code: str) -> None:
    world = World()
    world.on(e.Begin())
    (announced,) = of_kind(world.ends(1, killed=killed), e.AnnounceFailed)
    assert announced.failure.code == code


def test_a_mount_that_is_refused_leaves_no_client() -> None:
    world = World()
    world.mount_fails = True
    world.on(e.Begin())
    world.on(e.ClientReady(1))
    assert e.AnnounceFailed(WHY) in world.said
    assert e.Kill(1) in world.said
    assert world.code == 1


def test_a_client_that_was_told_and_fails_takes_the_first_mount_away() -> None:
    world = World()
    world.on(e.Begin())
    world.on(e.ClientReady(1))
    world.on(e.ClientFailed(1, WHY))
    assert not world.is_mounted
    assert world.code == 1


def test_a_client_that_cannot_be_started_fails_the_mount() -> None:
    world = World()
    world.start_fails = True
    world.on(e.Begin())
    assert [said.failure.cause for said in of_kind(world.said, e.AnnounceFailed)] == ["no memory"]
    assert world.code == 1


def test_a_held_mount_notes_why_its_clients_fail_until_one_serves() -> None:
    world = held(serving=False)
    assert world.on(e.ClientFailed(1, WHY)) == [e.NoteFailure(WHY)]
    world.ends(1)
    world.on(e.ClientReady(2))
    assert world.on(e.ClientServing(2)) == [e.NoteFailure(None)]


def test_a_held_mount_that_was_removed_gets_no_further_client() -> None:
    world = held(serving=False)
    world.is_mounted = False
    world.on(e.ClientFailed(1, WHY))
    assert not of_kind(world.ends(1, clean=True), e.Start)
    assert world.code == 0


# ---- deaths --------------------------------------------------------------------------------------


def test_a_death_is_followed_at_once() -> None:
    world = mounted()
    assert world.ends(1, killed=True) == [e.Start()]
    assert world.on(e.ClientReady(2)) == [e.SendServe(2, takeover=True)]
    assert world.on(e.ClientServing(2)) == []


def test_the_server_that_is_away_is_not_a_death_of_the_mount() -> None:
    """A successor has the time that a server needs to be started again."""
    world = mounted()
    world.ends(1, killed=True)
    assert world.waits(s.START_LIMIT_S - 1) == []
    assert world.on(e.ClientReady(2)) == [e.SendServe(2, takeover=True)]


def test_a_successor_has_the_time_after_which_a_server_is_killed() -> None:
    """With a long heartbeat, that is more than the time of a start."""
    limit_s = 3 * 60.0 + s.SERVER_START_S
    assert limit_s > s.START_LIMIT_S
    world = World(s.Supervision(60.0))
    world.on(e.Begin())
    assert world.waits(limit_s - 1) == []
    assert world.waits(1) == [e.DumpStacks(1)]


def deaths(world: World, *, killed: bool, served_s: float = 0.0) -> int:
    """How many clients die, each as soon as it serves, before the mount is given up."""
    for count in range(1, 1000):
        (pid,) = world.alive
        if served_s:
            world.serves(pid, served_s)
        world.ends(pid, killed=killed)
        if world.code is not None:
            return count
        world.waits(s.PAUSE_MAX_S + 1)
        (pid,) = world.alive
        world.on(e.ClientReady(pid))
        world.on(e.ClientServing(pid))
    return 0


def test_deaths_in_a_row_end_the_mount() -> None:
    world = mounted()
    began = world.now
    assert deaths(world, killed=False) == s.MAX_DEATHS + 1
    assert world.code == 1
    assert not world.is_mounted, "callers get an error"
    assert world.now - began < 60


def test_clients_that_are_killed_from_outside_have_more_lives() -> None:
    world = mounted()
    assert deaths(world, killed=True) == s.MAX_KILLS + 1
    assert world.code == 1


def test_deaths_of_clients_that_served_do_not_add_up() -> None:
    world = mounted()
    assert deaths(world, killed=False, served_s=2 * s.GOOD_S) == 0
    assert world.is_mounted


def test_pauses_grow_and_are_bounded() -> None:
    world = mounted()
    pauses = []
    for _ in range(s.MAX_DEATHS):
        (pid,) = world.alive
        died_at = world.now
        world.ends(pid)
        while not world.alive:
            world.now += 0.01
            world.on(e.Tick())
        pauses.append(world.now - died_at)
        (pid,) = world.alive
        world.on(e.ClientReady(pid))
        world.on(e.ClientServing(pid))
    assert pauses[: s.AT_ONCE] == [0.0] * s.AT_ONCE
    assert pauses == sorted(pauses)
    assert 0 < pauses[s.AT_ONCE] <= s.PAUSE_FIRST_S + 0.02
    assert pauses[-1] <= s.PAUSE_MAX_S + 0.02


def test_where_nothing_is_sent_again_the_first_death_is_the_end() -> None:
    world = mounted()
    world.state.can_take_over = False
    world.ends(1, killed=True)
    assert world.code == 1
    assert not world.is_mounted


def test_processes_that_cannot_be_started_end_the_mount() -> None:
    world = mounted()
    world.start_fails = True
    world.ends(1, killed=True)
    world.waits(60)
    assert world.code == 1
    assert not world.is_mounted


def test_a_client_that_ends_well_ends_it_all() -> None:
    world = mounted()
    world.ends(1, clean=True)
    assert world.code == 0


# ---- hanging -------------------------------------------------------------------------------------


def test_one_that_does_not_beat_is_dumped_and_then_killed() -> None:
    world = mounted()
    world.serves(1, 30)
    assert world.waits(TIMEOUT_S - 0.5) == []
    actions = world.waits(0.5)
    assert actions == [e.DumpStacks(1)]
    assert world.waits(s.DUMP_GRACE_S) == [e.Kill(1)]
    assert world.waits(5) == [], "once"
    assert world.ends(1, killed=True) == [e.Start()]


def test_one_that_beats_again_lives() -> None:
    world = mounted()
    assert world.waits(TIMEOUT_S) == [e.DumpStacks(1)]
    world.serves(1, 60)
    assert not of_kind(world.said, e.Kill)


def test_clients_that_hang_as_soon_as_they_serve_end_the_mount() -> None:
    """A request that hangs its client comes again with each successor: nobody waits for ever."""
    world = mounted()
    for _ in range(s.MAX_DEATHS + 1):
        (pid,) = world.alive
        world.waits(TIMEOUT_S + s.DUMP_GRACE_S + 1)
        assert e.Kill(pid) in world.said
        world.ends(pid, killed=True)
        world.waits(s.PAUSE_MAX_S + 1)
        if world.code is None:
            (pid,) = world.alive
            world.on(e.ClientReady(pid))
            world.on(e.ClientServing(pid))
    assert world.code == 1


@pytest.mark.parametrize("phase", ["starting", "told", "retiring", "retired"])
def test_no_phase_lasts_for_ever(phase: str) -> None:
    """Beats or not: one that does not get on is killed."""
    world = mounted()
    pid = 2
    if phase in ("starting", "told"):
        world.ends(1, killed=True)
    if phase == "told":
        world.on(e.ClientReady(2))
    if phase in ("retiring", "retired"):
        world.on(e.UpgradeRequested())
        world.on(e.ClientReady(2))
        pid = 1
    if phase == "retired":
        world.retired(1)
    for _ in range(int(4 * (s.START_LIMIT_S + s.DUMP_GRACE_S + 1))):
        world.now += 0.25
        world.on(e.ClientBeat(pid))
        world.on(e.Tick())
    assert e.DumpStacks(pid) in world.said
    assert world.said.count(e.Kill(pid)) == 1


# ---- upgrades ------------------------------------------------------------------------------------


def test_an_upgrade() -> None:
    world = mounted()
    assert world.on(e.UpgradeRequested()) == [e.Start(upgrade=True)]
    assert world.on(e.ClientReady(2)) == [e.SendRetire(1)]
    assert world.retired(1) == [e.SendServe(2, takeover=True)]
    assert world.on(e.ClientServing(2)) == [e.AnnounceUpgraded(2, None), e.Leave(2)]
    assert world.on(e.Ended(1, clean=True)) == [], "it has left"


def test_an_upgrade_whose_old_client_dies_first() -> None:
    world = mounted()
    world.on(e.UpgradeRequested())
    world.on(e.ClientReady(2))
    assert world.ends(1, killed=True) == [e.SendServe(2, takeover=True)]


@pytest.mark.parametrize("said_why", [True, False])
def test_a_new_version_that_cannot_serve_changes_nothing(said_why: bool) -> None:
    world = mounted()
    world.on(e.UpgradeRequested())
    if said_why:
        assert world.on(e.ClientFailed(2, WHY)) == [e.AnnounceUpgraded(0, WHY)]
        assert world.on(e.UpgradeRequested()) == [e.Start(upgrade=True)], "it may be tried again"
        assert world.ends(2) == [], "who asks now is told of the next one only"
    else:
        (said,) = world.ends(2)
        assert isinstance(said, e.AnnounceUpgraded)
        assert said.failure is not None
        assert world.on(e.UpgradeRequested()) == [e.Start(upgrade=True)], "it may be tried again"
    assert world.readers == {1}


def test_one_that_retires_still_reads_when_its_successor_dies() -> None:
    """Whoever is started then waits for it."""
    world = mounted()
    world.on(e.UpgradeRequested())
    world.on(e.ClientReady(2))
    assert not of_kind(world.ends(2), e.Start)
    assert world.retired(1) == [e.Start()]
    assert world.on(e.ClientReady(3)) == [e.SendServe(3, takeover=True)]


def test_a_new_version_that_dies_when_it_is_told_is_reported_and_followed() -> None:
    world = mounted()
    world.on(e.UpgradeRequested())
    world.on(e.ClientReady(2))
    world.retired(1)
    actions = world.ends(2)
    assert of_kind(actions, e.AnnounceUpgraded)[0].failure is not None
    assert of_kind(actions, e.Start) == [e.Start()]


def test_a_program_that_cannot_be_started_is_no_upgrade() -> None:
    world = mounted()
    world.start_fails = True
    world.on(e.UpgradeRequested())
    assert [said.failure.cause for said in of_kind(world.said, e.AnnounceUpgraded)] == ["no memory"]
    assert world.readers == {1}


def test_a_death_during_an_upgrade_leaves_one_client() -> None:
    """Both are started; the new version comes first, so the other is not needed."""
    world = mounted()
    world.on(e.UpgradeRequested())
    assert world.ends(1, killed=True) == [e.Start()]
    world.on(e.ClientReady(2))
    actions = world.on(e.ClientServing(2))
    assert actions == [e.AnnounceUpgraded(2, None), e.Kill(3), e.Leave(2)]


def test_upgrades_are_refused_while_it_cannot_be() -> None:
    world = mounted()
    world.on(e.UpgradeRequested())
    (second,) = world.on(e.UpgradeRequested())
    assert isinstance(second, e.AnnounceUpgraded)
    assert second.failure is not None
    world = mounted()
    world.on(e.StopRequested())
    assert not of_kind(world.on(e.UpgradeRequested()), e.Start)
    world = mounted()
    world.state.can_take_over = False
    assert not of_kind(world.on(e.UpgradeRequested()), e.Start)


# ---- stopping ------------------------------------------------------------------------------------


def test_stopping_waits_for_the_client_to_unmount() -> None:
    world = mounted()
    assert world.on(e.StopRequested()) == [e.Terminate(1)]
    world.ends(1, clean=True)
    assert world.code == 0


def test_a_second_signal_does_not_wait() -> None:
    world = mounted()
    world.on(e.StopRequested())
    assert e.Kill(1) in world.on(e.StopRequested())
    assert world.code == 0
    assert not world.is_mounted


def test_stopping_has_a_limit() -> None:
    world = mounted()
    world.on(e.StopRequested())
    world.serves(1, s.STOP_LIMIT_S + 1)
    assert e.Kill(1) in world.said
    assert world.code == 0


def test_stopping_while_nobody_serves() -> None:
    world = mounted()
    for _ in range(s.AT_ONCE + 1):
        (pid,) = world.alive
        world.ends(pid)
        for pid in world.alive:
            world.on(e.ClientReady(pid))
            world.on(e.ClientServing(pid))
    assert not world.alive, "it pauses"
    world.on(e.StopRequested())
    assert world.code == 0
    assert not world.is_mounted


def test_no_client_is_started_while_it_stops() -> None:
    world = mounted()
    world.on(e.UpgradeRequested())
    world.on(e.StopRequested())
    assert not of_kind(world.ends(1, killed=True), e.Start)
    assert world.code == 0


# ---- taking over from a lost supervisor ----------------------------------------------------------


def test_a_running_client_is_watched() -> None:
    world = World(s.Supervision.of_running(TIMEOUT_S, 1, 100.0))
    world.alive, world.readers, world.next_pid, world.is_mounted = {1}, {1}, 2, True
    world.serves(1, 5)
    assert world.said == []
    assert world.ends(1, killed=True) == [e.Start()]
    assert world.on(e.ClientReady(2)) == [e.SendServe(2, takeover=True)]


def test_a_client_that_is_still_starting_is_watched() -> None:
    """Its supervisor was lost before it could be told to serve: it is told by the next one."""
    world = World(s.Supervision.of_running(TIMEOUT_S, 1, 100.0, serving=False))
    world.alive, world.next_pid, world.is_mounted = {1}, 2, True
    assert world.on(e.ClientReady(1)) == [e.SendServe(1, takeover=True)]
    assert world.on(e.ClientServing(1)) == []
    assert world.ends(1, killed=True) == [e.Start()]


# ---- anything in any order -----------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Clients, people and time do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(adopted=st.booleans(), is_held=st.booleans(), can=st.booleans())
    def begin(self, adopted: bool, is_held: bool, can: bool) -> None:
        if adopted:
            self.world = World(s.Supervision.of_running(TIMEOUT_S, 1, 100.0, held=is_held))
            self.world.alive, self.world.readers = {1}, {1}
            self.world.next_pid, self.world.is_mounted = 2, True
            self.world.is_held = is_held
        elif is_held:
            self.world = held(serving=False)
        else:
            self.world.on(e.Begin())
        self.world.state.can_take_over = can

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.world.alive)), "pid")

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data(), kind=st.sampled_from(["ready", "serving", "beat", "failed", "retired"]))
    def says(self, data: st.DataObject, kind: str) -> None:
        """Even what it should not say now."""
        pid = self.pick(data)
        if kind == "retired":
            self.world.retired(pid)
        else:
            events: dict[str, e.Event] = {
                "ready": e.ClientReady(pid),
                "serving": e.ClientServing(pid),
                "beat": e.ClientBeat(pid),
                "failed": e.ClientFailed(pid, WHY),
            }
            self.world.on(events[kind])

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data(), clean=st.booleans(), killed=st.booleans())
    def ends(self, data: st.DataObject, clean: bool, killed: bool) -> None:
        pid = self.pick(data)
        self.world.ends(pid, clean=clean, killed=killed and not clean)

    @rule(seconds=st.floats(0.05, 120))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.on(e.Tick())

    @rule()
    def stop(self) -> None:
        self.world.on(e.StopRequested())

    @rule()
    def another_claims(self) -> None:
        if self.world.is_held:
            self.world.on(e.HandOver())

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data())
    def is_over_budget(self, data: st.DataObject) -> None:
        self.world.on(e.OverBudget(self.pick(data)))

    @rule(fails=st.booleans())
    def upgrade(self, fails: bool) -> None:
        self.world.asked = 1
        self.world.start_fails = fails
        self.world.on(e.UpgradeRequested())
        self.world.start_fails = False

    @rule(pid=st.integers(50, 60))
    def a_stranger_ends(self, pid: int) -> None:
        if pid not in self.world.alive:
            self.world.on(e.Ended(pid, clean=True))

    @invariant()
    def one_reader(self) -> None:
        assert len(self.world.readers) <= 1

    @invariant()
    def somebody_serves_or_will(self) -> None:
        """Somebody is alive, or a start is due, or it is over."""
        world = self.world
        if world.is_over or world.alive or world.next_pid == 1:
            return
        world.waits(s.PAUSE_MAX_S + 0.5)
        assert world.alive or world.is_over

    @invariant()
    def over_means_over(self) -> None:
        world = self.world
        if world.code is not None:
            assert world.is_held or not world.is_mounted, "nothing is left mounted"
            killed = {action.pid for action in of_kind(world.said, e.Kill)}
            assert world.alive <= killed | world.retired_pids, "nothing is left running"
            assert world.readers <= killed, "nothing reads what another process claimed"
        if world.left_to:
            assert world.readers <= {world.left_to}

    def teardown(self) -> None:
        """With clients that do nothing any more, it comes to an end of itself."""
        world = self.world
        for _ in range(2 * (s.MAX_DEATHS + s.MAX_KILLS)):
            if world.is_over:
                break
            world.waits(s.START_LIMIT_S + s.DUMP_GRACE_S + 1)
            killed = {action.pid for action in of_kind(world.said, e.Kill)}
            for pid in sorted(world.alive & killed):
                world.ends(pid, killed=True)
        assert world.is_over


@pytest.mark.no_cover
def test_any_order_of_events() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(max_examples=examples(300), stateful_step_count=40, deadline=None),
    )


# ---- mounts of the holder ------------------------------------------------------------------------


def test_a_held_mount_is_claimed_when_a_client_is_ready_for_it() -> None:
    world = held(serving=False)
    assert world.said == [e.Start()]
    world.on(e.ClientReady(1))
    assert {*world.said[1:]} == {e.Claim(), e.SendServe(1, takeover=True)}
    assert world.on(e.ClientServing(1)) == [e.NoteFailure(None)]
    world.ends(1, killed=True)
    world.on(e.ClientReady(2))
    assert world.said[-1] == e.SendServe(2, takeover=True), "the claim is this supervisor's already"
    assert len(of_kind(world.said, e.Claim)) == 1


def test_a_held_mount_that_has_ended_meanwhile_is_not_served() -> None:
    world = held(serving=False)
    world.is_mounted = False
    world.on(e.ClientReady(1))
    assert not of_kind(world.said, e.SendServe)
    assert world.code == 0


@pytest.mark.parametrize("event", [e.HandOver(), e.StopRequested()])
def test_a_held_mount_is_left_to_another_process(event: e.Event) -> None:
    world = held()
    assert world.on(event) == [e.SendRetire(1)]
    assert world.on(event) == [], "once"
    assert world.retired(1) == [e.Finish(0)]
    assert world.is_mounted
    assert not of_kind(world.said, e.GiveUp)


def test_the_successor_of_a_mount_that_is_left_does_not_start() -> None:
    world = held()
    world.on(e.UpgradeRequested())
    assert world.on(e.HandOver()) == [e.Kill(2), e.SendRetire(1)]
    (said,) = world.ends(2, killed=True)
    assert isinstance(said, e.AnnounceUpgraded)
    assert world.ends(1, killed=True) == [e.Finish(0)]


def test_a_client_that_may_not_listen_yet_is_killed_when_its_mount_is_claimed() -> None:
    world = held(serving=False)
    world.on(e.ClientReady(1))
    assert world.on(e.HandOver()) == [e.Kill(1), e.Finish(0)]


def test_a_client_that_does_not_retire_is_killed() -> None:
    world = held()
    world.on(e.HandOver())
    world.waits(s.SERVE_LIMIT_S + 1)
    assert e.Kill(1) in world.said
    assert world.code == 0


def test_a_held_mount_that_kills_its_clients_is_left_mounted() -> None:
    world = held()
    assert deaths(world, killed=False) == s.MAX_DEATHS + 1
    assert world.code == 1
    assert world.is_mounted, "another process may be able to serve it"


def test_a_worker_that_is_away_delays_the_start_of_a_client() -> None:
    wait_s = 600.0
    world = World(s.Supervision.of_held(TIMEOUT_S, wait_s))
    world.is_held = world.is_mounted = True
    world.on(e.Begin())
    assert world.waits(s.START_LIMIT_S + wait_s - 1) == []


def test_a_client_over_its_budget_is_followed_once_a_while() -> None:
    world = held()
    assert world.on(e.OverBudget(1)) == [e.Start()]
    assert world.on(e.OverBudget(1)) == []
    assert world.on(e.ClientReady(2)) == [e.SendRetire(1)]
    assert world.retired(1) == [e.SendServe(2, takeover=True)]
    world.ends(1, clean=True)
    world.on(e.ClientServing(2))
    assert world.on(e.OverBudget(2)) == [], "the next one was not better"
    world.serves(2, s.RENEW_S)
    assert world.on(e.OverBudget(2)) == [e.Start()]


@given(st.lists(st.sampled_from(["ready", "serving", "retired", "end", "kill"]), max_size=30))
def test_upgrades_in_any_history(steps: list[str]) -> None:
    """One that asked for an upgrade always hears how it went, or that the supervisor ended."""
    world = mounted()
    world.asked = 1
    world.on(e.UpgradeRequested())
    for step in steps:
        for pid in sorted(world.alive)[:1] if step in ("retired", "end") else sorted(world.alive):
            _step(world, step, pid)
    for _ in _until_over(world):
        pass
    assert world.asked == 0 or world.is_over


def _step(world: World, step: str, pid: int) -> None:
    match step:
        case "ready":
            world.on(e.ClientReady(pid))
        case "serving":
            world.on(e.ClientServing(pid))
        case "retired":
            world.retired(pid)
        case "end" | "kill":
            world.ends(pid, killed=step == "kill")


def _until_over(world: World) -> Iterator[None]:
    """Everything that lives does what it is expected to."""
    for _ in range(20):
        if world.is_over:
            return
        for pid in sorted(world.alive):
            world.on(e.ClientReady(pid))
            world.on(e.ClientServing(pid))
            if e.SendRetire(pid) in world.said:
                world.retired(pid)
                world.ends(pid, clean=True)
        world.waits(2)
        yield
