"""Whose a content is, in tiers of which one fails."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.model import ContentId
from tests.services.loading import fetch
from tests.unit.worker.rig import MIB, NAMESPACE, run
from tests.unit.worker_tiers.rig import TiersRig


def test_a_tier_whose_disk_fails_hears_of_other_owners_later_and_the_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(errno.EIO, "the index cannot be read")

    async def script() -> None:
        rig = TiersRig(tmp_path, 48 * MIB, 400 * MIB)
        owned = {1, 2}
        rig.is_owned = lambda key, size, replicas: ContentId.parse(key.hex()).ino in owned
        rig.put(1, 30 * MIB)
        rig.put(2, 10 * MIB)
        async with rig.tiers() as tiers:
            for ino in (1, 2):
                await fetch(tiers, NAMESPACE, ino)
            assert (rig.in_tier(0), rig.in_tier(1)) == ({1}, {2})
            first, second = tiers._tiers.running
            owned.clear()
            with monkeypatch.context() as patch:
                patch.setattr(first.disk.directory.index, "scan", fails)
                await tiers.ownership_changed()
            assert (first.order.copy_count, second.order.copy_count) == (0, 1)
            await first.housekeeping.tick()
            assert first.order.copy_count == 1

    run(script())
