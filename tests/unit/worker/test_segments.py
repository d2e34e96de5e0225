"""Segments come back: the room and the places of what was read past the cache are free again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.unit.worker.rig import MIB, Rig, read, run
from worker import segments
from worker.segments import memory_file
from worker.store.filesystem import is_unused, reopen
from worker.worker import Worker

FULL_S = 3600.0
SMALL = 100 << 10


def fill_disk(worker: Worker) -> None:
    """The disk takes nothing for the rest of the test."""
    parts = worker.inside.parts
    full = OSError(errno.ENOSPC, "No space left on device")
    parts.health.fault(full, parts.clocks.monotonic() + FULL_S)


def test_the_kernel_tells_whether_a_lent_file_in_memory_is_in_use() -> None:
    fd = memory_file(MIB)
    try:
        assert is_unused(fd)
        lent = reopen(fd)
        assert not is_unused(fd)
        os.close(lent)
        assert is_unused(fd)
    finally:
        os.close(fd)


def test_lent_segments_in_memory_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-full-cache] Each of many files is read once and closed while the disk is full."""
    monkeypatch.setattr(segments, "MOST_SEGMENTS", 8)

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, origin_deadline_s=2.0)
        async with rig.worker() as worker:
            fill_disk(worker)
            for ino in range(1, 41):
                rig.put(ino, SMALL)
                assert await read(worker, ino) == rig.data[ino]
            assert worker.status()["tiers"][0]["segments"] <= 8
            assert worker.inside.parts.memory.segments_bytes <= 8 * MIB

    run(script())
