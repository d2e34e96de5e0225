"""What a sampler announced, and how far its samples were consumed: the rest can be announced again
to a server that has lost it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from cachefs.core.orders import Order, Share
from cachefs.trainers.order_route import OrderRoute

MOST_KEPT: Final = 1 << 17  # places of a list; a loader that reports nothing is never so far behind


class Announced(Protocol):
    """An order of one epoch."""

    is_list: bool
    span: int

    @property
    def left(self) -> int:
        """How many samples were not consumed yet."""

    def consume(self, count: int) -> None:
        """Records how many samples were consumed since the iteration began."""

    def begin_again(self) -> None:
        """The next `send` announces everything that is left, as a separate order."""

    def send(self, route: OrderRoute, name: str) -> None:
        """Announces what was not announced yet. Raises typed errors."""


class AnnouncedFunction:
    """A rank's share of an order that is a function."""

    is_list = False

    def __init__(self, order: Order, share: Share, span: int) -> None:
        self.span = span
        self._order = order
        self._share = share
        self._consumed = 0
        self._is_sent = False

    @property
    def left(self) -> int:
        return self._share.count(self._order.n) - self._consumed

    def consume(self, count: int) -> None:
        self._consumed = max(self._consumed, count)

    def begin_again(self) -> None:
        self._is_sent = False

    def send(self, route: OrderRoute, name: str) -> None:
        if not self._is_sent:
            start = min(self._order.n, self._share.at(self._consumed) - self._share.rank)
            rest = msgspec.structs.replace(self._share, start=start)
            route.function(name, self._order, rest, self.span)
            self._is_sent = True


class AnnouncedList:
    """A list of inode numbers that grows while its samples are placed. `total`: when it is
    complete. Only what was not consumed yet is kept."""

    is_list = True

    def __init__(self, total: int, span: int) -> None:
        self.span = span
        self._total = total
        self._kept = array("Q")
        self._base = 0  # the place of the first number in `_kept`
        self._start = 0  # the first place of the live announcement
        self._sent = 0  # the place after the last announced one

    @property
    def left(self) -> int:
        return self._total - self._base

    def add(self, inos: Iterable[int]) -> None:
        """Adds the next inode numbers."""
        self._kept.extend(inos)
        self.consume(self._base + len(self._kept) - MOST_KEPT)

    def consume(self, count: int) -> None:
        gone = min(count - self._base, len(self._kept))
        if gone > 0:
            del self._kept[:gone]
            self._base += gone
            self._sent = max(self._sent, self._base)

    def begin_again(self) -> None:
        self._start = self._sent = self._base

    def send(self, route: OrderRoute, name: str) -> None:
        new = self._kept[self._sent - self._base :]
        if new:
            total = self._total - self._start
            route.part(name, self._sent - self._start, new, total, self.span)
            self._sent += len(new)
