"""Who shares the room for segments, and how much of it each reader may keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.messages import MOST_KEPT
from worker.state.shares import ACTIVE_S, ActiveReaders, piece_bytes, segments_kept

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
