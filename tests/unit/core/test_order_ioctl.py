"""Announcements by ioctl: what is packed comes back, and what is no announcement is refused."""

from __future__ import annotations

import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadConfig
from cachefs.core.order_ioctl import (
    END,
    ENTRIES_BYTES,
    NAME_BYTES,
    PIECE,
    PIECE_BYTES,
    STATE,
    ListPiece,
    ListState,
    pieces,
)

MANY = ENTRIES_BYTES // 4


def unpacked(arguments: list[bytearray]) -> list[int]:
    """The whole list, whose pieces must follow each other."""
    found: list[int] = []
    for argument in arguments:
        assert len(argument) == PIECE_BYTES
        piece = ListPiece.decode(argument)
        assert piece.first == len(found)
        width, data = piece.width, piece.entries
        found += [
            piece.base + int.from_bytes(data[at : at + width], "little")
            for at in range(0, len(data), width)
        ]
    assert all(ListPiece.decode(argument).total == len(found) for argument in arguments)
    return found


def test_the_commands_are_the_same_in_every_version() -> None:
    assert (PIECE, END, STATE) == (0x7FF86341, 0x40786342, 0xC0786343)


def test_a_piece_is_the_same_in_every_version() -> None:
    header = ListPiece("train", 1, 2, 3, 4, 5, b"\x06\0\0\0").header()
    assert header == b"train".ljust(80, b"\0") + bytes.fromhex(
        "0100000000000000 0200000000000000 0300000000000000 01000000 04000000 05000000 00000000"
    )


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=50), st.booleans())
def test_lists_come_back(inos: list[int], as_array: bool) -> None:
    given_inos = array.array("Q", inos) if as_array else inos
    assert unpacked([*pieces("o", given_inos)]) == inos


@pytest.mark.parametrize("high", [0, 5 << 32])
def test_long_lists_take_four_bytes_an_entry(high: int) -> None:
    inos = [high + (number * 7919) % 100_000 for number in range(3 * MANY + 1)]
    arguments = [*pieces("o", inos, batch_span=9)]
    assert len(arguments) == 4
    assert unpacked(arguments) == inos
    assert all(ListPiece.decode(argument).batch_span == 9 for argument in arguments)


def test_numbers_across_a_border_take_eight_bytes() -> None:
    inos = [*range((1 << 32) - 3 * MANY, (1 << 32) + 3 * MANY)]
    assert unpacked([*pieces("o", inos)]) == inos


def test_a_state_comes_back() -> None:
    state = ListState(1, 2, 3, 4, 5, 6)
    assert ListState.decode(state.encode()) == state


@pytest.mark.parametrize("name", ["", "n" * (NAME_BYTES + 1), "ü" * NAME_BYTES, "a\0b"])
def test_wrong_names_are_refused(name: str) -> None:
    with pytest.raises(BadConfig):
        ListPiece(name).header()


@given(st.binary(max_size=300))
def test_what_is_no_argument_is_refused(data: bytes) -> None:
    try:
        piece = ListPiece.decode(data)
    except BadConfig:
        return
    assert len(piece.entries) <= len(data)
