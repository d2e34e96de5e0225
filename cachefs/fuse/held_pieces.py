"""The pieces of announced lists that wait for the next ones, so that one message has many. Pure.

The first piece of a list is sent at once: the order begins, or is refused. A later one is held
until no other piece has room in its message, the list is complete, or its state is requested. The
piece that completes a message waits for its answer, so errors reach the program.
"""

from __future__ import annotations

from typing import Final

from cachefs.core.order_ioctl import ListPiece
from cachefs.core.order_messages import MOST_ENTRY_BYTES, MOST_ORDERS

MOST_LISTS: Final = MOST_ORDERS  # with held pieces; those of others are sent one by one


class HeldPieces:
    """Those of one mount, by the names of their orders."""

    def __init__(self) -> None:
        self._held: dict[str, list[ListPiece]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, name: str, piece: ListPiece) -> list[ListPiece]:
        """Returns what is to be sent now, in this order. Empty: the piece is held."""
        held = self._held.pop(name, [])
        ready: list[ListPiece] = []
        if held and not _continues(held, piece):
            if piece.first:
                ready.append(_joined(held))
            held = []  # a first piece replaces the list
        held.append(piece)
        if self._is_due(held, piece):
            ready.append(_joined(held))
        else:
            self._held[name] = held
        return ready

    def take(self, name: str) -> list[ListPiece]:
        """Returns what was held of a list, as one piece."""
        held = self._held.pop(name, [])
        return [_joined(held)] if held else []

    def _is_due(self, held: list[ListPiece], last: ListPiece) -> bool:
        is_complete = last.first + _count(last) >= last.total
        is_full = _size_bytes(held) + len(last.entries) > MOST_ENTRY_BYTES
        is_first = not last.first or not last.entries
        return is_complete or is_full or is_first or len(self._held) >= MOST_LISTS


def _count(piece: ListPiece) -> int:
    return len(piece.entries) // piece.width


def _size_bytes(pieces: list[ListPiece]) -> int:
    return sum(len(piece.entries) for piece in pieces)


def _continues(held: list[ListPiece], piece: ListPiece) -> bool:
    last = held[-1]
    follows = last._replace(first=last.first + _count(last), entries=piece.entries)
    return piece == follows and _size_bytes(held) + len(piece.entries) <= MOST_ENTRY_BYTES


def _joined(pieces: list[ListPiece]) -> ListPiece:
    return pieces[0]._replace(entries=b"".join(piece.entries for piece in pieces))
