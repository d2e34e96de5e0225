"""Admission, read-ahead, retry, health and the ledger: decisions without a disk or a clock."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.errors import BadBody, NotFound, Unreachable
from worker.cache.readahead import FIRST_WINDOW_BYTES, MOST_WINDOW_BYTES, ReadAhead
from worker.fill.retry import pause_s
from worker.tier.admission_rule import Verdict, judge
from worker.tier.health import ERROR_PAUSE_S, FULL_PAUSE_S, Health
from worker.tier.ledger import Ledger, scratch_floor, scratch_limit

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("policy", "size", "free", "cached", "oldest", "verdict"),
    [
        ("fill", 10, 10, 0, 0, Verdict.ADMIT),
        ("fill", 11, 10, 100, 1000, Verdict.REFUSE),
        ("fill", 11, 10, 100, 100, Verdict.MAKE_ROOM_FROM_IDLE),
        ("always", 11, 10, 100, 1000, Verdict.MAKE_ROOM),
        ("always", 111, 10, 100, 1000, Verdict.REFUSE),
        ("fill", 111, 10, 100, 0, Verdict.REFUSE),
    ],
)
def test_admission(
    policy: str, size: int, free: int, cached: int, oldest: int, verdict: Verdict
) -> None:
    assert verdict is judge(
        policy,
        size_bytes=size,
        free_bytes=free,
        cached_bytes=cached,
        oldest_use_s=oldest,
        idle_after_s=600,
        now_s=1000,
    )


def sequential(step: int, count: int, most: int = MOST_WINDOW_BYTES) -> list[int]:
    """How far ahead of each read of a sequential reader is fetched."""
    readahead = ReadAhead()
    return [readahead.plan(n * step, step, most) - n * step for n in range(count)]


def test_read_ahead_doubles_up_to_its_cap() -> None:
    ahead = sequential(MIB, 300)
    assert ahead[0] == MIB, "one read is no stream"
    assert FIRST_WINDOW_BYTES in ahead[:3]
    assert max(ahead) == MOST_WINDOW_BYTES
    assert min(ahead[60:]) >= MOST_WINDOW_BYTES // 2, "it is refilled at half"
    assert max(sequential(MIB, 300, 8 * MIB)) == 8 * MIB


def test_refills_are_large() -> None:
    readahead, reach, steps = ReadAhead(), 0, []
    for n in range(300):
        plan = readahead.plan(n * MIB, MIB)
        if plan > reach:
            steps.append(plan - reach)
            reach = plan
    assert min(steps[8:]) >= MOST_WINDOW_BYTES // 4


@given(st.lists(st.integers(0, 100), min_size=2, max_size=60, unique=True), st.data())
def test_random_reads_fetch_what_they_touch(places: list[int], data: st.DataObject) -> None:
    readahead = ReadAhead()
    for place in places:
        offset = place * 100 * MIB + data.draw(st.integers(1, MIB))
        assert readahead.plan(offset, 4096) == offset + 4096
        readahead.granted(offset, offset + 4096)


def test_small_jumps_forward_stay_sequential_and_long_ones_do_not() -> None:
    readahead = ReadAhead()
    offset = 0
    for n in range(20):
        readahead.plan(offset, MIB)
        offset += MIB if n < 4 else 3 * MIB
    assert readahead.sequential
    assert readahead.plan(offset + 500 * MIB, MIB) == offset + 501 * MIB
    assert not readahead.sequential


@given(
    st.integers(0, 40), st.floats(0, 100), st.floats(0.1, 100), st.floats(0, 1, exclude_max=True)
)
def test_retries_end_at_the_deadline(
    attempt: int, stuck: float, deadline: float, jitter: float
) -> None:
    pause = pause_s(
        BadBody("cut"), attempt=attempt, stuck_s=stuck, deadline_s=deadline, jitter=jitter
    )
    if stuck >= deadline:
        assert pause is None
    else:
        assert pause is not None
        assert 0 <= pause <= min(5.0, deadline - stuck)
    if attempt == 0 and stuck < deadline:
        assert pause == 0.0


def test_only_what_may_pass_is_tried_again() -> None:
    always = {"attempt": 1, "stuck_s": 0.0, "deadline_s": 10.0, "jitter": 0.5}
    assert pause_s(Unreachable("no"), **always) is not None  # type: ignore[arg-type]
    assert pause_s(NotFound("no"), **always) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "pause"), [(errno.ENOSPC, FULL_PAUSE_S), (errno.EIO, ERROR_PAUSE_S)]
)
def test_a_disk_that_failed_rests_and_is_tried_again(number: int, pause: float) -> None:
    health = Health()
    assert health.writable(100.0)
    assert health.fault(OSError(number, "broken"), 100.0), "news"
    assert not health.fault(OSError(number, "broken"), 100.0), "no news"
    assert not health.writable(100.0 + pause - 0.1)
    assert health.state(100.0 + pause) == "degraded", "until a write went well"
    assert health.writable(100.0 + pause)
    assert health.well()
    assert not health.well()
    assert health.state(100.0 + pause) == "normal"


@given(st.integers(1, 1 << 45))
def test_shares_of_the_scratch_area(limit: int) -> None:
    assert 0 <= scratch_floor(limit) <= scratch_limit(limit) <= limit // 2
    if limit >= GIB:
        assert scratch_limit(limit) == max(64 * MIB, min(512 * MIB, limit // 8))


@given(st.lists(st.tuples(st.sampled_from("rlsux"), st.integers(0, 4 * MIB)), max_size=80))
def test_the_ledger_never_promises_more_than_the_limit(steps: list[tuple[str, int]]) -> None:
    ledger, is_lent = Ledger(64 * MIB), False
    for step, size in steps:
        is_lent = is_lent or step == "l"
        if step in "rl" and ledger.reserve(size, from_floor=step == "l"):
            ledger.reserved_bytes -= size
            ledger.cached_bytes += size
        elif step == "s":
            ledger.take_scratch(size)
        elif step == "u" and ledger.cached_bytes >= size:
            ledger.cached_bytes -= size
            ledger.unlinked_bytes += size
        elif step == "x" and ledger.scratch_bytes >= size:
            ledger.scratch_bytes -= size
        ledger.check_invariants()
        assert ledger.used_bytes + ledger.reserved_bytes <= ledger.limit_bytes
        if not is_lent:
            assert ledger.cached_bytes <= ledger.limit_bytes - ledger.scratch_floor_bytes
            assert not ledger.lent_floor_bytes
