"""The queue of orders, and the places of trees."""

from __future__ import annotations

import pytest

from cachefs.fuse.covers.orders import LayOrder, Orders, RemoveOrder
from cachefs.fuse.covers.place import Place, place_of


def lay(view: int, tree: int = 9) -> LayOrder:
    return LayOrder(view, 5, b"a", tree)


def test_the_oldest_order_is_next() -> None:
    orders = Orders()
    for order in (lay(1), RemoveOrder(2), lay(3)):
        assert orders.put(order) == -1
    assert orders.covers() == 2
    assert [orders.next() for _ in range(4)] == [lay(1), RemoveOrder(2), lay(3), None]


def test_only_the_last_order_of_a_view_counts() -> None:
    orders = Orders()
    orders.put(lay(1, tree=7))
    assert orders.put(RemoveOrder(1)) == 7
    assert orders.put(lay(1, tree=8)) == -1
    assert len(orders) == 1
    assert orders.next() == lay(1, tree=8)


def test_orders_to_cover_end_with_their_session() -> None:
    orders = Orders()
    orders.put(lay(1))
    orders.put(RemoveOrder(2))
    assert orders.drop_covers() == [lay(1)]
    assert orders.next() == RemoveOrder(2)


@pytest.mark.parametrize(
    ("path", "base", "expected"),
    [
        (b"", b"", Place(b"", b"")),
        (b"a/b", b"", Place(b"a/b", b"")),
        (b"a/b", b"a", Place(b"b", b"")),
        (b"a/b/", b"a/b", Place(b"", b"")),
        (b"a", b"a/b/c", Place(b"", b"b/c")),
        (b"", b"a/b", Place(b"", b"a/b")),
        (b"a", b"ab", None),
        (b"ab", b"a", None),
    ],
)
def test_the_place_of_a_tree(path: bytes, base: bytes, expected: Place | None) -> None:
    assert place_of(path, base) == expected
