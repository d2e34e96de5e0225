"""Pieces of announced lists: whatever is sent is the list, in order, in few messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.order_ioctl import ListPiece
from cachefs.core.order_messages import MOST_ENTRY_BYTES
from cachefs.fuse.held_pieces import MOST_LISTS, HeldPieces

FULL = 4_000


def cut(total: int, *, width: int = 4, step: int = FULL) -> list[ListPiece]:
    return [
        ListPiece(
            "o", first, total, 0, width, 0,
            b"".join(n.to_bytes(width, "little") for n in range(first, min(first + step, total))),
        )
        for first in range(0, total, step)
    ]  # fmt: skip


def sent(held: HeldPieces, pieces: list[ListPiece]) -> list[ListPiece]:
    return [ready for piece in pieces for ready in held.add("o", piece)]


@given(st.integers(1, 60_000), st.sampled_from([4, 8]), st.integers(500, FULL))
def test_the_whole_list_is_sent_in_order(total: int, width: int, step: int) -> None:
    held = HeldPieces()
    pieces = cut(total, width=width, step=step)
    messages = sent(held, pieces)
    assert b"".join(one.entries for one in messages) == b"".join(one.entries for one in pieces)
    place = 0
    for one in messages:
        assert one.first == place
        assert len(one.entries) <= MOST_ENTRY_BYTES
        place += len(one.entries) // width
    assert not len(held)


def test_a_long_list_takes_few_messages() -> None:
    pieces = cut(100 * FULL)
    assert len(sent(HeldPieces(), pieces)) <= 1 + len(pieces) // 8 + 1


def test_the_first_piece_is_not_held_and_drops_an_earlier_list() -> None:
    held = HeldPieces()
    first, second, *_ = cut(100 * FULL)
    assert held.add("o", first) == [first]
    assert held.add("o", second) == []
    assert held.add("o", first) == [first]
    assert held.take("o") == []


def test_what_is_held_is_sent_before_a_piece_that_does_not_continue_it() -> None:
    held = HeldPieces()
    first, second, _, fourth, *_ = cut(100 * FULL)
    held.add("o", first)
    held.add("o", second)
    assert held.add("o", fourth) == [second]
    assert held.take("o") == [fourth]
    assert held.take("o") == []


def test_few_lists_are_held() -> None:
    held = HeldPieces()
    _, second, *_ = cut(100 * FULL)
    for number in range(MOST_LISTS + 5):
        held.add(str(number), second)
    assert len(held) == MOST_LISTS


def test_a_piece_without_entries_is_not_held() -> None:
    held = HeldPieces()
    assert held.add("o", ListPiece("o", 5, 9)) == [ListPiece("o", 5, 9)]
