"""Views over a real master and a real cache: what covers show is what the mount shows."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.integration.views_rig import MIB, KeptOrigin, node
from tests.unit.worker.rig import descriptors

LIMIT_S = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    before = descriptors()
    asyncio.run(bounded())
    assert not descriptors() - before


def origin_with(count: int = 20) -> KeptOrigin:
    origin = KeptOrigin()
    for number in range(count):
        origin.put(b"train/c%d/f%d" % (number % 3, number), b"%d " % number * 1000)
    origin.put(b"train/empty", b"")
    origin.put(b"train/\xff odd\n", b"odd", mode=0o600)
    origin.mkdir(b"train/no files")
    origin.symlink(b"train/link", b"c0/f0")
    origin.put(b"train/big", bytes(range(256)) * 4 * 5000)
    origin.put(b"other/file", b"x" * 100)
    return origin


def test_a_frozen_directory_is_covered_and_thawed(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            mount = await one.mount()
            status = await one.freeze(b"train")
            assert (status.state, status.files, status.covers) == ("covered", 23, 1), status
            assert mount.trees() == {b"train": await one.expected(b"train")}
            one.check()
            await one.views.thaw(one.namespace, b"train")
            assert not mount.covers
            assert one.views.table(one.namespace).views == []
            assert one.tier.contents.order.held_count in (0, 22)  # what was loaded for it

    run(script())


def test_after_a_sync_no_cover_shows_the_old_names(tmp_path: Path) -> None:
    async def script() -> None:
        origin = origin_with()
        async with node(tmp_path, origin) as one:
            mount = await one.mount()
            await one.freeze(b"train")
            for change in range(3):
                origin.put(b"train/c0/f0", b"new %d" % change)
                origin.put(b"train/new%d/f" % change, b"n" * MIB)
                origin.delete(b"train/c1/f%d" % (1 + 3 * change))
                await one.sync(b"train")
                assert not mount.covers
                await one.covered(b"train")
                assert mount.trees() == {b"train": await one.expected(b"train")}
                one.check()

    run(script())
