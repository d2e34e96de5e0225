"""Who shares the room for segments, and how much of it each reader may keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.messages import MOST_KEPT
from cachefs.core.placement import BLOCK_BYTES
from worker.fill.shares import (
    ACTIVE_S,
    LEAST_PART_BYTES,
    MOST_PART_BYTES,
    ActiveReaders,
    is_crowded,
    part_of,
    piece_bytes,
    segments_kept,
)

MIB = 1 << 20


def test_a_reader_counts_from_its_question_until_it_is_idle_or_ends() -> None:
    readers = ActiveReaders()
    assert readers.count(0.0) == 1, "whoever asks is one"
    for number in range(5):
        readers.asked(number, float(number) / 10)
    assert readers.count(0.4) == 5
    readers.ended(4)
    readers.ended(4)
    assert readers.count(0.4) == 4
    readers.asked(0, 2.0)
    assert readers.count(0.25 + ACTIVE_S) == 2, "the one that asked again, and the last one"
    assert readers.count(2.0 + ACTIVE_S) == 1


def test_a_reader_counts_for_as_long_as_it_waits() -> None:
    """However slow the origin is: readers that wait are as many as they were."""
    readers, clock = ActiveReaders(), iter([100.0, 200.0])
    with readers.waiting("a", lambda: next(clock)):
        with readers.waiting("a", lambda: next(clock)):
            readers.asked("b", 1.0)
            readers.asked("a", 1.0)
            assert readers.count(1.0) == 2
        assert readers.count(150.0) == 1, "the other wait of the same reader goes on"
        readers.asked("c", 150.0)
        assert readers.count(150.0) == 2
    assert readers.count(200.0 + ACTIVE_S / 2) == 1
    readers.asked("c", 202.0)
    assert readers.count(202.0) == 2
    assert readers.count(200.0 + ACTIVE_S) == 1


def test_a_reader_that_ends_while_it_waits_is_forgotten() -> None:
    readers = ActiveReaders()
    readers.asked("b", 1.0)
    with readers.waiting("a", lambda: 1.0):
        readers.ended("a")
        assert readers.count(1.0) == 1
    assert readers.count(1.0) == 1


def test_readers_crowd_a_room_with_less_than_two_pages_for_each() -> None:
    assert not is_crowded(256 * MIB, 128)
    assert is_crowded(256 * MIB, 129)
    assert not is_crowded(2 * MIB, 1)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 30), st.integers(1, 1 << 40))
def test_a_part_is_what_was_asked_for_within_one_block(offset: int, size: int, rest: int) -> None:
    start, stop = part_of(offset, size, offset + rest)
    assert start == offset
    assert 0 < stop - start <= MOST_PART_BYTES
    assert start // BLOCK_BYTES == (stop - 1) // BLOCK_BYTES
    block_rest = BLOCK_BYTES - offset % BLOCK_BYTES
    assert stop - start >= min(max(size, LEAST_PART_BYTES), MOST_PART_BYTES, rest, block_rest)


limits = st.integers(MIB, 1 << 40)
counts = st.integers(1, 100_000)


@given(limits, counts)
def test_what_readers_keep_and_wait_for_fits_while_there_is_a_segment_for_each(
    limit: int, readers: int
) -> None:
    length = piece_bytes(limit, readers, least_bytes=MIB, most_bytes=8 * MIB)
    kept = segments_kept(limit, readers, length)
    assert MIB <= length <= 8 * MIB
    assert 1 <= kept <= MOST_KEPT
    if kept > 1:
        assert (kept + 1) * length * readers <= limit


@given(limits, counts)
def test_shares_fall_as_readers_come(limit: int, readers: int) -> None:
    few, many = (
        piece_bytes(limit, count, least_bytes=MIB, most_bytes=8 * MIB)
        for count in (readers, readers + 1)
    )
    assert many <= few
    assert segments_kept(limit, readers + 1, MIB) <= segments_kept(limit, readers, MIB)


def test_shares_of_the_default_scratch_area() -> None:
    kept = [segments_kept(512 * MIB, readers, MIB) for readers in (1, 128, 170, 171, 256, 1000)]
    assert kept == [3, 3, 2, 1, 1, 1]
