"""Who is asked for a block while changes of members overlap."""

from __future__ import annotations

import msgspec

from cachefs.core.placement import Member, Placement, View
from worker.fill.source import Purpose
from worker.peers.ownership_map import OwnershipMap
from worker.peers.source_selection import RequestMode


def members(ids: str) -> tuple[Member, ...]:
    return tuple(Member(id, f"http://{id}:1", 1.0) for id in ids)


def asked(ring: OwnershipMap, ino: int) -> dict[str, RequestMode]:
    return {one.peer: one.way for one in ring.candidates(ino, 0, Purpose.SERVE)}


def owner(ids: str, ino: int) -> str:
    return Placement(members(ids)).owners(ino, 0)[0].id


def test_what_came_in_an_epoch_between_is_asked_for_at_its_place_then() -> None:
    ring = OwnershipMap("a")
    ring.update(View(3, members("ab"), before=members("abcd"), between=(members("abc"),)))
    passed = [n for n in range(500) if owner("abcd", n) == "d" and owner("abc", n) == "c"]
    assert passed
    for ino in passed:
        assert asked(ring, ino)["c"] is RequestMode.HAVE, "it may have filled it in epoch 2"
    ring.update(View(3, members("ab"), version=9))
    assert not any("c" in asked(ring, ino) for ino in passed), "all is in its place"


def test_a_node_without_a_share_owns_no_block_of_the_largest_file() -> None:
    """No look at each of the blocks: the loop waits for the answer."""
    ring, blocks = OwnershipMap("a"), 1 << 40
    assert not ring.owns_any(1, blocks)
    a, b = members("ab")
    ring.update(View(1, (msgspec.structs.replace(a, weight=0.0), b)))
    assert not ring.owns_any(1, blocks)
    ring.update(View(2, (a, b)))
    assert ring.owns_any(1, blocks)


def test_a_node_owns_a_file_if_it_owns_one_of_its_blocks() -> None:
    ring = OwnershipMap("a")
    ring.update(View(1, members("abcd")))
    for ino in range(100):
        owned = [ring.owns(ino, block) for block in range(4)]
        assert [ring.owns_any(ino, count) for count in range(5)] == [
            any(owned[:count]) for count in range(5)
        ]
