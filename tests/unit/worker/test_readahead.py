"""Read-ahead: random readers get the pages they touch, streams get their window, in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.cache.readahead import (
    FIRST_WINDOW_BYTES,
    KEEP_BYTES,
    MOST_WINDOW_BYTES,
    SKIP_BYTES,
    STREAMS,
    ReadAhead,
)

MIB = 1 << 20
GIB = 1 << 30


class Pages:
    """A file's pages as a worker brings them: what a plan covers is here at once, and the reader is
    granted what is here in one run, up to 8 MiB beyond what it asked for."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.here: set[int] = set()
        self.touched: set[int] = set()
        self.ahead = ReadAhead()

    def read(self, offset: int, size: int) -> int:
        """How far beyond its end was fetched."""
        end = min(offset + size, self.size_bytes)
        plan = min(self.ahead.plan(offset, end - offset), self.size_bytes)
        self.touched.update(range(offset // MIB, -(-end // MIB)))
        self.here.update(range(offset // MIB, -(-plan // MIB)))
        granted = end
        while granted < min(end + 8 * MIB, self.size_bytes) and granted // MIB in self.here:
            granted = (granted // MIB + 1) * MIB
        self.ahead.granted(offset, granted)
        return plan - end


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4096, 128 << 10]), st.integers(1, 4000))
def test_random_readers_fetch_the_pages_they_touch(seed: int, size: int, reads: int) -> None:
    pages, random_ = Pages(10 * GIB), random.Random(seed)
    for _ in range(reads):
        pages.read(random_.randrange(0, 10 * GIB - size, 4096), size)
    assert len(pages.here) <= 1.1 * len(pages.touched), f"seed {seed}"


@given(st.lists(st.integers(1, 4 * MIB), min_size=300, max_size=300), st.integers(0, 10 * GIB))
def test_a_stream_of_any_sizes_from_anywhere_gets_the_whole_window(
    sizes: list[int], start: int
) -> None:
    ahead, offset, reach = ReadAhead(), start, []
    for size in sizes:
        reach.append(ahead.plan(offset, size) - offset)
        ahead.granted(offset, offset + size)
        offset += size
    assert min(reach[20:]) >= MOST_WINDOW_BYTES // 2
    assert max(reach) <= MOST_WINDOW_BYTES


@given(st.integers(0, 2**32), st.integers(2, 4))
def test_requests_that_a_kernel_sends_ahead_come_unordered(seed: int, in_flight: int) -> None:
    """As long as they are not further apart than the window: no request counts as a jump."""
    random_, ahead = random.Random(seed), ReadAhead()
    plans = [ahead.plan(n * MIB, MIB) for n in range(8)]
    for start in range(8, 200, in_flight):
        batch = [*range(start, start + in_flight)]
        random_.shuffle(batch)
        plans += [ahead.plan(n * MIB, MIB) for n in batch]
        assert ahead.sequential
        assert max(plans) >= (batch[0] + 1) * MIB
    assert max(plans) >= 190 * MIB + MOST_WINDOW_BYTES // 2


@given(st.integers(0, 2**32), st.integers(2, STREAMS))
def test_interleaved_streams_are_told_apart(seed: int, count: int) -> None:
    random_, ahead = random.Random(seed), ReadAhead()
    at = [n * 2 * GIB + random_.randrange(1, MIB) for n in range(count)]
    reach = [0] * count
    for step in range(400):
        one = step % count if random_.random() < 0.8 else random_.randrange(count)
        reach[one] = ahead.plan(at[one], MIB) - at[one]
        at[one] += MIB
    assert min(reach) >= MOST_WINDOW_BYTES // 2, f"seed {seed}: {reach}"


@given(st.lists(st.integers(0, KEEP_BYTES), min_size=50, max_size=50))
def test_skips_of_a_few_pages_keep_the_stream(gaps: list[int]) -> None:
    ahead, offset = ReadAhead(), 0
    for _ in range(10):
        ahead.plan(offset, MIB)
        offset += MIB
    for gap in gaps:
        offset += gap
        assert ahead.plan(offset, MIB) - offset >= FIRST_WINDOW_BYTES
        offset += MIB
    assert ahead.sequential


@pytest.mark.parametrize("gap", [KEEP_BYTES + MIB, SKIP_BYTES])
def test_a_reader_that_goes_on_skipping_is_no_stream(gap: int) -> None:
    ahead, offset = ReadAhead(), 0
    for _ in range(20):
        ahead.plan(offset, MIB)
        offset += MIB
    fetched = 0
    for _ in range(40):
        offset += gap + MIB
        fetched = ahead.plan(offset, MIB) - offset
    assert fetched == MIB


@given(
    st.lists(st.tuples(st.integers(0, GIB), st.integers(1, 8 * MIB)), max_size=80),
    st.integers(0, MOST_WINDOW_BYTES),
)
def test_a_plan_covers_what_is_asked_and_no_more_than_the_window(
    reads: list[tuple[int, int]], most: int
) -> None:
    ahead = ReadAhead()
    for offset, size in reads:
        plan = ahead.plan(offset, size, most)
        assert plan >= offset + size
        assert plan - offset <= max(size, most) + MOST_WINDOW_BYTES


def test_no_memory_no_window() -> None:
    ahead = ReadAhead()
    for n in range(50):
        assert ahead.plan(n * MIB, MIB, FIRST_WINDOW_BYTES - 1) == (n + 1) * MIB
