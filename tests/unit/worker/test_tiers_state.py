"""Where contents go among tiers, and when they move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.cache.tier_choice import (
    MOST_COUNTED,
    PROMOTE_USES,
    PROMOTE_WINDOW_S,
    REST_S,
    Held,
    Moved,
    Promote,
    Promotions,
    Room,
    Used,
    choose,
    excess,
    place,
)


def room(
    free: int,
    limit: int = 100,
    *,
    makes: bool = False,
    writable: bool = True,
    in_service: bool = True,
) -> Room:
    return Room(in_service, writable and in_service, limit, free, lambda _: makes)


ROOMS = st.lists(
    st.builds(
        room,
        st.integers(-10, 100),
        st.integers(1, 100),
        makes=st.booleans(),
        writable=st.booleans(),
        in_service=st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def test_a_new_content_goes_to_the_first_tier_with_room() -> None:
    assert place(10, [room(10), room(90)]) == 0
    assert place(11, [room(10), room(90)]) == 1
    assert place(10, [room(10, writable=False), room(90)]) == 1


def test_without_room_the_last_tier_that_may_makes_some() -> None:
    assert place(10, [room(1, makes=True), room(2, makes=True), room(3)]) == 1
    assert place(50, [room(1, limit=60, makes=True), room(2, limit=40, makes=True)]) == 0


def test_what_fits_nowhere_goes_where_most_of_it_fits() -> None:
    assert place(1000, [room(1), room(30), room(3)]) == 1
    assert place(10, [room(50, in_service=False), room(50, writable=False)]) == 1
    assert place(10, [room(50, in_service=False), room(50, in_service=False)]) == 0


@given(st.integers(0, 120), ROOMS)
def test_a_place_is_always_the_best_there_is(size: int, rooms: list[Room]) -> None:
    chosen = rooms[number := place(size, rooms)]
    fitting = [n for n, one in enumerate(rooms) if one.writable and size <= one.free_bytes]
    if fitting:
        assert number == fitting[0]
    elif any(one.takes(size) for one in rooms):
        assert chosen.takes(size)
    elif any(one.writable for one in rooms):
        assert chosen.writable
    elif any(one.in_service for one in rooms):
        assert chosen.in_service


def test_a_complete_copy_serves_and_the_fastest_of_two() -> None:
    partial = Held(0, complete=False, cached_bytes=90, takes_more=True)
    assert choose([partial, Held(1, True, 100, False), Held(2, True, 100, False)]) == 1


def test_a_partial_copy_serves_if_it_can_grow() -> None:
    assert choose([Held(0, False, 10, True), Held(1, False, 90, True)]) == 1
    assert choose([Held(1, False, 90, False)]) is None
    assert choose([]) is None


def uses(promotions: Promotions, key: bytes, times: list[float]) -> list[Promote]:
    return [action for now in times for action in promotions.handle(Used(key, 1), now)]


def test_enough_uses_within_the_window_promote_once() -> None:
    promotions = Promotions()
    times = [float(n) for n in range(PROMOTE_USES)]
    assert uses(promotions, b"a", times) == [Promote(b"a", 1)]
    assert uses(promotions, b"a", times) == [], "it is on the move"
    promotions.handle(Moved(b"a", done=True), 10.0)
    assert len(uses(promotions, b"a", [20.0] * PROMOTE_USES)) == 1, "it has come down again"


def test_uses_that_are_far_apart_do_not() -> None:
    times = [n * (PROMOTE_WINDOW_S + 1) for n in range(10 * PROMOTE_USES)]
    assert uses(Promotions(), b"a", times) == []


def test_what_is_in_the_fastest_tier_stays() -> None:
    promotions = Promotions()
    for n in range(10):
        assert promotions.handle(Used(b"a", 0), float(n)) == []


def test_what_could_not_move_rests() -> None:
    promotions = Promotions()
    assert uses(promotions, b"a", [0.0] * PROMOTE_USES)
    promotions.handle(Moved(b"a", done=False), 1.0)
    assert uses(promotions, b"a", [2.0] * 10) == []
    assert uses(promotions, b"a", [1.0 + REST_S])


@given(
    st.lists(
        st.one_of(
            st.builds(Used, st.binary(min_size=1, max_size=1), st.integers(0, 2)),
            st.builds(Moved, st.binary(min_size=1, max_size=1), st.booleans()),
        )
    ),
    st.integers(1, 3),
)
def test_few_move_at_once(events: list[Used | Moved], most: int) -> None:
    promotions = Promotions(uses=2, most_moves=most)
    moving: set[bytes] = set()
    for now, event in enumerate(events):
        if isinstance(event, Moved):
            moving.discard(event.key)
        for action in promotions.handle(event, float(now)):
            assert action.key not in moving
            assert action.tier > 0
            moving.add(action.key)
        assert len(moving) <= most
        promotions.check_invariants()


def test_what_is_counted_is_bounded() -> None:
    promotions = Promotions()
    for n in range(MOST_COUNTED + 50):
        promotions.handle(Used(n.to_bytes(36, "big"), 1), 0.0)
    promotions.check_invariants()


def test_watermarks() -> None:
    assert excess(90, 100, high=0.9, low=0.8) == 0
    assert excess(91, 100, high=0.9, low=0.8) == 11
    assert excess(100, 100, high=1.0, low=1.0) == 0
