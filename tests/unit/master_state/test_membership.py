"""Membership: epochs, loss, drain, settling and restarts, decided without a clock or a network."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core import messages as m
from cachefs.core.cluster import (
    LOST_AFTER_S,
    Beaten,
    Drain,
    Heartbeat,
    Leave,
    Register,
    RemoveWorker,
    WorkerRow,
)
from cachefs.core.errors import BadConfig, CacheFSError, InUse, NotFound, ProtocolError
from cachefs.core.placement import Member, View
from master.state.member_record import decode_record, encode_record
from master.state.membership import (
    ABSENT_AFTER_S,
    FORGET_LOST_S,
    TICK_S,
    Membership,
    Outcome,
    Tick,
)
from tests.services.examples import examples


class Ring:
    """A membership whose clock the test moves; invariants are checked after each event."""

    def __init__(self, membership: Membership | None = None, now: float = 1000.0) -> None:
        self.now = now
        self.membership = membership or Membership(now)

    def send(self, event: object) -> Outcome:
        outcome = self.membership.handle(event, self.now)  # type: ignore[arg-type]
        self.membership.check_invariants()
        return outcome

    def register(self, id: str, weight: float = 1.0, port: int | None = None) -> View:
        url = f"http://10.0.0.{ord(id[0])}:{port or 20000 + len(id)}"
        answer = self.send(Register(id, url, weight, host=f"host-{id}")).answer
        assert isinstance(answer, View)
        return answer

    def beat(
        self, id: str, epoch: int | None = None, settled: int = 0, version: int = -1
    ) -> Beaten:
        if epoch is None:
            epoch = self.view.epoch
        answer = self.send(Heartbeat(id, epoch, settled, version=version)).answer
        assert isinstance(answer, Beaten)
        return answer

    def settle(self, *ids: str) -> None:
        for id in ids:
            self.beat(id, settled=self.view.epoch)

    def passes(self, seconds: float, *beating: str) -> list[str]:
        """Time passes, second by second; the notes of it."""
        notes: list[str] = []
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for id in beating:
                self.beat(id)
            notes += self.send(Tick()).notes
        return notes

    def restart(self, away_s: float = 0.0) -> None:
        record = decode_record(encode_record(self.membership.record()))
        self.now += away_s
        self.membership = Membership(self.now, record)
        self.membership.check_invariants()

    @property
    def view(self) -> View:
        return self.membership.view

    def ids(self) -> list[str]:
        return [member.id for member in self.view.members]

    def before(self) -> list[str]:
        return [member.id for member in self.view.before]

    def state(self, id: str) -> str:
        return next(row.state for row in self.membership.rows(self.now) if row.id == id)


def ring(*ids: str) -> Ring:
    """These workers serve, nothing moves, and losses are judged."""
    made = Ring()
    for id in ids:
        made.register(id)
    made.settle(*ids)
    made.passes(LOST_AFTER_S, *ids)
    assert made.before() == []
    return made


def test_each_worker_that_owns_is_an_epoch_and_the_old_places_stay_until_all_settled() -> None:
    r = Ring()
    assert r.register("a") == View(
        1, (Member("a", "http://10.0.0.97:20001", 1.0, "host-a"),), (), 1
    )
    r.register("b")
    assert (r.view.epoch, r.ids(), r.before()) == (2, ["a", "b"], ["a"])
    r.beat("a", settled=2)
    assert r.before() == ["a"], "b has not taken over yet"
    r.beat("b", settled=1)
    assert r.before() == ["a"]
    outcome = r.send(Heartbeat("b", 2, settled=2))
    assert (r.view.epoch, r.before()) == (2, [])
    assert outcome.changed
    assert outcome.save


def test_the_settled_view_of_the_same_epoch_reaches_every_worker_once() -> None:
    r = Ring()
    r.register("a")
    r.register("b")
    assert r.beat("a", epoch=1).view == r.view
    assert r.beat("a").view is None
    r.settle("b", "a")
    assert r.beat("b").view == r.view
    assert r.view.before == ()
    assert r.beat("b").view is None
    assert r.beat("a").view is None, "a was told in the answer that settled it"


def test_a_lost_answer_is_repeated_to_a_worker_that_says_its_version() -> None:
    r = ring("a", "b")
    old = r.view.version
    r.send(Leave("b"))
    assert r.beat("a", version=old).view == r.view
    assert r.beat("a", version=old).view == r.view
    assert r.beat("a", version=r.view.version).view is None


def test_a_late_leave_is_not_about_the_next_process() -> None:
    """A retransmission may take longer than a restart."""
    r = ring("a", "b")
    first = Register("b", "http://10.0.0.98:20001", 1.0, host="host-b", process=1)
    for event in (first, Drain("b"), msgspec.structs.replace(first, process=2)):
        r.send(event)
    r.send(Drain("b", undo=True))
    view = r.view
    assert r.send(Leave("b", process=1)) == Outcome(m.Done())
    assert r.view == view
    assert "b" in {member.id for member in view.members}
    assert r.send(Leave("b", process=2)).changed
    r.send(first)
    r.restart()
    assert r.send(Leave("b", process=3)).changed, "the record has no process"
    r.register("b")
    assert r.send(Leave("b", process=3)).changed, "an earlier version sends none"


def test_a_weight_of_zero_is_no_epoch() -> None:
    r = ring("a")
    view = r.view
    assert r.register("m", weight=0.0) == view
    assert not r.send(Leave("m")).save
    r.register("m", weight=0.0)
    assert r.passes(LOST_AFTER_S + 1, "a") == ["worker m at 10.0.0.109:20001 of a mount is gone"]
    assert r.view == view
    assert [row.id for row in r.membership.rows(r.now)] == ["a"]


def test_a_silent_worker_is_lost_after_ten_seconds_and_has_no_old_places() -> None:
    r = ring("a", "b", "c")
    epoch = r.view.epoch
    assert r.passes(LOST_AFTER_S - 1, "a", "b") == []
    notes = r.passes(2, "a", "b")
    assert notes == ["worker c at 10.0.0.99:20001 is lost: silent for 10.0 s"]
    assert (r.view.epoch, r.ids(), r.before()) == (epoch + 1, ["a", "b"], [])
    assert r.state("c") == "lost"
    assert not r.beat("c").known
    r.register("c")
    assert (r.view.epoch, r.ids(), r.before()) == (epoch + 2, ["a", "b", "c"], ["a", "b"])


def test_a_worker_lost_while_blocks_move_is_waited_for_no_longer() -> None:
    r = ring("a", "b")
    r.register("c")
    assert r.before() == ["a", "b"]
    r.settle("a", "c")
    r.passes(LOST_AFTER_S + 1, "a", "c")
    assert (r.ids(), r.before()) == (["a", "c"], ["a"])
    r.settle("a", "c")
    assert r.before() == []


def test_a_change_while_blocks_move_keeps_the_places_of_the_last_settled_epoch() -> None:
    r = ring("a", "b")
    r.register("c")
    r.register("d")
    assert (r.ids(), r.before()) == (["a", "b", "c", "d"], ["a", "b"])
    r.send(Leave("c"))
    r.send(Leave("d"))
    assert (r.ids(), r.before()) == (["a", "b"], []), "everything is where it was"


def test_the_last_places_that_never_settled_are_told_as_long_as_blocks_move() -> None:
    r = ring("a")
    for id in "bcdef":
        r.register(id)
    found = [[member.id for member in members] for members in r.view.between]
    assert found == [[*"abc"], [*"abcd"], [*"abcde"]], "no more than three, the last one last"
    assert r.before() == ["a"]
    r.send(Leave("c"))
    assert all("c" not in [one.id for one in members] for members in r.view.between)
    r.settle(*"abdef")
    assert (r.before(), r.view.between) == ([], ())
    r.register("c")
    assert r.view.between == (), "the settled ones are `before`"


def test_a_drained_worker_owns_nothing_and_is_asked_until_it_has_handed_over() -> None:
    r = ring("a", "b")
    r.send(Drain("b"))
    assert (r.ids(), r.before(), r.state("b")) == (["a"], ["a", "b"], "draining")
    assert r.beat("b", epoch=1).draining
    r.settle("a")
    assert r.before() == ["a", "b"]
    r.settle("b")
    assert (r.before(), r.state("b")) == ([], "drained")
    assert not r.send(Drain("b")).changed, "idempotent"
    r.send(Drain("b", undo=True))
    assert (r.ids(), r.before(), r.state("b")) == (["a", "b"], ["a"], "serving")
    assert not r.beat("b").draining


def test_a_drain_outlasts_a_restart_of_the_worker_and_of_the_master() -> None:
    r = ring("a", "b")
    r.send(Drain("b"))
    r.send(Leave("b"))
    assert (r.state("b"), r.before()) == ("lost", [])
    r.restart()
    r.register("b")
    assert (r.ids(), r.state("b")) == (["a"], "draining")
    r.beat("b", settled=r.view.epoch)
    assert r.state("b") == "drained"


def test_the_last_worker_can_be_drained() -> None:
    r = ring("a")
    r.send(Drain("a"))
    assert (r.ids(), r.before()) == ([], ["a"])
    r.settle("a")
    assert (r.before(), r.state("a")) == ([], "drained")


def test_only_what_is_lost_can_be_removed() -> None:
    """A drained worker that lives would be back, and serving, with its next heartbeat."""
    r = ring("a", "b")
    with pytest.raises(InUse, match="serving"):
        r.send(RemoveWorker("b"))
    r.send(Drain("b"))
    with pytest.raises(InUse, match="draining"):
        r.send(RemoveWorker("b"))
    r.settle("a", "b")
    with pytest.raises(InUse, match="drained, and its process lives") as refused:
        r.send(RemoveWorker("b"))
    assert refused.value.remedy == "stop its process first"
    r.send(Leave("b"))
    r.send(RemoveWorker("b"))
    assert not r.beat("b").known
    assert [row.id for row in r.membership.rows(r.now)] == ["a"]


def test_workers_are_named_by_id_by_its_start_and_by_address() -> None:
    r = ring("aa1", "ab22", "b3")
    r.send(Drain("aa"))
    assert r.state("aa1") == "draining"
    r.send(Drain("10.0.0.98:20002"))
    assert r.state("b3") == "draining"
    with pytest.raises(BadConfig, match="2 workers"):
        r.send(Drain("a"))
    for unknown in ("zz", ""):
        with pytest.raises(NotFound):
            r.send(Drain(unknown))


def test_another_url_of_a_worker_is_a_new_view_of_the_same_epoch() -> None:
    r = ring("a", "b")
    epoch, version = r.view.epoch, r.view.version
    r.register("b", port=20099)
    assert (r.view.epoch, r.before()) == (epoch, [])
    assert r.view.version > version
    assert [m.url for m in r.view.members] == ["http://10.0.0.97:20001", "http://10.0.0.98:20099"]
    assert r.beat("a").view == r.view


def test_a_copy_of_a_workers_tiers_is_noticed_and_does_not_speak_for_it() -> None:
    """Both processes have the id. The last one that registered is the worker; the other one hears
    of every view, and is the worker again when that one is silent."""
    ring = Ring()
    ring.register("a")
    ring.register("b")
    ring.register("a", port=9)

    def twin_beats(count: int) -> Beaten:
        for _ in range(count):
            event = Heartbeat("a", 0, used_bytes=7, url="http://10.0.0.97:1")
            answer = ring.send(event).answer
            assert isinstance(answer, Beaten)
        return answer

    def row() -> WorkerRow:
        return ring.membership.rows(ring.now)[0]

    assert twin_beats(2).view == ring.view
    assert row().twin_url == "", "heartbeats of a process that ended may arrive late"
    twin_beats(1)
    assert (row().twin_url, row().url, row().used_bytes) == (
        "http://10.0.0.97:1", "http://10.0.0.97:9", 0,
    )  # fmt: skip
    for _ in range(int(LOST_AFTER_S) + 1):
        ring.now += 1.0
        ring.send(Tick())
        ring.beat("b")
        known = twin_beats(1).known
    assert not known, "the worker is lost: its twin registers and takes its place"
    ring.register("a", port=1)
    ring.now += LOST_AFTER_S / 2
    ring.beat("a")
    assert row().twin_url == ""


def test_a_worker_that_moved_after_the_record_registers_again_at_once() -> None:
    """A store was put back: its record has the address of an earlier process of the worker."""
    earlier = ring("a", "b").membership.record()
    r = Ring(Membership(1000.0, decode_record(encode_record(earlier))))
    moved = "http://10.0.0.97:9"
    beat = Heartbeat("a", r.view.epoch, url=moved)
    assert r.send(beat).answer == Beaten(known=False)
    r.register("a", port=9)
    assert moved in [member.url for member in r.view.members]
    for _ in range(5):
        answer = r.send(beat).answer
        assert isinstance(answer, Beaten)
        assert answer.known
    assert [row.twin_url for row in r.membership.rows(r.now)] == ["", ""]


def test_a_new_worker_at_an_address_ends_the_one_that_was_there() -> None:
    r = ring("a", "b")
    new = Register("z", r.view.members[1].url, 1.0, host="host-b")
    elsewhere = msgspec.structs.replace(new, worker="m", weight=0.0, host="another")
    assert not r.send(elsewhere).changed
    r.send(new)
    assert (r.ids(), r.before(), r.state("b")) == (["a", "z"], ["a"], "lost")


def test_a_changed_weight_is_an_epoch_and_the_old_places_keep_the_old_weight() -> None:
    r = ring("a", "b")
    epoch = r.view.epoch
    r.register("b", weight=3.0)
    assert r.view.epoch == epoch + 1
    assert [m.weight for m in r.view.members] == [1.0, 3.0]
    assert [m.weight for m in r.view.before] == [1.0, 1.0]


def test_after_a_restart_all_serve_until_they_were_silent_for_ten_seconds() -> None:
    r = ring("a", "b", "c")
    view = r.view
    r.restart(away_s=500.0)
    assert r.view == view
    r.passes(LOST_AFTER_S - 1, "a", "b")
    assert r.view == view
    r.passes(1, "a", "b")
    assert (r.ids(), r.view.epoch) == (["a", "b"], view.epoch + 1)


def test_a_restart_in_the_middle_of_a_move_goes_on_with_it() -> None:
    r = ring("a", "b")
    r.register("c")
    view = r.view
    r.restart()
    assert r.view == view
    r.settle("a", "b")
    assert r.before() == ["a", "b"]
    r.settle("c")
    assert r.before() == []


def test_a_master_that_stood_still_blames_nobody() -> None:
    r = ring("a", "b")
    view = r.view
    r.now += 60.0
    assert r.send(Tick()).notes == ()
    r.passes(ABSENT_AFTER_S, "a", "b")
    assert r.view == view
    r.passes(LOST_AFTER_S, "a")
    assert r.ids() == ["a"]


def test_a_master_that_hears_nobody_is_cut_off_itself() -> None:
    r = ring("a", "b", "c")
    r.register("m", weight=0.0)
    view = r.view
    notes = r.passes(LOST_AFTER_S * 5)
    assert notes == ["no worker is heard: is the network cut off?"]
    assert r.view == view
    assert {r.state(id) for id in "abcm"} == {"lost"}
    assert r.membership.counts()["lost"] == 4
    r.beat("a")
    assert r.state("b") == "serving", "it has all of its time to be heard"
    r.passes(LOST_AFTER_S - 1, "a", "m")
    assert r.view == view
    r.passes(2, "a", "b", "m")
    assert (r.ids(), r.state("c")) == (["a", "b"], "lost")


def test_where_nobody_is_heard_a_worker_can_be_removed() -> None:
    r = ring("a", "b")
    r.passes(LOST_AFTER_S + 1)
    r.send(RemoveWorker("a"))
    assert r.ids() == ["b"]


def test_how_long_a_worker_may_be_silent_can_be_said() -> None:
    r = Ring(Membership(1000.0, lost_after_s=4.0))
    for id in "ab":
        r.register(id)
    r.settle("a", "b")
    r.passes(4, "a", "b")
    r.passes(3, "a")
    assert r.state("b") == "serving"
    r.passes(1, "a")
    assert (r.ids(), r.state("b")) == (["a"], "lost")


def test_a_lost_worker_is_forgotten_after_a_week() -> None:
    r = ring("a", "b")
    r.passes(LOST_AFTER_S + 1, "a")
    r.now += FORGET_LOST_S
    r.send(Tick())  # stood still
    for _ in range(3):
        r.now += LOST_AFTER_S / 5
        r.beat("a")
        r.send(Tick())
    r.passes(LOST_AFTER_S + 1, "a")
    assert [row.id for row in r.membership.rows(r.now)] == ["a"]


def test_epochs_go_on_above_those_of_a_store_that_was_set_back() -> None:
    r = ring("a", "b")
    answer = r.beat("a", epoch=70)
    assert answer.view is not None
    assert answer.view.epoch == 71
    assert r.beat("b", epoch=2).view == r.view
    beat = Heartbeat("a", 80)
    assert [r.send(beat).set_back, r.send(beat).set_back] == [True, False], "it is told once"


def test_epochs_go_on_above_those_that_a_worker_knows_who_is_not_known_any_more() -> None:
    r = ring("a")
    back = Register("b", "http://10.0.0.9:1", 1.0, "host-b", epoch=70)
    outcome = r.send(back)
    assert outcome.set_back
    assert outcome.save
    assert r.view.epoch > 70
    assert isinstance(outcome.answer, View)
    assert outcome.answer == r.view
    assert [member.id for member in r.view.members] == ["a", "b"]
    assert not r.send(back).set_back
    assert not r.send(msgspec.structs.replace(back, epoch=1 << 60)).set_back, "nonsense"


@pytest.mark.parametrize(
    "bad",
    [
        Register("", "http://h:1", 1.0),
        Register("a", "", 1.0),
        Register("a", "http://h:1", -1.0),
        Register("a", "http://h:1", float("nan")),
        Register("a", "http://h:1", float("inf")),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(bad: Register) -> None:
    r = ring("b")
    record = r.membership.record()
    with pytest.raises(BadConfig):
        r.send(bad)
    assert r.membership.record() == record


def test_a_protocol_too_far_away_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Ring().send(Register("a", "http://h:1", 1.0, protocol=9))


def test_a_damaged_record_is_a_typed_error() -> None:
    with pytest.raises(BadConfig):
        decode_record(b"\xc1")


# ---- histories -----------------------------------------------------------------------------------

IDS = st.sampled_from("abcd")
STEPS = st.one_of(
    st.builds(Register, IDS, IDS.map(lambda i: f"http://{i}:1"), st.sampled_from([0.0, 1.0, 2.0])),
    st.builds(Register, IDS, IDS.map(lambda i: f"http://{i}:2"), st.just(1.0)),
    st.builds(Heartbeat, IDS, st.integers(0, 12), st.integers(0, 12), version=st.integers(-1, 20)),
    st.builds(Leave, IDS),
    st.builds(Drain, IDS, st.booleans()),
    st.builds(RemoveWorker, IDS),
    st.just(Tick()),
    st.just("restart"),
    st.just("all settle"),
    st.sets(IDS),  # only these beat for 11 s
)


class History:
    """Runs steps, and checks after each event what must always hold."""

    def __init__(self) -> None:
        self.now = 0.0
        self.membership = Membership(0.0)
        self.saved = self.membership.record()
        self.epochs: dict[int, list[tuple[str, float]]] = {}
        self.versions: dict[int, View] = {}

    def step(self, step: object) -> None:
        if step == "restart":
            old, self.membership = self.membership.view, Membership(self.now, self.saved)
            assert self.membership.view == old, "what was answered was saved"
        elif step == "all settle":
            self.beat("abcd")
        elif isinstance(step, set | frozenset):
            for _ in range(11):
                self.now += 1.0
                self.beat(sorted(step))
                self.send(Tick())
        else:
            self.send(step)

    def beat(self, ids: Iterable[str]) -> None:
        for id in ids:
            view = self.membership.view
            self.send(Heartbeat(id, view.epoch, view.epoch, version=view.version))

    def send(self, event: object) -> None:
        old = self.membership.view
        try:
            outcome = self.membership.handle(event, self.now)  # type: ignore[arg-type]
        except CacheFSError:
            assert self.membership.view == old
            return
        if outcome.save:
            self.saved = self.membership.record()
        assert outcome.changed == (self.membership.view != old)
        assert outcome.save or not outcome.changed
        self.check(old)

    def check(self, old: View) -> None:
        self.membership.check_invariants()
        view = self.membership.view
        placed = [(member.id, member.weight) for member in view.members]
        assert (view.epoch, view.version) >= (old.epoch, old.version)
        assert self.epochs.setdefault(view.epoch, placed) == placed
        assert self.versions.setdefault(view.version, view) == view
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=View) == view


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.tuples(STEPS, st.sampled_from([0.1, 1.0, 2.5, 11.0])), max_size=60))
def test_an_epoch_has_one_placement_and_neither_number_goes_back(
    steps: list[tuple[object, float]],
) -> None:
    history = History()
    for step, passing_s in steps:
        history.now += passing_s
        history.step(step)
    history.step("all settle")
    history.step("all settle")
    assert history.membership.view.before == (), "moves end when all say so"
