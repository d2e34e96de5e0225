"""Orders: every sample once, both directions agree, the same results in every version."""

from __future__ import annotations

import collections
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig
from cachefs.core.orders import Order, Permutation, Share

SEEDS = st.integers(0, (1 << 64) - 1)
SHUFFLES = st.sampled_from(["none", "full", "block", "window"])
ORDERS = st.builds(
    Order, st.integers(0, 300), SEEDS, st.integers(0, 50), SHUFFLES, st.integers(1, 320)
)


@pytest.mark.parametrize(
    ("n", "seed", "golden"),
    [
        (1, 0, [0]),
        (10, 7, [4, 5, 0, 2, 6, 8, 1, 3, 7, 9]),
        (1000, 7, [598, 678, 875, 150, 655, 305, 591, 447, 6, 480]),
        (10_000_000, 7, [3743985, 4142817, 5068682, 7060620, 6067927, 4655326]),
        (1 << 40, (1 << 64) - 1, [1046743079482, 132551691276, 521176096159]),
    ],
)
def test_a_permutation_is_the_same_in_every_version(n: int, seed: int, golden: list[int]) -> None:
    permutation = Permutation(n, seed)
    assert [permutation.at(i) for i in range(len(golden))] == golden


@pytest.mark.parametrize(
    ("order", "golden"),
    [
        (Order(20, 7, 3), [19, 4, 7, 9, 16, 18, 17, 10, 13, 8, 2, 11, 0, 5, 15, 12, 14, 6, 1, 3]),
        (Order(20, 7, 4), [9, 3, 17, 7, 16, 14, 13, 8, 6, 0, 10, 15, 19, 1, 4, 12, 5, 11, 2, 18]),
        (
            Order(20, 7, 3, "block", 6),
            [18, 19, 15, 12, 16, 17, 13, 14, 10, 8, 6, 9, 7, 11, 2, 4, 5, 1, 0, 3],
        ),
        (
            Order(20, 7, 3, "window", 6),
            [2, 4, 5, 1, 0, 3, 10, 8, 6, 9, 7, 11, 15, 12, 16, 17, 13, 14, 18, 19],
        ),
        (Order(20, 7, 3, "none"), [*range(20)]),
        (Order(10_000_000, 1 << 63, 12), [327366, 3086853, 8621936, 524129, 510085]),
    ],
)
def test_an_order_is_the_same_in_every_version(order: Order, golden: list[int]) -> None:
    assert [order.at(i) for i in range(len(golden))] == golden


@given(st.integers(1, 400), SEEDS)
def test_a_permutation_has_every_element_once(n: int, seed: int) -> None:
    permutation = Permutation(n, seed)
    found = [permutation.at(i) for i in range(n)]
    assert sorted(found) == list(range(n))
    assert [permutation.inverse(j) for j in found] == list(range(n))


@given(st.integers(1, 1 << 48), SEEDS, st.data())
def test_both_directions_of_a_large_permutation_agree(
    n: int, seed: int, data: st.DataObject
) -> None:
    permutation = Permutation(n, seed)
    i = data.draw(st.integers(0, n - 1))
    assert 0 <= permutation.at(i) < n
    assert permutation.inverse(permutation.at(i)) == i
    assert permutation.at(permutation.inverse(i)) == i


@given(ORDERS)
def test_an_order_has_every_sample_once(order: Order) -> None:
    found = [order.at(position) for position in range(order.n)]
    assert sorted(found) == list(range(order.n))
    assert [order.position(index) for index in found] == list(range(order.n))
    assert list(order.indices(range(order.n))) == found


@given(ORDERS, st.integers(1, 7), st.integers(0, 350))
def test_the_ranks_share_an_order_without_overlap(order: Order, world: int, start: int) -> None:
    shares = [Share(rank, world, start) for rank in range(world)]
    positions = [[*share.positions(order.n)] for share in shares]
    assert sorted(itertools.chain(*positions)) == list(range(min(start, order.n), order.n))
    for share, own in zip(shares, positions, strict=True):
        assert share.count(order.n) == len(own)
        assert [share.at(i) for i in range(len(own))] == own
        assert [share.number(p) for p in own] == list(range(len(own)))
    for position in range(start):
        assert all(share.number(position) is None for share in shares)


@given(st.integers(1, 300), SEEDS, st.integers(1, 64))
def test_a_block_is_read_as_one(n: int, seed: int, width: int) -> None:
    order = Order(n, seed, 0, "block", width)
    blocks = [index // width for index in order.indices(range(n))]
    assert len([*itertools.groupby(blocks)]) == -(-n // width)


@given(st.integers(1, 300), SEEDS, st.integers(1, 64))
def test_a_sample_stays_in_its_window(n: int, seed: int, width: int) -> None:
    order = Order(n, seed, 0, "window", width)
    assert all(order.at(p) // width == p // width for p in range(n))


def test_permutations_of_few_elements_are_equally_frequent() -> None:
    counts = collections.Counter(
        tuple(Permutation(4, seed).at(i) for i in range(4)) for seed in range(4800)
    )
    assert len(counts) == 24
    chi2 = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert chi2 < 50  # 23 degrees of freedom: exceeded by chance once in a thousand seeds


def test_elements_and_places_are_independent() -> None:
    n, cells = 20_480, 32
    permutation = Permutation(n, 9)
    counts = collections.Counter((i * cells // n, permutation.at(i) * cells // n) for i in range(n))
    expected = n / cells**2
    chi2 = sum(
        (counts[cell] - expected) ** 2 / expected
        for cell in itertools.product(range(cells), repeat=2)
    )
    assert chi2 / (cells - 1) ** 2 < 1.15


def test_epochs_and_blocks_have_different_orders() -> None:
    epochs = [tuple(Order(50, 7, epoch).indices(range(50))) for epoch in range(20)]
    assert len(set(epochs)) == 20
    block = Order(200, 7, 0, "window", 50)
    insides = [
        tuple(index % 50 for index in block.indices(range(first, first + 50)))
        for first in range(0, 200, 50)
    ]
    assert len(set(insides)) == 4


@pytest.mark.parametrize("place", [-1, 10])
def test_a_place_outside_is_an_error(place: int) -> None:
    for order in (Order(10, 1, 1, shuffle, 4) for shuffle in ("none", "full", "block", "window")):
        with pytest.raises(IndexError):
            order.at(place)
        with pytest.raises(IndexError):
            order.position(place)


@pytest.mark.parametrize(
    "wrong",
    [
        Order(10, 1, 1, "block"),
        Order(10, 1, 1, "window", 0),
        Order(-1, 1, 1),
        Order(10, 1 << 64, 1),
        Share(2, 2),
        Share(-1, 2),
        Share(0, 0),
        Share(0, 1, -1),
    ],
)
def test_wrong_fields_are_a_clear_error(wrong: Order | Share) -> None:
    with pytest.raises(BadConfig):
        wrong.check()
