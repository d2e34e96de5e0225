"""A cache that is memory stays within the memory limit, and reads go on when that is short."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, only, read, run
from worker.fill.fill import Filler
from worker.runtime.memory import MemoryBudget

SHM = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory on tmpfs."""
    path = Path(tempfile.mkdtemp(dir=SHM))
    try:
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def test_a_cache_on_tmpfs_is_clipped_and_counted(memory: Path) -> None:
    async def script() -> None:
        rig = Rig(memory, 4096 * MIB, memory_limit_bytes=192 * MIB)
        for ino in range(1, 6):
            rig.put(ino, 40 * MIB)
        async with rig.worker() as worker:
            clipped = worker.status()["limit_bytes"]
            assert clipped == MemoryBudget(192 * MIB).clip_tier(4096 * MIB) < 192 * MIB
            readers = [read(worker, ino) for ino in range(1, 6)]
            for ino, data in enumerate(await asyncio.gather(*readers), 1):
                assert data == rig.data[ino]
            status = worker.status()
            assert status["used_bytes"] <= clipped
            assert status["memory"]["tiers_bytes"] == status["used_bytes"]
            assert status["memory"]["used_bytes"] <= 192 * MIB
            assert status["memory"]["buffers_bytes"] == status["memory"]["windows_bytes"] == 0
            assert rig.disk_bytes() <= clipped

    run(script())


@pytest.mark.parametrize("short", [False, True])
def test_windows_shrink_when_memory_is_short_and_nothing_fails(
    tmp_path: Path, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    background: list[bool] = []
    largest: list[int] = []
    claim = Filler.claim

    def watched(self: Filler, entry: object, first: int, end: int, **options: bool) -> None:
        background.append(options.get("background", False))
        largest.append(end - first)
        claim(self, entry, first, end, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Filler, "claim", watched)

    async def script() -> None:
        rig = Rig(tmp_path, 400 * MIB, memory_limit_bytes=256 * MIB)
        rig.put(1, 60 * MIB)
        async with rig.worker() as worker:
            if short:
                only(worker).context.memory.tiers_bytes = 190 * MIB  # as if others had taken it
            assert await read(worker, 1, MIB) == rig.data[1]
            await fetch(worker, NAMESPACE, 1)

    run(script())
    if short:
        assert not any(background), "nothing is fetched ahead"
        assert max(largest) == 1
    else:
        assert any(background)
        assert max(largest) == 8
