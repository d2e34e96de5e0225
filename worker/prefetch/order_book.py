"""The announced orders of a node. Pure.

An order belongs to the session that announced it, and its name is unique there. Opens of a session
count for its own orders, and, if none of these has the file in its window, for those of other
sessions: a trainer may announce on a socket and read through a mount.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, NamedTuple

from cachefs.core.errors import BadConfig, NotFound
from cachefs.core.model import NamespaceId
from cachefs.core.order_messages import (
    IDLE_S,
    MOST_ORDERS,
    USERS,
    AnnounceOrder,
    OrderStateReply,
)
from worker.prefetch.announced_order import AnnouncedOrder
from worker.prefetch.order_entries import FunctionEntries, InoList

MOST_LIST_BYTES: Final = 512 << 20  # of memory, of all lists of a session


class OrderId(NamedTuple):
    session: Hashable
    namespace: NamespaceId
    name: str


class OrderBook:
    """See the module."""

    def __init__(self) -> None:
        self._orders: dict[OrderId, AnnouncedOrder] = {}
        self._on_end: dict[OrderId, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def live(self) -> Iterator[tuple[NamespaceId, AnnouncedOrder]]:
        """Yields the orders, the oldest first."""
        for id, order in self._orders.items():
            yield id.namespace, order

    # ---- announcements ----

    def add_piece(self, session: Hashable, piece: AnnounceOrder, now: float) -> None:
        """Begins a list, or adds to it. Raises BadConfig, with nothing changed."""
        id = OrderId(session, piece.namespace, piece.name)
        known = self._orders.get(id)
        is_more = known is not None and isinstance(known.entries, InoList) and piece.first > 0
        self._check_bytes(id, piece)
        if known is not None and is_more:
            assert isinstance(known.entries, InoList)
            known.entries.add(piece)
            known.used_s = now
        elif piece.first:
            raise BadConfig(
                f"there is no order {piece.name!r} that a piece from {piece.first} on continues",
                remedy="announce the order again from its start",
            )
        else:
            self._put(id, AnnouncedOrder(InoList(piece), piece.batch_span, now, piece.user))

    def put_function(
        self,
        id: OrderId,
        entries: FunctionEntries,
        batch_span: int,
        now: float,
        on_end: Callable[[], None],
    ) -> None:
        """Adds an order that is a function. Raises BadConfig, with nothing changed."""
        self._put(id, AnnouncedOrder(entries, batch_span, now))
        self._on_end[id] = on_end
        self._drop_if_over(id)

    def _put(self, id: OrderId, order: AnnouncedOrder) -> None:
        others = self._others(id)
        mine = sum(1 for other in others if other.user == order.user)
        if mine >= MOST_ORDERS or len(others) >= USERS * MOST_ORDERS:
            raise BadConfig(
                f"this session has {len(others)} orders already, {mine} of them of this user",
                remedy="end those that are not read any more, or use their names again",
            )
        self.end(*id)
        self._orders[id] = order

    def _others(self, id: OrderId) -> list[AnnouncedOrder]:
        """Returns the orders of a session but for this one."""
        return [
            order
            for other, order in self._orders.items()
            if other.session == id.session and other != id
        ]

    def _check_bytes(self, id: OrderId, piece: AnnounceOrder) -> None:
        orders = self._others(id)
        if piece.first and id in self._orders:
            orders.append(self._orders[id])
        most_bytes = MOST_LIST_BYTES // (1 if piece.user < 0 else USERS)
        mine_bytes = _size_bytes(order for order in orders if order.user == piece.user)
        if (
            mine_bytes + len(piece.inos) > most_bytes
            or _size_bytes(orders) + len(piece.inos) > MOST_LIST_BYTES
        ):
            raise BadConfig(
                f"the orders of this session take more than {MOST_LIST_BYTES >> 20} MiB, or those"
                f" of this user more than {most_bytes >> 20} MiB",
                remedy="announce them as functions of a manifest",
            )

    # ---- opens ----

    def opened(self, session: Hashable, namespace: NamespaceId, ino: int, now: float) -> bool:
        """Records an open. Returns whether an order expected it."""
        found = [
            id
            for id, order in self._orders.items()
            if id.namespace == namespace and id.session == session and order.opened(ino, now)
        ] or [
            id
            for id, order in self._orders.items()
            if id.namespace == namespace and id.session != session and order.opened(ino, now)
        ]
        for id in found:
            self._drop_if_over(id)
        return bool(found)

    def state(self, session: Hashable, namespace: NamespaceId, name: str) -> OrderStateReply:
        """Returns how far an order is. Raises NotFound."""
        order = self._orders.get(OrderId(session, namespace, name))
        if order is None:
            raise NotFound(f"this session has no order {name!r}, or it has ended")
        return OrderStateReply(
            order.high,
            order.unread_files,
            order.unread_bytes,
            order.requested,
            order.late,
            order.entries.total,
        )

    # ---- ends ----

    def end(self, session: Hashable, namespace: NamespaceId, name: str) -> None:
        """Ends an order. Unknown ones are ignored."""
        id = OrderId(session, namespace, name)
        order = self._orders.pop(id, None)
        if order is not None:
            order.end()
            self._on_end.pop(id, _nothing)()

    def end_session(self, session: Hashable) -> None:
        """Ends all orders of a session."""
        for id in [id for id in self._orders if id.session == session]:
            self.end(*id)

    def expire(self, now: float) -> None:
        """Ends the orders of which no file was opened for `IDLE_S`, and those that are over."""
        for id, order in [*self._orders.items()]:
            if order.is_over or now - order.used_s >= IDLE_S:
                self.end(*id)

    def close(self) -> None:
        """Ends all orders."""
        for id in [*self._orders]:
            self.end(*id)

    def _drop_if_over(self, id: OrderId) -> None:
        if self._orders[id].is_over:
            self.end(*id)


def _nothing() -> None:
    """The end of a list takes no action."""


def _size_bytes(orders: Iterable[AnnouncedOrder]) -> int:
    return sum(order.entries.size_bytes for order in orders)
