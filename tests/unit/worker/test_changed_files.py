"""Files that changed at their origin: what the readers of an earlier version are told."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from cachefs.core.errors import Stale
from tests.unit.worker.rig import MIB, Rig, open_reader, run

READS = 20


def test_reads_that_fail_leave_nothing_behind(tmp_path: Path) -> None:
    """[S-open-handles] A program reads again and again what is gone, and has the file open: its
    error kept the frames of each read."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        async with rig.worker() as worker:
            reader = await open_reader(worker, rig.put(1, 12 * MIB))
            rig.origin.put(b"dir/1", bytes(12 * MIB))
            depths = []
            for _ in range(READS):
                with pytest.raises(Stale) as caught:
                    await reader.at(0, 4096)
                depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
            assert max(depths[1:]) == depths[1]
            reader.close()

    run(script())
