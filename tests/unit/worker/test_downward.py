"""Downward reads: runs from the end to the beginning get their window, others fetch nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.cache.downward import STREAK, Downward, Span
from worker.cache.readahead import FIRST_WINDOW_BYTES, MOST_WINDOW_BYTES

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class Fetched:
    """The pages that plans of one handle cover."""

    def __init__(self) -> None:
        self.downward = Downward()
        self.pages: set[int] = set()
        self.missed = 0  # requests of which a page was not fetched before

    def read(self, offset: int, size: int) -> Span | None:
        touched = {*range(offset // MIB, -(-(offset + size) // MIB))}
        self.missed += not touched <= self.pages
        plan = self.downward.plan(offset, size)
        self.pages |= touched
        if plan is not None:
            self.pages |= {*range(plan.start // MIB, -(-plan.end // MIB))}
        return plan


@pytest.mark.parametrize("size", [128 * KIB, 512 * KIB, MIB])
def test_a_file_that_is_read_from_its_end(size: int) -> None:
    fetched = Fetched()
    plans = [fetched.read(at, size) for at in range(512 * MIB - size, -1, -size)]
    assert plans[:STREAK] == [None] * STREAK
    assert all(plan is not None and plan.downwards for plan in plans[STREAK:])
    assert fetched.missed <= STREAK + 2
    reach = [at.end - at.start for at in plans[20:100] if at is not None]
    assert max(reach) <= MOST_WINDOW_BYTES + size
    assert plans[-1] is not None
    assert plans[-1].start == 0


def around(page: int, rng: random.Random) -> list[tuple[int, int]]:
    """What the kernel requests for a missing page of a map: 1 MiB around it, in two parts."""
    start = max(0, page - 512 * KIB)
    parts = [(start, 512 * KIB), (start + 512 * KIB, 512 * KIB)]
    rng.shuffle(parts)
    return parts


@pytest.mark.parametrize("slice_bytes", [4 * MIB, 8 * MIB, 32 * MIB])
@pytest.mark.parametrize("seed", range(5))
def test_slices_that_are_copied_downwards(slice_bytes: int, seed: int) -> None:
    rng, fetched, known = random.Random(seed), Fetched(), {0}
    late = 0
    for number in range(12):
        missed = fetched.missed
        page = (number + 1) * slice_bytes - 4 * KIB
        while page >= number * slice_bytes:
            if page // (512 * KIB) not in known:
                for offset, size in around(page, rng):
                    fetched.read(offset, size)
                    known |= {*range(offset // (512 * KIB), (offset + size) // (512 * KIB))}
            page -= 512 * KIB
        late += number >= 3 and fetched.missed > missed
    assert late == 0, "from the fourth slice on, every page is fetched before it is read"


@pytest.mark.parametrize("slice_bytes", [4 * MIB, 8 * MIB])
def test_runs_whose_requests_were_granted_before(slice_bytes: int) -> None:
    """A client sends no request for bytes that a reply granted up to their end."""
    fetched, granted, plans = Fetched(), range(0), []
    for number in range(1, 60):
        for end in range(number * slice_bytes, (number - 1) * slice_bytes, -512 * KIB):
            if end - 512 * KIB in granted and end <= granted.stop:
                continue
            plans.append((number, fetched.read(end - 512 * KIB, 512 * KIB)))
            page = end // MIB
            while page in fetched.pages:
                page += 1
            granted = range(end - 512 * KIB, max(end, page * MIB))
    later = [plan for number, plan in plans if number >= 4]
    assert all(plan is not None and not plan.downwards for plan in later)
    assert len(later) < 56 * slice_bytes // (512 * KIB) // 2, "most requests were not needed"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4 * KIB, 128 * KIB]))
def test_random_readers_fetch_nothing_in_excess(seed: int, size: int) -> None:
    rng, downward = random.Random(seed), Downward()
    plans = [downward.plan(rng.randrange(0, 10 * GIB - size, 4 * KIB), size) for _ in range(500)]
    assert [plan for plan in plans if plan is not None] == []


def test_an_upward_reader_is_not_this_stream() -> None:
    downward = Downward()
    assert [downward.plan(n * MIB, MIB) for n in range(50)] == [None] * 50


def test_a_jump_elsewhere_ends_the_run() -> None:
    fetched = Fetched()
    for at in range(100 * MIB, 90 * MIB, -MIB):
        last = fetched.read(at, MIB)
    assert last is not None
    assert fetched.read(3 * GIB, MIB) is None
    assert fetched.read(3 * GIB - MIB, MIB) is None


def test_no_memory_no_window() -> None:
    downward = Downward()
    for at in range(100 * MIB, 0, -MIB):
        assert downward.plan(at, MIB, FIRST_WINDOW_BYTES - 1) is None


@given(
    st.lists(st.tuples(st.integers(0, GIB), st.integers(1, 2 * MIB)), max_size=80),
    st.integers(0, MOST_WINDOW_BYTES),
)
def test_a_plan_stays_within_the_window(reads: list[tuple[int, int]], most: int) -> None:
    downward = Downward()
    for offset, size in reads:
        plan = downward.plan(offset, size, most)
        if plan is not None:
            assert 0 <= plan.start <= plan.end
