"""What the holder answers, and whom it tells: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.holder.holdings import MAX_ENTRIES, Close, Holdings, Send
from cachefs.holder.protocol import MAX_KEY_BYTES, MAX_META_BYTES, Datagram

A, B, C = "a", "b", "c"
OK = Datagram("OK")


def put(key: str = "k", meta: bytes = b"meta", fds: tuple[int, ...] = (7, 8)) -> Datagram:
    return Datagram("PUT", key, meta, fds)


def test_what_was_put_is_given_with_its_descriptors_and_claimed() -> None:
    holdings = Holdings()
    assert holdings.handle(A, put()) == [Send(A, OK)]
    assert holdings.handle(B, Datagram("LIST")) == [Send(B, Datagram("KEYS", data=b"k "))]
    entry = Datagram("ENTRY", "k", b"meta", (7, 8))
    assert holdings.handle(B, Datagram("GET", "k")) == [Send(B, entry)]
    assert holdings.handle(B, Datagram("CLAIM", "k", b"b")) == [Send(B, Datagram("OK", "k"))]
    again = holdings.handle(B, Datagram("CLAIM", "k", b"b"))
    assert again == [Send(B, Datagram("OK", "k"))], "no hand-over"
    assert holdings.handle(C, Datagram("LIST")) == [Send(C, Datagram("KEYS", data=b"k b"))]
    for verb in ("GET", "CLAIM"):
        assert holdings.handle(B, Datagram(verb, "x")) == [Send(B, Datagram("NONE", "x"))]


def test_the_first_descriptors_of_a_key_stay() -> None:
    holdings = Holdings()
    holdings.handle(A, put())
    assert holdings.handle(B, put(fds=(9, 10))) == [Close((9, 10)), Send(B, OK)]
    (reply,) = holdings.handle(B, Datagram("GET", "k"))
    assert isinstance(reply, Send)
    assert reply.datagram.fds == (7, 8)


def test_a_further_claimant_has_the_former_one_hand_over() -> None:
    holdings = Holdings()
    holdings.handle(A, put())
    holdings.handle(A, Datagram("CLAIM", "k"))
    first, second = holdings.handle(B, Datagram("CLAIM", "k"))
    assert first == Send(A, Datagram("HANDOVER", "k"))
    assert isinstance(second, Send)
    assert (second.to, second.datagram.verb) == (B, "OK")
    assert holdings.ended(A) == [], "it is no claimant any more"


def test_watchers_hear_of_puts_drops_and_claimants_that_ended() -> None:
    holdings = Holdings()
    holdings.handle(A, put("old"))
    assert holdings.handle(C, Datagram("WATCH")) == [Send(C, Datagram("KEYS", data=b"old "))]
    assert holdings.handle(A, put()) == [Send(A, OK), Send(C, Datagram("PUT", "k"))]
    claimed = holdings.handle(B, Datagram("CLAIM", "k", b"b"))
    assert claimed == [Send(B, Datagram("OK", "k")), Send(C, Datagram("CLAIM", "k", b"b"))]
    assert holdings.ended(B) == [Send(C, Datagram("FREE", "k"))]
    assert holdings.ended(B) == []
    dropped = holdings.handle(A, Datagram("DROP", "k"))
    assert dropped == [Close((7, 8)), Send(A, OK), Send(C, Datagram("DROP", "k"))]
    assert holdings.handle(A, Datagram("DROP", "k")) == [Send(A, Datagram("NONE", "k"))]
    assert holdings.ended(C) == []
    assert holdings.handle(A, put()) == [Send(A, OK)], "it watches no more"


@pytest.mark.parametrize(
    "request_",
    [
        put(key=""),
        put(key="a b"),
        put(key="a\x00"),
        put(key="k" * (MAX_KEY_BYTES + 1)),
        put(fds=()),
        put(meta=bytes(MAX_META_BYTES + 1)),
        Datagram("HOLD", "k", b"", (7,)),
        Datagram("", ""),
    ],
)
def test_bad_requests_are_refused_and_their_descriptors_closed(request_: Datagram) -> None:
    holdings = Holdings()
    *before, reply = holdings.handle(A, request_)
    assert isinstance(reply, Send)
    assert reply.datagram.verb == "ERROR"
    assert [fd for close in before for fd in close.fds] == [*request_.fds]  # type: ignore[union-attr]
    assert holdings.handle(A, Datagram("LIST")) == [Send(A, Datagram("KEYS"))]


def test_there_is_a_limit_and_a_held_key_may_be_put_at_it() -> None:
    holdings = Holdings()
    for number in range(MAX_ENTRIES):
        assert holdings.handle(A, put(f"k{number}"))[-1] == Send(A, OK)
    *_, refused = holdings.handle(A, put("one more"[:3]))
    assert isinstance(refused, Send)
    assert refused.datagram.verb == "ERROR"
    assert holdings.handle(A, put("k0"))[-1] == Send(A, OK)


verbs = st.sampled_from(["PUT", "LIST", "GET", "CLAIM", "DROP", "WATCH", "end", "junk"])


@given(st.lists(st.tuples(verbs, st.sampled_from("abc"), st.sampled_from(["x", "y"])), max_size=60))
def test_every_descriptor_is_held_or_closed_once(steps: list[tuple[str, str, str]]) -> None:
    holdings, next_fd = Holdings(), 0
    given_fds: set[int] = set()
    closed: list[int] = []
    for verb, connection, key in steps:
        if verb == "end":
            actions = holdings.ended(connection)
        else:
            fds = (next_fd, next_fd + 1)
            next_fd += 2
            given_fds |= {*fds}
            actions = holdings.handle(connection, Datagram(verb, key, b"", fds))
            assert actions[-1] != [], "each request is answered"
        closed += [fd for action in actions if isinstance(action, Close) for fd in action.fds]
    held = {fd for entry in holdings._entries.values() for fd in entry.fds}
    assert len(closed) == len({*closed})
    assert held | {*closed} == given_fds
    assert not held & {*closed}
