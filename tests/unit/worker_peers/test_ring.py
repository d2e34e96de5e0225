"""Who is asked for a block while changes of members overlap."""

from __future__ import annotations

from cachefs.core.placement import Member, Placement, View
from worker.peers.ring import MOST_EARLIER, Ring
from worker.source import Purpose
from worker.state.search import Way


def members(ids: str) -> tuple[Member, ...]:
    return tuple(Member(id, f"http://{id}:1", 1.0) for id in ids)


def asked(ring: Ring, ino: int, replicas: int = 1) -> dict[str, Way]:
    found = ring.candidates(ino, 0, Purpose.SERVE, replicas=replicas)
    return {one.peer: one.way for one in found}


def owner(ids: str, ino: int) -> str:
    return Placement(members(ids)).owners(ino, 0)[0].id


def test_what_came_in_an_epoch_between_is_asked_for_at_its_place_then() -> None:
    ring = Ring("a")
    for view in (
        View(1, members("abcd")),
        View(2, members("abc"), before=members("abcd")),
        View(3, members("ab"), before=members("abcd")),
    ):
        ring.update(view)
    passed = [n for n in range(500) if owner("abcd", n) == "d" and owner("abc", n) == "c"]
    assert passed
    for ino in passed:
        assert asked(ring, ino).get("c") is Way.HAVE, "it may have filled it in epoch 2"
    ring.update(View(4, members("ab"), before=members("ab")))
    assert not any("c" in asked(ring, ino) for ino in passed), "it is gone"
    ring.update(View(4, members("ab"), version=9))
    assert not any(known.peer in "cd" for n in passed for known in ring.candidates(
        n, 0, Purpose.SERVE
    ))  # fmt: skip


def test_a_view_that_settles_or_comes_again_remembers_nothing_more() -> None:
    ring = Ring("a")
    ring.update(View(1, members("abc")))
    ring.update(View(2, members("ab"), before=members("abc")))
    ring.update(View(2, members("ab"), before=members("abc"), version=5))
    assert ring._known.earlier == (), "the settled one is known by `before`"
    for epoch in range(3, 20):
        ring.update(View(epoch, members("abc"), before=members("abc")))
        assert len(ring._known.earlier) == min(epoch - 2, MOST_EARLIER)
    ring.update(View(20, members("abc")))
    assert ring._known.earlier == ()
    ring.update(View(21, members("ab"), before=members("abc")))
    assert ring._known.earlier == ()
