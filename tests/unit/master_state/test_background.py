"""When sources are walked in the background: intervals, requests, errors, restarts, limits. Then
random events, against what the plan promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from master.state.background import (
    JITTER,
    MAX_RETRY_S,
    MOST_AT_ONCE,
    RETRY_S,
    Action,
    BackgroundPlan,
    Ended,
    Event,
    Forget,
    Requested,
    Rules,
    Save,
    SourceId,
    Start,
    Stop,
    Target,
    Walked,
    placed,
)
from master.state.listing_rate import ListingRate
from tests.services.examples import examples

HOUR_S = 3600.0
NOW = 1_700_000_000.0
A, B, C = SourceId(2, "s3://a"), SourceId(3, "s3://b"), SourceId(4, "s3://c")


class Plan:
    """A plan, its clock, and what is durable."""

    def __init__(self, *, chance: float = 0.0) -> None:
        self.now = NOW
        self.saved: dict[Target, Walked] = {}
        self.chance = chance
        self.restart()

    def restart(self) -> None:
        self.plan = BackgroundPlan(self.saved.items(), lambda: self.chance)

    def handle(self, event: Event | None = None, after_s: float = 0.0) -> list[Action]:
        """Returns the actions but for writes, which are done."""
        self.now += after_s
        actions = self.plan.handle(event, self.now)
        self.plan.check_invariants()
        for action in actions:
            if isinstance(action, Save):
                self.saved[action.target] = action.walked
            elif isinstance(action, Forget):
                del self.saved[action.target]
        return [action for action in actions if not isinstance(action, Save | Forget)]

    def rules(self, *rules: tuple[SourceId, bytes], interval_s: float = HOUR_S) -> list[Action]:
        found: dict[SourceId, dict[bytes, float]] = {A: {}, B: {}, C: {}}
        for source, path in rules:
            found[source][path] = interval_s
        return self.handle(Rules(found))

    def ended(self, target: Target, after_s: float = 0.0, *, complete: bool = True) -> list[Action]:
        return self.handle(Ended(target, complete), after_s)


def walks(it: Plan, span_s: float, is_complete: Callable[[Target], bool]) -> list[Target]:
    """Returns the targets that are walked within a span of time; each walk ends at once."""
    until, seen = it.now + span_s, list[Target]()
    while it.now < until:
        actions = it.handle(None, 1.0)
        while actions:
            (action,) = actions
            assert isinstance(action, Start)
            seen.append(action.target)
            actions = it.ended(action.target, complete=is_complete(action.target))
    return seen


RULE = Target(A, b"a")
WHOLE = Target(A, None)


def test_a_rule_is_walked_once_an_interval_from_begin_to_begin() -> None:
    it = Plan()
    assert it.rules((A, b"a")) == [Start(RULE)]
    assert it.ended(RULE, 600.0) == []
    assert it.plan.last_at(A) == NOW
    assert it.plan.next_at(A) == NOW + HOUR_S
    assert it.handle(None, HOUR_S - 601.0) == []
    assert it.handle(None, 1.0) == [Start(RULE)]
    assert it.ended(RULE, 2 * HOUR_S) == [Start(RULE)], "a walk longer than the interval"


def test_jitter_only_makes_a_walk_earlier() -> None:
    it = Plan(chance=0.999)
    assert it.rules((A, b"a")) == []
    assert it.handle(None, HOUR_S * JITTER) == [Start(RULE)]
    began_at = it.now
    it.ended(RULE)
    assert began_at + (1 - JITTER) * HOUR_S <= it.plan.next_at(A) < began_at + HOUR_S


def test_a_restart_neither_forgets_nor_begins_again_at_once() -> None:
    it = Plan()
    it.rules((A, b"a"))
    it.ended(RULE, 10.0)
    it.restart()
    assert it.rules((A, b"a")) == []
    assert it.plan.last_at(A) == NOW
    assert it.handle(None, HOUR_S) == [Start(RULE)]
    it.restart()
    assert it.rules((A, b"a")) == [Start(RULE)], "an interrupted walk begins again"


def test_errors_are_followed_by_growing_pauses_up_to_an_hour() -> None:
    it = Plan()
    it.rules((A, b"a"), interval_s=60.0)
    waits = []
    for _ in range(12):
        assert it.ended(RULE, complete=False) == []
        waits.append(it.plan.next_at(A) - it.now)
        assert it.handle(None, waits[-1]) == [Start(RULE)]
    assert waits[:4] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S]
    assert waits[-1] == MAX_RETRY_S
    assert not it.saved
    assert it.ended(RULE) == []
    assert it.plan.next_at(A) == it.now + 60.0


def test_pauses_grow_to_the_interval_if_that_is_longer() -> None:
    it = Plan()
    it.rules((A, b"a"), interval_s=24 * HOUR_S)
    for _ in range(40):
        it.ended(RULE, complete=False)
        it.handle(None, it.plan.next_at(A) - it.now)
    it.ended(RULE, complete=False)
    assert it.plan.next_at(A) == it.now + 24 * HOUR_S


def test_a_rule_with_errors_keeps_no_other_rule_of_its_source_from_its_walks() -> None:
    it = Plan()
    other = Target(A, b"other")
    assert it.rules((A, b"a"), (A, b"other"), interval_s=60.0) == [Start(RULE)]
    assert it.ended(RULE, complete=False) == []
    assert it.handle(None, RETRY_S) == [Start(other)], "the pause may be that of the source"
    assert it.ended(other) == [Start(RULE)]
    assert it.ended(RULE, complete=False) == []
    seen = walks(it, HOUR_S, lambda target: target == other)
    assert seen.count(other) >= 45, "about one a minute"
    assert 3 <= seen.count(RULE) <= 9, "its pauses grow"


def test_a_walk_ends_with_its_rule_and_with_its_source() -> None:
    for gone in (Rules({A: {}}), Rules({})):
        it = Plan()
        it.rules((A, b"a"))
        assert it.handle(gone) == [Stop(RULE)]
        assert it.handle(gone) == [], "once"
        assert it.ended(RULE, complete=False) == []
        assert it.plan.next_at(A) == 0.0
        assert not it.saved


def test_a_stopped_walk_is_no_failure_of_the_same_rule_set_again() -> None:
    it = Plan()
    it.rules((A, b"a"))
    it.rules()
    assert it.rules((A, b"a")) == [], "the former one has not ended yet"
    assert it.ended(RULE, complete=False) == [Start(RULE)]


def test_what_is_saved_of_removed_rules_and_sources_is_deleted() -> None:
    it = Plan()
    it.rules((A, b"a"), (B, b"b"))
    for target in (RULE, Target(B, b"b")):
        it.ended(target)
    it.restart()
    it.handle(Rules({A: {b"a": HOUR_S}}))
    assert [*it.saved] == [RULE]
    other = SourceId(A.root, "s3://another")
    assert it.handle(Rules({other: {b"a": HOUR_S}})) == [Start(Target(other, b"a"))]
    assert not it.saved, "another source at the same root is walked from the beginning"


def test_one_walk_a_source_and_a_limit_for_all() -> None:
    it = Plan()
    assert it.rules((A, b"a"), (A, b"a/x"), (B, b"b"), (C, b"c")) == [
        Start(RULE),
        Start(Target(B, b"b")),
    ]
    assert MOST_AT_ONCE == 2
    assert it.ended(Target(B, b"b")) in ([Start(Target(C, b"c"))],)
    assert it.ended(RULE) == [Start(Target(A, b"a/x"))]


# ---- requests ------------------------------------------------------------------------------------


def test_requests_are_one_until_their_walk_begins_and_one_more_while_it_runs() -> None:
    it = Plan()
    assert it.rules() == []
    assert it.handle(Requested(A)) == [Start(WHOLE)]
    assert it.handle(Requested(A)) == []
    assert it.handle(Requested(A)) == []
    assert it.ended(WHOLE) == [Start(WHOLE)]
    assert it.ended(WHOLE) == []
    assert it.handle(None, 10 * HOUR_S) == []


def test_a_request_follows_the_walk_of_a_rule_and_counts_as_one() -> None:
    it = Plan()
    it.rules((A, b"a"))
    assert it.handle(Requested(A), 100.0) == []
    assert it.ended(RULE) == [Start(WHOLE)]
    assert it.ended(WHOLE, 50.0) == []
    assert it.saved[RULE] == Walked(NOW + 100.0, NOW + 150.0)
    assert it.plan.next_at(A) == NOW + 100.0 + HOUR_S


def test_a_request_outlives_restarts_and_errors() -> None:
    it = Plan()
    it.rules()
    it.handle(Requested(A))
    it.restart()
    assert it.rules() == [Start(WHOLE)]
    assert it.ended(WHOLE, complete=False) == []
    assert it.handle(None, RETRY_S) == [Start(WHOLE)]
    it.ended(WHOLE, 5.0)
    it.restart()
    assert it.rules() == []
    assert it.plan.last_at(A) == NOW + RETRY_S


def test_a_request_whose_walk_has_errors_keeps_no_rule_from_its_walks() -> None:
    it = Plan()
    it.rules((A, b"a"), interval_s=60.0)
    it.ended(RULE)
    assert it.handle(Requested(A)) == [Start(WHOLE)]
    assert it.ended(WHOLE, complete=False) == []
    seen = walks(it, HOUR_S, lambda target: target == RULE)
    assert seen.count(RULE) >= 45
    assert 3 <= seen.count(WHOLE) <= 9
    assert it.saved[WHOLE].requested, "it is still owed"


def test_a_request_for_what_is_no_source_is_none() -> None:
    it = Plan()
    assert it.handle(Requested(A)) == []
    assert not it.saved


# ---- clocks, rates, places -----------------------------------------------------------------------


def test_a_clock_that_is_set_back_delays_a_walk_by_an_interval_at_most() -> None:
    it = Plan()
    it.rules((A, b"a"))
    it.ended(RULE)
    it.handle(None, -1000 * HOUR_S)
    assert it.plan.next_at(A) <= it.now + HOUR_S
    it.restart()
    it.rules((A, b"a"))
    assert it.plan.next_at(A) <= it.now + HOUR_S


def test_listings_are_evenly_spaced() -> None:
    rate = ListingRate(4.0)
    assert rate.wait_s(100.0) == 0.0
    for wait_s in (0.25, 0.5, 0.75):
        rate.take(100.0)
        assert rate.wait_s(100.0) == wait_s
    assert rate.wait_s(200.0) == 0.0


def test_a_rule_belongs_to_the_innermost_source_and_stays_out_of_others() -> None:
    sources = {b"": A, b"b": B, b"d/c": C}
    own = {b"": HOUR_S, b"b/x": 0.0, b"b/x/y": 60.0, b"d": 120.0}
    inherited: Mapping[bytes, float] = {b"": HOUR_S, b"b": HOUR_S, b"d/c": 120.0}
    found = placed(sources, own, lambda path: inherited[path])
    assert found.rules == {
        A: {b"": HOUR_S, b"d": 120.0},
        B: {b"b": HOUR_S, b"b/x/y": 60.0},
        C: {b"d/c": 120.0},
    }
    assert found.starts == {b"", b"b", b"d/c", b"b/x", b"b/x/y", b"d"}
    assert placed({b"m": A}, {b"": 60.0}, lambda path: 0.0).rules == {A: {}}, "no source is at /"


# ---- random events -------------------------------------------------------------------------------

SOURCES = st.sampled_from([A, B, C])
PATHS = st.sampled_from([b"p", b"p/q"])
INTERVALS = st.sampled_from([10.0, 600.0, 7200.0])


class Histories(RuleBasedStateMachine):
    """What holds in every history: each walk that is due runs, none runs without a reason, and
    every request is followed by a whole walk that began after it."""

    @initialize(chance=st.floats(0.0, 0.99))
    def begin(self, chance: float) -> None:
        self.it = Plan(chance=chance)
        self.present: dict[SourceId, dict[bytes, float]] = {}
        self.step = 0
        self.running: dict[Target, int] = {}  # the step in which each began
        self.owed: dict[SourceId, int] = {}  # the step of the last request

    def do(self, event: Event | None, after_s: float = 0.0) -> None:
        self.step += 1
        if isinstance(event, Requested) and event.source in self.present:
            self.owed[event.source] = self.step
        for action in self.it.handle(event, after_s):
            if isinstance(action, Start):
                assert action.target not in self.running
                assert action.target.source in self.present
                path = action.target.path
                assert path is None or path in self.present[action.target.source]
                assert path is not None or action.target.source in self.owed
                self.running[action.target] = self.step
            else:
                assert isinstance(action, Stop)
                assert action.target in self.running

    def now_rules(self) -> Rules:
        return Rules({source: {**rules} for source, rules in self.present.items()})

    @rule(source=SOURCES, path=PATHS, interval_s=INTERVALS)
    def sets(self, source: SourceId, path: bytes, interval_s: float) -> None:
        self.present.setdefault(source, {})[path] = interval_s
        self.do(self.now_rules())

    @rule(source=SOURCES, path=PATHS)
    def unsets(self, source: SourceId, path: bytes) -> None:
        self.present.get(source, {}).pop(path, None)
        self.do(self.now_rules())

    @rule(source=SOURCES)
    def removes(self, source: SourceId) -> None:
        self.present.pop(source, None)
        self.owed.pop(source, None)
        self.do(self.now_rules())

    @rule(source=SOURCES)
    def requests(self, source: SourceId) -> None:
        self.do(Requested(source))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), complete=st.booleans(), after_s=st.floats(0.1, 100.0))
    def ends(self, data: st.DataObject, complete: bool, after_s: float) -> None:
        target = data.draw(st.sampled_from(sorted(self.running, key=repr)))
        self.end(target, after_s, complete=complete)

    def end(self, target: Target, after_s: float, *, complete: bool) -> None:
        began = self.running.pop(target)
        if complete and target.path is None and began >= self.owed.get(target.source, 0):
            self.owed.pop(target.source, None)
        self.do(Ended(target, complete), after_s)

    @rule(after_s=st.floats(0.1, 10_000.0))
    def waits(self, after_s: float) -> None:
        self.do(None, after_s)

    @rule()
    def restarts(self) -> None:
        self.running.clear()
        self.it.restart()
        self.do(self.now_rules())

    @invariant()
    def what_is_due_runs(self) -> None:
        busy = {target.source for target in self.running}
        for source, rules in self.present.items():
            due_at = self.it.plan.next_at(source)
            assert (due_at > 0.0) >= bool(rules), "every rule has a next walk"
            if due_at and due_at <= self.it.now and source not in busy:
                assert len(self.running) == MOST_AT_ONCE

    def teardown(self) -> None:
        """In the end, with an origin that answers, every request is met."""
        for _ in range(40):
            for target in [*self.running]:
                self.end(target, 0.1, complete=True)
            self.do(None, MAX_RETRY_S * 2 + 7200.0)
        assert not self.owed
        for source, rules in self.present.items():
            for path in rules:
                assert self.it.saved[Target(source, path)].began_at > 0


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(60), stateful_step_count=40)
