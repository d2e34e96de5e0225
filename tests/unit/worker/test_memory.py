"""The memory budget: windows shrink before anything fails, and what is waited for always fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.runtime.memory import (
    BUFFER_BYTES,
    LEAST_BYTES,
    PROCESS_BYTES,
    MemoryBudget,
    budget,
    buffer_bytes,
)
from worker.runtime.process_limits import available_memory, total_memory

MIB = 1 << 20
GIB = 1 << 30
SIZES = st.integers(0, 4 * GIB)
LIMITS = st.integers(LEAST_BYTES, 1 << 42)
PARTS = st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES)


def made(limit: int, parts: tuple[int, int, int, int, int]) -> MemoryBudget:
    memory = MemoryBudget(limit)
    (
        memory.metadata_bytes, memory.buffers_bytes, memory.windows_bytes, memory.segments_bytes,
        memory.tiers_bytes,
    ) = parts  # fmt: skip
    return memory


def test_the_default_is_a_share_of_what_there_is() -> None:
    assert budget(0, 10 * GIB) == 8 * GIB
    assert budget(4 * GIB, 10 * GIB) == 4 * GIB
    assert budget(40 * GIB, 10 * GIB) == 10 * GIB, "clipped to what there is"
    assert budget(0, MIB) == LEAST_BYTES


@given(LIMITS, PARTS, st.integers(0, 1 << 34), st.integers(0, 64))
def test_the_parts_are_the_whole(
    limit: int, parts: tuple[int, int, int, int, int], most: int, readers: int
) -> None:
    memory = made(limit, parts)
    memory.check_invariants()
    assert memory.used_bytes == PROCESS_BYTES + sum(parts)
    assert memory.free_bytes == max(0, limit - memory.used_bytes)
    window = memory.window(most, readers)
    assert 0 <= window <= most
    assert window * max(1, readers) <= memory.free_bytes, "windows never take the last"
    assert MIB <= memory.piece(8 * MIB, MIB) <= 8 * MIB, "what is waited for is cut, not refused"


@given(LIMITS, PARTS, st.sampled_from(range(5)), SIZES)
def test_windows_and_pieces_only_shrink_as_memory_is_taken(
    limit: int, parts: tuple[int, int, int, int, int], which: int, more: int
) -> None:
    before = made(limit, parts)
    grown = [*parts]
    grown[which] += more
    after = made(limit, (grown[0], grown[1], grown[2], grown[3], grown[4]))
    assert after.window(64 * MIB, 3) <= before.window(64 * MIB, 3)
    assert after.piece(8 * MIB, MIB) <= before.piece(8 * MIB, MIB)
    assert after.under_pressure or not before.under_pressure


@given(LIMITS)
def test_windows_are_gone_before_demand_fails(limit: int) -> None:
    """From the moment on that read-ahead gets nothing there is room for somebody who waits."""
    memory = MemoryBudget(limit)
    memory.tiers_bytes = limit - PROCESS_BYTES - memory.reserve_bytes
    assert memory.window(64 * MIB, 1) == 0
    assert memory.under_pressure
    assert memory.free_bytes >= memory.reserve_bytes >= min(16 * MIB, limit // 8)
    assert memory.take_segment(8 * MIB)


@given(LIMITS, st.integers(16 * MIB, 1 << 43))
def test_a_tier_in_memory_leaves_room_for_the_rest(limit: int, size: int) -> None:
    memory = MemoryBudget(limit)
    memory.tiers_bytes = memory.clip_tier(size)
    assert memory.tiers_bytes <= size
    assert memory.free_bytes >= min(memory.reserve_bytes, limit - PROCESS_BYTES - 16 * MIB)
    if size <= limit // 2 - PROCESS_BYTES:
        assert memory.tiers_bytes == size, "clipped without need"


@given(LIMITS, PARTS, st.lists(st.integers(0, 64 * MIB), max_size=60))
def test_segments_stay_within_their_share(
    limit: int, parts: tuple[int, int, int, int, int], sizes: list[int]
) -> None:
    memory = made(limit, (parts[0], parts[1], parts[2], 0, parts[4]))
    for size in sizes:
        before = memory.segments_bytes
        taken = memory.take_segment(size)
        assert memory.segments_bytes == before + (size if taken else 0)
        assert memory.segments_bytes <= max(16 * MIB, limit // 4)


def test_buffers_are_bounded() -> None:
    assert buffer_bytes(1000) == 1000
    assert buffer_bytes(GIB) == BUFFER_BYTES


# ---- the machine ---------------------------------------------------------------------------------


def machine(root: Path, cgroup: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       8388608 kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "1073741824\n"}, GIB),
        ("0::/a/b\n", {"a/b/memory.max": "4294967296\n", "a/memory.max": "max\n"}, 4 * GIB),
        ("0::/\n", {"memory.max": "2147483648\n"}, 2 * GIB),
        ("0::/../../x\n", {"memory.max": "2147483648\n"}, 2 * GIB),
        ("0::/a\n", {"a/memory.max": "max\n"}, 8 * GIB),
        ("0::/a\n", {"a/memory.max": "99999999999999\n"}, 8 * GIB),
        (
            "4:cpu,cpuacct:/x\n5:memory:/docker/c\n",
            {"memory/docker/c/memory.limit_in_bytes": "1073741824\n"},
            GIB,
        ),
        ("5:memory:/gone\n", {"memory/memory.limit_in_bytes": "3221225472\n"}, 3 * GIB),
        ("", {}, 8 * GIB),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, cgroup: str, limits: dict[str, str], expected: int
) -> None:
    assert available_memory(machine(tmp_path, cgroup, limits)) == expected


def test_this_machine_has_memory() -> None:
    assert 64 * MIB < available_memory() <= total_memory()
