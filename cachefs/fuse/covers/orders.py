"""The server's orders to cover and to uncover, in a bounded queue. Pure.

Of two orders for one view only the later one counts. An order to uncover is never refused: there
are as many as views.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_COVERS: Final = 64  # of one mount


class LayOrder(msgspec.Struct, frozen=True):
    """Cover the directory `ino` at `path` (below the root of the namespace) with the tree that is
    open as `tree`, which the queue owns until the order is taken."""

    view: int
    ino: int
    path: bytes
    tree: int


class RemoveOrder(msgspec.Struct, frozen=True):
    """Uncover."""

    view: int


Order = LayOrder | RemoveOrder


class Orders:
    """The orders that wait, by view, the oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[int, Order] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, order: Order) -> int:
        """Queues an order. Returns the descriptor of an order that it replaces, -1 without one."""
        former = self._waiting.pop(order.view, None)
        self._waiting[order.view] = order
        return former.tree if isinstance(former, LayOrder) else -1

    def next(self) -> Order | None:
        """Removes and returns the oldest order, None if there is none."""
        view = next(iter(self._waiting), None)
        return None if view is None else self._waiting.pop(view)

    def has(self, view: int) -> bool:
        return view in self._waiting

    def covers(self) -> int:
        """Returns how many orders to cover wait."""
        return sum(isinstance(order, LayOrder) for order in self._waiting.values())

    def drop_covers(self) -> list[LayOrder]:
        """Removes and returns the orders to cover: their session has ended."""
        dropped = [order for order in self._waiting.values() if isinstance(order, LayOrder)]
        for order in dropped:
            del self._waiting[order.view]
        return dropped
