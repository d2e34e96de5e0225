"""Where blocks live: everybody agrees, shares follow weights, a change moves what it must."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from cachefs.core.placement import (
    BLOCK_BYTES,
    KEPT_ANSWERS,
    Member,
    Placement,
    block_count,
    block_of,
)

IDS = st.text("0123456789abcdef", min_size=1, max_size=32)
WEIGHTS = st.sampled_from([0.0, 0.25, 1.0, 3.0, 1e12])
INOS = st.integers(1, (1 << 48) - 1)
BLOCKS = st.integers(0, (1 << 32) - 1)
MEMBERS = st.lists(
    st.builds(Member, IDS, st.just("http://h:1"), WEIGHTS), max_size=12, unique_by=lambda m: m.id
)


def member(id: str, weight: float = 1.0) -> Member:
    return Member(id, f"http://{id}:1", weight)


def members(count: int) -> list[Member]:
    return [member(f"w{i}") for i in range(count)]


def sample(count: int) -> list[tuple[int, int]]:
    """Small files, and some of many blocks."""
    return [(ino, 0) for ino in range(2, count // 2)] + [
        (1 << 40 | i // 64, i % 64) for i in range(count // 2)
    ]


@given(MEMBERS, INOS, BLOCKS, st.randoms())
def test_the_order_of_the_members_does_not_matter(
    known: list[Member], ino: int, block: int, shuffle: object
) -> None:
    other = [*known]
    shuffle.shuffle(other)  # type: ignore[attr-defined]
    assert Placement(known).owners(ino, block, 3) == Placement(other).owners(ino, block, 3)


@given(MEMBERS, INOS, BLOCKS, st.integers(1, 15))
@example([member("a", 0.0)], 1, 0, 1)
def test_owners_are_distinct_members_with_weight_and_as_many_as_there_can_be(
    known: list[Member], ino: int, block: int, replicas: int
) -> None:
    owners = Placement(known).owners(ino, block, replicas)
    owning = [one for one in known if one.weight > 0]
    assert len(owners) == len({one.id for one in owners}) == min(replicas, len(owning))
    assert all(one in owning for one in owners)


@given(MEMBERS, INOS, BLOCKS, st.integers(1, 12))
def test_fewer_replicas_are_the_first_of_more(
    known: list[Member], ino: int, block: int, replicas: int
) -> None:
    placement = Placement(known)
    more = placement.owners(ino, block, replicas + 1)
    assert placement.owners(ino, block, replicas) == more[:replicas]
    assert placement.owners(ino, block, replicas) == more[:replicas], "kept answers are the same"


@given(MEMBERS, INOS, BLOCKS)
def test_a_join_moves_blocks_to_the_new_member_only(
    known: list[Member], ino: int, block: int
) -> None:
    new = member("joins-now", 2.0)
    after = Placement([*known, new]).owners(ino, block, len(known) + 1)
    before = Placement(known).owners(ino, block, len(known) + 1)
    assert tuple(one for one in after if one != new) == before


@given(MEMBERS.filter(bool), INOS, BLOCKS, st.data())
def test_a_leave_moves_nothing_between_survivors(
    known: list[Member], ino: int, block: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(known))
    before = Placement(known).owners(ino, block, len(known))
    after = Placement([one for one in known if one != gone]).owners(ino, block, len(known))
    assert tuple(one for one in before if one != gone) == after


@given(MEMBERS.filter(bool), INOS, BLOCKS, st.data())
def test_a_member_that_gets_more_weight_loses_nothing_and_only_it_gains(
    known: list[Member], ino: int, block: int, data: st.DataObject
) -> None:
    old = data.draw(st.sampled_from(known))
    heavier = Member(old.id, old.url, old.weight * 2 + 0.5)
    changed = [heavier if one == old else one for one in known]
    (after,) = Placement(changed).owners(ino, block)
    before = Placement(known).owners(ino, block)
    if not before or after.id != before[0].id:
        assert after == heavier


@given(MEMBERS, INOS, BLOCKS)
def test_only_the_ratio_of_weights_counts(known: list[Member], ino: int, block: int) -> None:
    scaled = [Member(one.id, one.url, one.weight * 1024) for one in known]
    ids = [one.id for one in Placement(known).owners(ino, block, 3)]
    assert [one.id for one in Placement(scaled).owners(ino, block, 3)] == ids


@given(MEMBERS, INOS, BLOCKS)
def test_an_address_does_not_count(known: list[Member], ino: int, block: int) -> None:
    moved = [Member(one.id, "https://elsewhere:9", one.weight, "host") for one in known]
    ids = [one.id for one in Placement(known).owners(ino, block, 3)]
    assert [one.id for one in Placement(moved).owners(ino, block, 3)] == ids


def test_shares_are_equal_among_equals() -> None:
    blocks = sample(20_000)
    shares = _shares(members(8), blocks)
    average = len(blocks) / 8
    assert max(shares.values()) <= 1.06 * average, shares  # 3 standard deviations: 5.6 %
    assert min(shares.values()) >= 0.94 * average, shares


def test_shares_are_those_of_the_weights() -> None:
    known = [member("one", 1.0), member("two", 2.0), member("four", 4.0), member("none", 0.0)]
    blocks = sample(20_000)
    shares = _shares(known, blocks)
    for one in known[:3]:
        expected = len(blocks) * one.weight / 7
        assert math.isclose(shares[one.id], expected, rel_tol=0.06), (one.id, shares)
    assert "none" not in shares


def test_a_join_moves_its_share_and_takes_it_from_all() -> None:
    known, blocks = members(7), sample(16_000)
    old, new = Placement(known), Placement([*known, member("new")])
    moved = [b for b in blocks if old.owners(*b) != new.owners(*b)]
    assert len(moved) <= 1.10 * len(blocks) / 8
    givers = {one.id: sum(old.owners(*b)[0] == one for b in moved) for one in known}
    assert min(givers.values()) >= 0.75 * len(moved) / 7, givers


def test_replicas_of_one_member_s_blocks_are_spread_over_all_others() -> None:
    """When a worker is lost, all others take over, not one neighbour."""
    placement = Placement(members(8))
    second: dict[str, int] = {}
    for block in sample(20_000):
        first, next_one = placement.owners(*block, replicas=2)
        if first.id == "w0":
            second[next_one.id] = second.get(next_one.id, 0) + 1
    assert len(second) == 7
    assert max(second.values()) <= 1.25 * sum(second.values()) / 7, second


def test_placement_is_the_same_in_every_version() -> None:
    """Nodes of two versions share a cache: these answers may never change."""
    known = [Member(f"{i:032x}", f"http://h{i}:1", 1.0 + i % 3) for i in range(8)]
    placement = Placement(known)
    questions = [(1, 0), (2, 0), (2, 1), (77, 4), (1 << 47, 9), ((1 << 48) - 1, (1 << 32) - 1)]
    found = [[int(one.id, 16) for one in placement.owners(*q, replicas=3)] for q in questions]
    assert found == GOLDEN


GOLDEN = [[7, 2, 5], [1, 7, 6], [2, 4, 1], [2, 5, 7], [4, 1, 7], [2, 1, 6]]


def test_kept_answers_are_bounded() -> None:
    placement = Placement(members(2))
    for ino in range(1, 2 * KEPT_ANSWERS + 10):
        placement.owners(ino, 0)
        assert len(placement._kept) <= KEPT_ANSWERS


@given(st.integers(0, 1 << 50))
def test_every_byte_is_in_one_of_the_blocks(size: int) -> None:
    count = block_count(size)
    assert count >= 1
    assert block_of(max(0, size - 1)) == count - 1
    assert (count - 1) * BLOCK_BYTES <= size <= count * BLOCK_BYTES


def _shares(known: list[Member], blocks: list[tuple[int, int]]) -> dict[str, int]:
    placement, shares = Placement(known), dict[str, int]()
    for block in blocks:
        (owner,) = placement.owners(*block)
        shares[owner.id] = shares.get(owner.id, 0) + 1
    return shares
