"""Finding out that a disk hangs: slow is not hanging, hanging is found, and the way back."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.tier.health import (
    PROBE_LIMIT_S,
    PROBE_PAUSE_S,
    STUCK_S,
    SUSPECT_S,
    Act,
    Health,
    Watch,
)

STEP_S = 0.25


class Disk:
    """A watch, and a disk that answers probes after `probe_s` seconds (None: never)."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.now = 100.0
        self.calls: list[str] = []
        self.writes: list[str] = []
        self.probe_s: float | None = 0.01
        self.right = True
        self.probing_since: float | None = None
        self.acts: list[Act] = []

    def run(self, seconds: float) -> list[Act]:
        """What the watch wanted meanwhile."""
        before = len(self.acts)
        for _ in range(int(seconds / STEP_S)):
            self.now += STEP_S
            self._answer()
            act = self.watch.look(self.calls, self.writes, self.now)
            self.watch.check_invariants()
            if act is Act.PROBE:
                assert self.probing_since is None, "one probe at a time"
                self.probing_since = self.now
            if act is not Act.NOTHING:
                self.acts.append(act)
        return self.acts[before:]

    def _answer(self) -> None:
        since, probe_s = self.probing_since, self.probe_s
        if since is not None and probe_s is not None and self.now - since >= probe_s:
            self.probing_since = None
            self.watch.probed(self.now, answered=self.right)


def test_an_idle_or_quick_disk_is_left_alone() -> None:
    disk = Disk()
    for n in range(100):
        disk.calls = [f"call {n}"]
        assert disk.run(STEP_S) == []


def test_a_slow_call_on_a_disk_that_answers_is_only_slow() -> None:
    disk = Disk()
    disk.calls = ["a sync"]
    acts = disk.run(120)
    assert set(acts) == {Act.PROBE}
    assert len(acts) <= 120 / PROBE_PAUSE_S


def test_a_disk_that_hangs_leaves_and_comes_back() -> None:
    disk = Disk()
    disk.calls, disk.probe_s = ["a read"], None
    assert disk.run(SUSPECT_S + PROBE_LIMIT_S + 3 * STEP_S) == [Act.PROBE, Act.LEAVE]
    assert disk.run(600) == [], "the one probe waits"
    disk.calls, disk.probe_s = [], 0.0
    assert disk.run(2 * STEP_S) == [Act.RETURN]
    assert disk.run(10) == []


def test_a_write_that_is_stuck_hangs_whatever_probes_say() -> None:
    disk = Disk()
    disk.writes = ["a write"]
    acts = disk.run(STUCK_S + 1)
    assert acts[-1] is Act.LEAVE or Act.LEAVE in acts
    assert Act.RETURN not in disk.run(60)
    disk.writes = []
    assert Act.RETURN in disk.run(2 * PROBE_PAUSE_S + 1)


def test_a_wrong_answer_is_none() -> None:
    disk = Disk()
    disk.calls, disk.probe_s = ["a read"], None
    disk.run(10)
    disk.calls, disk.probe_s, disk.right = [], 0.0, False
    assert Act.RETURN not in disk.run(10)
    disk.right = True
    assert disk.run(3)[-1] is Act.RETURN


def test_a_disk_that_answers_every_probe_wrongly_is_given_up() -> None:
    disk = Disk()
    disk.watch.suspect()
    disk.right = False
    assert disk.run(3 * PROBE_PAUSE_S)[:3] == [Act.PROBE, Act.PROBE, Act.LEAVE]
    assert set(disk.run(60)) == {Act.PROBE}
    disk.right = True
    assert disk.run(3 * PROBE_PAUSE_S)[-1] is Act.RETURN
    assert disk.run(60) == [], "nothing is held against it"


def test_one_wrong_answer_is_not_enough() -> None:
    disk = Disk()
    disk.watch.suspect()
    disk.right = False
    assert disk.run(2 * STEP_S) == [Act.PROBE]
    disk.right = True
    assert disk.run(60) == [Act.PROBE], "another one asks again"


def test_a_full_disk_calls_for_no_probe() -> None:
    health = Health()
    health.fault(OSError(errno.ENOSPC, "full"), 1.0)
    assert health.broken == 0
    health.fault(OSError(errno.EIO, "broken"), 1.0)
    health.fault(OSError(errno.ENOENT, "gone"), 1.0)
    assert health.broken == 2


def test_a_process_that_was_stopped_blames_nobody() -> None:
    disk = Disk()
    disk.calls = ["a sync"]
    disk.probe_s = 1.0
    assert disk.run(SUSPECT_S + 2 * STEP_S) == [Act.PROBE]
    disk.now += 100.0
    assert Act.LEAVE not in disk.run(20)


def test_a_suspicion_is_looked_into_at_once() -> None:
    disk = Disk()
    disk.watch.suspect()
    assert disk.run(STEP_S) == [Act.PROBE]
    assert disk.run(30) == []


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdef"), max_size=3),
            st.lists(st.sampled_from("wxyz"), max_size=2),
            st.sampled_from([None, 0.0, 0.5, 2.0, 5.0]),
            st.booleans(),
            st.floats(0.25, 8),
        ),
        max_size=20,
    )
)
def test_it_always_comes_back_once_the_disk_answers(
    steps: list[tuple[list[str], list[str], float | None, bool, float]],
) -> None:
    disk = Disk()
    for disk.calls, disk.writes, disk.probe_s, disk.right, seconds in steps:
        disk.run(seconds)
    states = [act for act in disk.acts if act is not Act.PROBE]
    assert states == [Act.LEAVE, Act.RETURN] * (len(states) // 2) + [Act.LEAVE] * (
        len(states) % 2
    ), "in turns"
    disk.calls, disk.writes, disk.probe_s, disk.right = [], [], 0.0, True
    disk.run(5)
    assert disk.watch.in_service


@pytest.mark.parametrize("degraded", [False, True])
def test_states_of_a_tier(degraded: bool) -> None:
    health = Health()
    if degraded:
        health.fault(OSError(5, "broken"), 1.0)
    health.left()
    assert health.state(1000.0) == "offline"
    assert not health.writable(1000.0)
    assert "answer" in health.cause
    health.fault(OSError(110, "another cause"), 1000.0)
    assert "answer" in health.cause, "the first cause is the cause"
    health.returned()
    assert health.state(1000.0) == "normal"
    assert health.writable(1000.0)
    assert health.cause == ""


def test_what_is_left_for_good_does_not_come_back() -> None:
    watch = Watch()
    acts = [watch.look([], [], 100.0 + n, for_good=True) for n in range(100)]
    assert acts == [Act.LEAVE] + [Act.NOTHING] * 99
    assert not watch.in_service
    watch.probed(200.0, answered=True)
    assert watch.look([], [], 200.0, for_good=True) is Act.NOTHING
