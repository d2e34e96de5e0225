"""Whoever needs room in the cache waits for it for a moment only, whatever is asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from cachefs.core.model import ContentId
from cachefs.core.services import Permission
from tests.unit.worker.rig import MIB, Namespace, Rig, read, recorded, run
from worker.tier import admission as space

ANSWER_S = 0.1
MOST_ROUNDS = 10  # of 64: it ends after 0.4 s


class SlowNamespace(Namespace):
    """Protects everything, and takes its time to say so."""

    async def permit_eviction(self, contents: Sequence[ContentId]) -> Permission:
        await asyncio.sleep(ANSWER_S)
        self.asked.append([content.name for content in contents])
        return Permission(frozenset(), self.valid_for_s)


def test_an_eviction_that_finds_little_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is asked again and again for what may go, and nothing may."""
    monkeypatch.setattr(space, "BATCH_FILES", 1)

    async def script() -> None:
        rig = Rig(tmp_path, 16 * MIB, seed=1, admission="always")
        rig.space = SlowNamespace()
        async with rig.worker() as worker:
            for ino in range(1, 81):
                await read(worker, rig.put(ino, 100 << 10))
            assert not rig.space.asked
            await recorded(worker)
            rig.put(1000, 7 * MIB)
            assert await read(worker, 1000) == rig.data[1000]
            assert 1 <= len(rig.space.asked) < MOST_ROUNDS

    run(script())
