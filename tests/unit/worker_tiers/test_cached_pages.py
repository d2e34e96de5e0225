"""Which pages of a content are cached, where disks give no answer."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, run
from tests.unit.worker_tiers.rig import TiersRig, come_back, leave
from worker.cache.serving import CachedPages
from worker.store.index import Index


def test_pages_of_a_tier_out_of_service_are_unknown(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 30 * MIB)
        rig.put(2, 10 * MIB)
        async with rig.tiers() as tiers:
            for ino in (1, 2):
                await fetch(tiers, NAMESPACE, ino)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({1}, {2})
            keys = {ino: rig.content(ino).key for ino in (1, 2)}
            pages = tiers.serving.cached_pages
            second = tiers._tiers.running[1]
            leave(second)
            assert await pages(keys[1]) == CachedPages((1 << 30) - 1, True), "it has none of them"
            assert await pages(keys[2]) == CachedPages(0, False)
            come_back(second)
            assert await pages(keys[2]) == CachedPages((1 << 10) - 1, True)
            assert await pages(b"k" * 36) == CachedPages(0, True)

    run(script())


def test_pages_of_an_index_that_cannot_be_read_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Index, key: bytes) -> Any:
        raise OSError(errno.EIO, "the index cannot be read")

    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB)
        rig.put(1, 3 * MIB)
        async with rig.tiers() as tiers:
            await fetch(tiers, NAMESPACE, 1)
            with monkeypatch.context() as patched:
                patched.setattr(Index, "get", fails)
                assert await tiers.serving.cached_pages(rig.content(1).key) == (0, False)
            assert await tiers.serving.cached_pages(rig.content(1).key) == (0b111, True)

    run(script())


def test_a_listing_says_when_a_disk_gives_no_answer(tmp_path: Path) -> None:
    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        rig.put(1, 30 * MIB)
        rig.put(2, 10 * MIB)
        async with rig.tiers() as tiers:
            for ino in (1, 2):
                await fetch(tiers, NAMESPACE, ino)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({1}, {2})
            serving, keys = tiers.serving, {ino: rig.content(ino).key for ino in (1, 2)}
            second = tiers._tiers.running[1]
            leave(second)
            with pytest.raises(OSError, match="does not answer"):
                await serving.holdings(b"", 10)
            found = await serving.holdings(b"", 10, leaves_out_silent=True)
            assert [one.key for one in found] == [keys[1]]
            assert await serving.bits(keys[1]) == (1 << 30) - 1
            with pytest.raises(OSError, match="does not answer"):
                await serving.bits(keys[2])
            come_back(second)
            assert [one.key for one in await serving.holdings(b"", 10)] == sorted(keys.values())

    run(script())
