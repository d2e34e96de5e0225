"""The inode numbers of announced orders: a list that arrives in pieces, or a function. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Final

from cachefs.core.errors import BadConfig
from cachefs.core.order_messages import MOST_ENTRY_BYTES, MOST_LENGTH, AnnounceOrder
from cachefs.core.orders import Order, Share

_WIDTHS: Final = (4, 8)
PIECE_BYTES: Final = 160  # of memory that a piece takes beside its entries


class InoList:
    """A list, kept as the bytes that arrived. Made by its first piece."""

    def __init__(self, piece: AnnounceOrder) -> None:
        """Raises BadConfig for a piece that is wrong or not the first one."""
        self.total = piece.total
        self.known = 0
        self.size_bytes = 0  # of memory
        self._firsts: list[int] = []  # of each piece
        self._pieces: list[tuple[bytes, int, int]] = []  # bytes, bytes of an entry, base
        self.add(piece)

    def add(self, piece: AnnounceOrder) -> None:
        """Adds the next piece. Raises BadConfig, with nothing changed."""
        width, data = piece.entry_bytes, piece.inos
        if width not in _WIDTHS or len(data) % width:
            raise BadConfig("a piece of an order has a fraction of an inode number")
        count = len(data) // width
        if len(data) > MOST_ENTRY_BYTES or not 0 <= self.total <= MOST_LENGTH:
            raise BadConfig("a piece of an order, or the order, is too long")
        if (piece.first, piece.total) != (self.known, self.total):
            raise BadConfig(
                f"a piece of an order begins at {piece.first} of {piece.total}, "
                f"{self.known} of {self.total} entries are known",
                remedy="announce the order again from its start, one piece after the other",
            )
        if piece.first + count > self.total or not (count or not self.total):
            raise BadConfig("the pieces of an order have another length than it has")
        self._firsts.append(self.known)
        self._pieces.append((data, width, piece.base))
        self.known += count
        self.size_bytes += len(data) + PIECE_BYTES

    def at(self, place: int) -> int:
        """Returns an inode number that is known."""
        number = bisect.bisect_right(self._firsts, place) - 1
        data, width, base = self._pieces[number]
        start = (place - self._firsts[number]) * width
        return base + int.from_bytes(data[start : start + width], "little")


class FunctionEntries:
    """The share of one rank of an order over a table of inode numbers. `read` returns an entry of
    the table, or raises OSError."""

    size_bytes = 0

    def __init__(self, order: Order, share: Share, read: Callable[[int], int]) -> None:
        self._order = order
        self._share = share
        self._read = read
        self.total = self.known = share.count(order.n)

    def at(self, place: int) -> int:
        """Returns an inode number. Raises OSError where the table cannot be read."""
        return self._read(self._order.at(self._share.at(place)))
