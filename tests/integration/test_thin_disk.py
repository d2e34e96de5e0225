"""A cache on a thin volume that is full: the kernel accepts bytes and loses them later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.model import PAGE_BYTES
from tests.services.thin_disk import ThinDisk, drop_pages, thin_disk
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, read, run, until

BEFORE, AFTER = range(1, 21), range(101, 301)  # files cached before the volume is full, and after


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ThinDisk]:
    with thin_disk(tmp_path) as disk:
        yield disk


def published(rig: Rig, inos: range) -> dict[int, bytes]:
    """What a client reads of published files without asking anybody, once the kernel has dropped
    their pages."""
    found = {}
    for ino in inos:
        path = rig.tier / "pub" / rig.name(ino)
        if path.exists():
            drop_pages(path)
            found[ino] = path.read_bytes()
    return found


def test_what_a_full_thin_volume_lost_is_never_read(
    disk: ThinDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """[S-lost-writes]"""

    async def script() -> None:
        rig = Rig(disk.path, 256 * MIB)
        for ino in (*BEFORE, *AFTER):
            rig.put(ino, PAGE_BYTES // 2)
        async with rig.worker() as worker:
            for ino in BEFORE:
                await worker.fetch(NAMESPACE, ino)
            await worker.housekeeping.sync()
            disk.exhaust(left_bytes=4 * MIB)
            for ino in AFTER:
                assert await read(worker, ino) == rig.data[ino]
            await worker.housekeeping.sync()
            await worker.housekeeping.sync()  # the kernel tells of a loss only once
            wrong = [ino for ino, data in published(rig, AFTER).items() if data != rig.data[ino]]
            assert not wrong, f"{len(wrong)} files are published and damaged"
            assert "lost bytes" in caplog.text
            if not worker.inside.parts.health.lost:
                await until(lambda: worker.inside.parts.health.in_service)
            for ino in (*BEFORE, *AFTER):
                assert await read(worker, ino) == rig.data[ino]
        disk.extend()
        async with rig.worker() as worker:
            for ino in (*BEFORE, *AFTER):
                assert await read(worker, ino) == rig.data[ino]
                assert rig.name(ino) in rig.published() or os.listdir(rig.tier / "files")

    caplog.set_level("INFO")
    run(script())
