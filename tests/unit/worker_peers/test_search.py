"""One read's way through its sources: whom it asks, and that it ends whatever they do."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cachefs.core.placement import Member, Placement
from tests.services.examples import examples
from worker.fill.source import Purpose
from worker.peers.peer_health import ORIGIN_PAUSE_S, PeerHealth
from worker.peers.source_selection import (
    Action,
    Answer,
    Answered,
    Ask,
    BodyFailed,
    Candidate,
    Close,
    Event,
    Fail,
    Failed,
    GiveUp,
    Refresh,
    Refreshed,
    RequestMode,
    SourceSelection,
    Take,
    Tick,
    Times,
    UseOrigin,
    candidates,
)

KEY = b"k" * 36
TIMES = Times(silence_s=3.0, probe_after_s=1.0, total_s=30.0)
OWNER = Candidate("a", "http://a", RequestMode.FILL)
STAND_IN = Candidate("b", "http://b", RequestMode.NEXT)
REPLICA = Candidate("b", "http://b", RequestMode.FILL)
OLD = Candidate("c", "http://c", RequestMode.HAVE)


def members(count: int) -> list[Member]:
    return [Member(f"m{n}", f"http://m{n}", 1.0) for n in range(count)]


def begun(
    *found: Candidate, peers: PeerHealth | None = None, may_ask_origin: bool = True
) -> tuple[SourceSelection, list[Action]]:
    known = peers or PeerHealth()
    search = SourceSelection(known, KEY, found, TIMES, may_ask_origin=may_ask_origin)
    return search, search.handle(Tick(), 0.0)


# ---- whom ----


def test_a_reader_asks_the_owner_then_the_next_in_rank() -> None:
    now, none = Placement(members(4)), Placement([])
    ranked = [member.id for member in now.owners(7, 0, 4)]
    found = candidates(now, none, ranked[3], 7, 0)
    assert [(one.peer, one.way) for one in found] == [
        (ranked[0], RequestMode.FILL),
        (ranked[1], RequestMode.NEXT),
    ]
    found = candidates(now, none, ranked[1], 7, 0)
    assert [(one.peer, one.way) for one in found] == [(ranked[0], RequestMode.FILL)], (
        "it stands in itself"
    )
    assert candidates(now, none, ranked[0], 7, 0) == [], "the owner reads the origin"
    found = candidates(now, none, "without weight", 7, 0)
    assert [one.peer for one in found] == ranked[:2]
    assert candidates(none, none, ranked[0], 7, 0) == []


def test_with_replicas_the_first_owner_brings_it() -> None:
    now, none = Placement(members(4)), Placement([])
    ranked = [member.id for member in now.owners(7, 0, 4)]

    def ways(me: str) -> list[tuple[str, RequestMode]]:
        found = candidates(now, none, me, 7, 0, replicas=2)
        return [(one.peer, one.way) for one in found]

    assert ways(ranked[0]) == [(ranked[1], RequestMode.HAVE)]
    assert ways(ranked[1]) == [(ranked[0], RequestMode.FILL)]
    assert ways(ranked[2]) == [(ranked[0], RequestMode.FILL), (ranked[1], RequestMode.FILL)]
    assert ways(ranked[3]) == [*ways(ranked[2]), (ranked[2], RequestMode.NEXT)]


@given(
    st.integers(1, 6), st.integers(0, 6), st.integers(1, 3), st.sampled_from(Purpose),
    st.integers(1, 1000), st.integers(0, 6),
)  # fmt: skip
def test_nobody_who_serves_waits_for_another(
    count: int, before: int, replicas: int, purpose: Purpose, ino: int, me: int
) -> None:
    """Those who are asked to bring something ask only for what is there."""
    now, old = Placement(members(count)), Placement(members(before))
    mine = f"m{me}"
    found = candidates(now, old, mine, ino, 0, purpose=purpose, replicas=replicas)
    assert mine not in {one.peer for one in found}
    filling = [one for one in found if one.way is not RequestMode.HAVE]
    rank = next((n for n, m in enumerate(now.owners(ino, 0, count)) if m.id == mine), count)
    order = [member.id for member in now.owners(ino, 0, count)]
    if purpose is Purpose.CUT_OFF:
        asked = [one.peer for one in filling]
        assert asked == [one for one in order[: replicas + 1] if one != mine], "nobody waits for it"
    else:
        assert not filling or (purpose is Purpose.READ and rank > 0)
        assert all(order.index(one.peer) < rank for one in filling), "only those before it in rank"
    have = {one.peer for one in found} | {mine}
    everyone = {m.id for m in (*now.owners(ino, 0, replicas), *old.owners(ino, 0, replicas))}
    assert everyone <= have, "somebody who may have it is not asked"


def test_an_owner_that_is_cut_off_asks_all_others() -> None:
    now, none = Placement(members(4)), Placement([])
    ranked = [member.id for member in now.owners(7, 0, 4)]

    def ways(me: str, replicas: int) -> list[tuple[str, RequestMode]]:
        cut = Purpose.CUT_OFF
        found = candidates(now, none, me, 7, 0, purpose=cut, replicas=replicas)
        return [(one.peer, one.way) for one in found]

    fill, stands_in = RequestMode.FILL, RequestMode.NEXT
    assert ways(ranked[0], 1) == [(ranked[1], stands_in)]
    assert ways(ranked[0], 2) == [(ranked[1], fill), (ranked[2], stands_in)]
    assert ways(ranked[1], 2) == [(ranked[0], fill), (ranked[2], stands_in)]
    assert ways(ranked[2], 2) == [(ranked[0], fill), (ranked[1], fill)], "it has another view now"
    alone = Placement(members(1))
    assert candidates(alone, none, "m0", 7, 0, purpose=Purpose.CUT_OFF) == []


# ---- when ----


def test_an_answer_is_taken() -> None:
    search, actions = begun(OWNER, STAND_IN)
    assert actions == [Ask(OWNER)]
    assert search.handle(Answered(OWNER, Answer.HAS), 0.1) == [Take(OWNER)]


def test_one_that_fails_is_followed_by_the_next_then_by_the_origin() -> None:
    search, _ = begun(OWNER, STAND_IN, OLD)
    assert search.handle(Failed(OWNER), 0.1) == [Refresh()]
    assert search.handle(Refreshed([OWNER, STAND_IN, OLD]), 0.1) == [Ask(STAND_IN)]
    assert search.handle(Answered(STAND_IN, Answer.HAS_NOT), 0.2) == [Ask(OLD)]
    assert search.handle(Answered(OLD, Answer.HAS_NOT), 0.3) == [UseOrigin()]


def test_one_that_is_elsewhere_by_now_is_asked_there() -> None:
    """The view that told of it there forgot what was known of it."""
    peers = PeerHealth()
    search, _ = begun(OWNER, STAND_IN, peers=peers)
    assert search.handle(Failed(OWNER), 0.1) == [Refresh()]
    moved = OWNER._replace(url="http://elsewhere")
    peers.keep(())
    assert search.handle(Refreshed([moved, STAND_IN]), 0.1) == [Ask(moved)]


def test_who_failed_is_not_asked_by_the_next_search() -> None:
    peers = PeerHealth()
    search, _ = begun(OWNER, STAND_IN, peers=peers)
    search.handle(Failed(OWNER), 0.1)
    _, actions = begun(OWNER, STAND_IN, peers=peers)
    assert actions == [Ask(STAND_IN)]


def test_a_migration_gives_up_where_a_read_asks_the_origin() -> None:
    search, _ = begun(OLD, may_ask_origin=False)
    assert search.handle(Answered(OLD, Answer.HAS_NOT), 0.1) == [GiveUp()]


def test_an_owner_that_is_cut_off_is_followed_by_the_next_in_rank() -> None:
    """As if it did not reply; but it lives, and is asked again by the next read."""
    peers = PeerHealth()
    search, _ = begun(OWNER, STAND_IN, peers=peers)
    assert search.handle(Answered(OWNER, Answer.CUT_OFF), 5.5) == [Ask(STAND_IN)]
    assert search.handle(Answered(STAND_IN, Answer.CUT_OFF), 5.6) == [UseOrigin()]
    assert begun(OWNER, peers=peers)[1] == [Ask(OWNER)]


def test_an_owner_that_says_late_that_it_is_cut_off_is_followed_by_the_origin() -> None:
    search, _ = begun(OWNER, STAND_IN)
    assert search.handle(Answered(OWNER, Answer.CUT_OFF), 20.0) == [UseOrigin()]


def test_the_probe_of_an_owner_that_is_cut_off_ends_with_it() -> None:
    search, _ = begun(OWNER, STAND_IN)
    probe = OWNER._replace(way=RequestMode.HAVE)
    search.handle(Tick(), 0.25)  # nobody to hedge with
    assert search.handle(Tick(), search.wake_at_s) == [Ask(probe)]
    assert search.handle(Answered(OWNER, Answer.CUT_OFF), 1.1) == [Close(probe), Ask(STAND_IN)]


def test_what_the_origin_replied_to_the_owner_is_the_end_for_all() -> None:
    """No other worker asks the origin: it would hear the same."""
    search, _ = begun(OWNER, REPLICA, STAND_IN)
    assert search.handle(Answered(OWNER, Answer.REFUSED), 0.1) == [Fail()]


def test_what_the_origin_no_longer_has_is_read_where_it_is_cached() -> None:
    search, _ = begun(OWNER, STAND_IN, OLD)
    assert search.handle(Answered(OWNER, Answer.REFUSED), 0.1) == [Ask(OLD)]
    assert search.handle(Answered(OLD, Answer.HAS), 0.2) == [Take(OLD)]
    search, _ = begun(OWNER, OLD)
    search.handle(Answered(OWNER, Answer.REFUSED), 0.1)
    assert search.handle(Failed(OLD), 0.2) == [Refresh()]
    assert search.handle(Refreshed([OWNER, STAND_IN]), 0.3) == [Fail()], "nobody fills it"


def test_who_waited_in_vain_for_the_origin_is_asked_for_what_it_has_for_a_while() -> None:
    """Its way there may be broken, and that of others not."""
    peers, have = PeerHealth(), OWNER._replace(way=RequestMode.HAVE)
    searches = [begun(OWNER, STAND_IN, peers=peers)[0] for _ in range(3)]
    for search in searches:  # asked together, they fail together: that counts once
        assert search.handle(Answered(OWNER, Answer.CUT_OFF), 20.0) == [UseOrigin()]
    paused_s = 20.0
    for pause_s in (ORIGIN_PAUSE_S, 2 * ORIGIN_PAUSE_S, 4 * ORIGIN_PAUSE_S):
        search = SourceSelection(peers, KEY, [OWNER, STAND_IN], TIMES)
        assert search.handle(Tick(), paused_s + pause_s - 1) == [Ask(have)]
        assert search.handle(Answered(have, Answer.HAS_NOT), paused_s + pause_s) == [Ask(STAND_IN)]
        one, other = (SourceSelection(peers, KEY, [OWNER, STAND_IN], TIMES) for _ in range(2))
        assert one.handle(Tick(), paused_s + pause_s) == [Ask(OWNER)], "one tries it"
        assert other.handle(Tick(), paused_s + pause_s) == [Ask(have)]
        paused_s += pause_s + 20.0
        one.handle(Answered(OWNER, Answer.CUT_OFF), paused_s)
    search = SourceSelection(peers, KEY, [OWNER], TIMES)
    assert search.handle(Tick(), paused_s + 1000) == [Ask(OWNER)]
    search.handle(Answered(OWNER, Answer.HAS, at_once=False), paused_s + 1001)
    search = SourceSelection(peers, KEY, [OWNER], TIMES)
    assert search.handle(Tick(), paused_s + 1001) == [Ask(OWNER)], "it brings things again"


def test_another_view_is_got_once() -> None:
    search, _ = begun(OWNER, STAND_IN)
    assert search.handle(Answered(OWNER, Answer.NOT_OWNER), 0.1) == [Refresh()]
    other = OWNER._replace(peer="z")
    assert search.handle(Refreshed([other]), 0.2) == [Ask(other)]
    assert search.handle(Answered(other, Answer.NOT_OWNER), 0.3) == [UseOrigin()]


def test_a_slow_replica_is_hedged_by_another_and_never_by_the_origin() -> None:
    search, _ = begun(OWNER, REPLICA)
    hedge = REPLICA._replace(way=RequestMode.HAVE)
    assert search.wake_at_s < TIMES.probe_after_s
    assert search.handle(Tick(), search.wake_at_s) == [Ask(hedge)]
    assert search.handle(Answered(hedge, Answer.HAS_NOT), 0.5) == []
    assert search.handle(Failed(OWNER), 0.6) == [Refresh()]
    found = [OWNER, REPLICA]
    assert search.handle(Refreshed(found), 0.6) == [Ask(REPLICA)], "it brings what it has not"
    search, _ = begun(OWNER, REPLICA)
    search.handle(Tick(), search.wake_at_s)
    assert search.handle(Answered(hedge, Answer.HAS), 0.5) == [Close(OWNER), Take(hedge)]


def test_nobody_is_hedged_by_who_would_stand_in() -> None:
    search, _ = begun(OWNER, STAND_IN)
    assert search.handle(Tick(), search.wake_at_s) == []


def test_an_owner_that_lives_may_take_its_time() -> None:
    search, _ = begun(OWNER, STAND_IN)
    probe = OWNER._replace(way=RequestMode.HAVE)
    now = 0.0
    for _ in range(10):
        search.handle(Tick(), now := max(now, search.wake_at_s))
        if now < TIMES.probe_after_s:
            continue
        assert search.handle(Answered(probe, Answer.HAS_NOT), now + 0.01) == []
        search.check_invariants()
    assert now > 5
    assert search.handle(Answered(OWNER, Answer.HAS, at_once=False), now) == [Take(OWNER)]


def test_an_owner_that_is_stopped_is_given_up() -> None:
    """It takes connections and says nothing."""
    search, _ = begun(OWNER, STAND_IN)
    probe = OWNER._replace(way=RequestMode.HAVE)
    actions: list[Action] = []
    while Ask(probe) not in actions:
        actions = search.handle(Tick(), search.wake_at_s)
    actions = search.handle(Tick(), search.wake_at_s)
    assert {Close(probe), Close(OWNER)} <= set(actions)
    assert actions[-1] == Refresh()
    actions = search.handle(Refreshed([OWNER, STAND_IN]), search.wake_at_s)
    assert actions == [Ask(STAND_IN)]


def test_what_an_owner_has_meanwhile_is_taken_from_its_second_answer() -> None:
    search, _ = begun(OWNER)
    probe = OWNER._replace(way=RequestMode.HAVE)
    while Ask(probe) not in search.handle(Tick(), now := search.wake_at_s):
        pass
    assert search.handle(Answered(probe, Answer.HAS), now) == [Close(OWNER), Take(probe)]


def test_a_body_that_breaks_off_is_gone_on_with_elsewhere() -> None:
    search, _ = begun(OWNER, OLD)
    search.handle(Answered(OWNER, Answer.HAS), 0.1)
    assert search.handle(BodyFailed(), 0.2) == [Ask(OLD)]
    search.handle(Answered(OLD, Answer.HAS), 0.3)
    assert search.handle(BodyFailed(wrong=True), 0.4) == [UseOrigin()]


def test_who_gave_wrong_bytes_is_asked_for_others() -> None:
    peers = PeerHealth()
    search, _ = begun(OWNER, peers=peers)
    search.handle(Answered(OWNER, Answer.HAS), 0.1)
    search.handle(BodyFailed(wrong=True), 0.2)
    assert not peers.take("a", KEY, 1.0)
    assert peers.take("a", b"other", 1.0)
    assert peers.take("a", KEY, 100.0), "not for ever"


# ---- health ----


def test_a_failed_peer_is_tried_again_by_one_at_a_time() -> None:
    peers = PeerHealth()
    peers.failed("a", 0.0)
    assert not peers.take("a", KEY, 0.1)
    assert peers.take("a", KEY, 0.6)
    assert not peers.take("a", KEY, 0.7), "somebody is trying"
    peers.answered("a")
    assert peers.take("a", KEY, 0.8)
    for _ in range(20):
        peers.failed("a", 1.0)
    assert peers.take("a", KEY, 12.0), "it is never avoided for long"


def test_hedges_wait_as_long_as_the_peer_usually_takes() -> None:
    peers = PeerHealth()
    for _ in range(50):
        peers.answered("a", 0.05)
        peers.answered("b", 10.0)
        peers.answered("c", 1e-6)
    assert 0.15 < peers.hedge_after_s("a", 0.0) < 0.25
    assert peers.hedge_after_s("b", 0.0) == 1.0
    assert peers.hedge_after_s("c", 0.0) == 0.02
    peers.keep({"b"})
    assert peers.hedge_after_s("a", 0.0) == peers.hedge_after_s("never seen", 0.0)


# ---- whatever happens ----


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_every_search_ends_in_time(data: st.DataObject) -> None:
    """Peers answer anything, or nothing at all; bodies break. The search ends with a body that was
    read, the origin, or nothing; nobody is waited for longer than its time."""
    ways = st.sampled_from(RequestMode)
    drawn = data.draw(st.lists(st.tuples(st.sampled_from("abcde"), ways), max_size=6, unique=True))
    found = [Candidate(peer, f"http://{peer}", way) for peer, way in drawn]
    search = SourceSelection(
        PeerHealth(), KEY, found, TIMES, may_ask_origin=data.draw(st.booleans())
    )
    asked: dict[Candidate, float] = {}
    now, event = 0.0, Tick()
    pending: list[Event] = [event]
    refreshes = 0
    while pending:
        actions = search.handle(pending.pop(0), now)
        search.check_invariants()
        for action in actions:
            match action:
                case Ask(candidate):
                    assert candidate not in asked
                    asked[candidate] = now
                case Close(candidate):
                    del asked[candidate]
                case Refresh():
                    assert (refreshes := refreshes + 1) == 1
                    pending.append(Refreshed(found))
                case Take():
                    assert not asked, "somebody is left behind"
                    if data.draw(st.booleans()):
                        return
                    pending.append(BodyFailed(wrong=data.draw(st.booleans())))
                case UseOrigin() | GiveUp() | Fail():
                    assert not asked
                    return
        if pending:
            continue
        assert now <= (len(found) * 2 + 2) * (TIMES.total_s + TIMES.silence_s), (
            "it goes on for ever"
        )
        choice = data.draw(st.sampled_from(["tick", "fail", *Answer]))
        if choice == "tick" or not asked:
            now = max(now, search.wake_at_s)
            pending.append(Tick())
            continue
        candidate = data.draw(st.sampled_from(sorted(asked, key=str)))
        del asked[candidate]
        pending.append(
            Failed(candidate) if choice == "fail" else Answered(candidate, Answer(choice))
        )
    raise AssertionError("it stopped without a result")


def test_a_failing_peer_is_news_once() -> None:
    peers = PeerHealth()
    for now in (0.0, 1.0):
        peers.failed("a", now)
    assert peers.take_new_failures() == ["a"]
    assert peers.take_new_failures() == []
    peers.answered("a")
    peers.failed("a", 2.0)
    assert (peers.take_new_failures(), peers.failures) == (["a"], 3)


def test_who_was_outrun_by_its_hedge_is_hedged_at_once_for_a_while() -> None:
    peers = PeerHealth()
    search, _ = begun(OWNER, REPLICA, peers=peers)
    hedged_s = search.wake_at_s
    hedge = REPLICA._replace(way=RequestMode.HAVE)
    search.handle(Tick(), hedged_s)
    search.handle(Answered(hedge, Answer.HAS), hedged_s)
    again, _ = begun(OWNER, REPLICA, peers=peers)
    assert again.wake_at_s == 0.02 < hedged_s
    assert peers.hedge_after_s("a", hedged_s + 6.0) == hedged_s, "no longer"
    peers.outrun("a", 0.0)
    peers.answered("a", 0.001)
    assert peers.hedge_after_s("a", 1.0) == 0.02, "by what it takes now"
