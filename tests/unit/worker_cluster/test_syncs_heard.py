"""Who asks a node whether a sync ended hears so when the node has heard what it changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.model import ROOT_INO
from cachefs.core.syncs import SyncStatus
from tests.unit.worker_cluster.fake_master import FakeMaster, file, run, until
from worker.names import jobs
from worker.names.namespace import RemoteNamespace


class SyncingMaster(FakeMaster):
    """A sync that ended, and changed all that is in its events."""

    async def answer(self, body: Any) -> Any:
        if isinstance(body, m.GetSync):
            return m.SyncReply(SyncStatus(5, "done", b"", seq=self.seq))
        return await super().answer(body)


def test_the_end_of_a_sync_is_told_when_its_changes_were_heard() -> None:
    async def script() -> None:
        master = SyncingMaster()
        master.put(ROOT_INO, b"f", file(7))
        it = await RemoteNamespace.open(master)
        await it.lookup(ROOT_INO, b"f")
        await until(lambda: master.count(c.GetEvents) > 0)
        master.held.add(c.GetEvents)
        master.change(ROOT_INO, b"f", file(8))
        asked = asyncio.ensure_future(it.sync(5, 0, stop=False))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not asked.done()
        known = it.lookup_nowait(ROOT_INO, b"f")
        assert known is not None
        assert known.inode == file(7)
        master.free()
        assert (await asked).sync.state == "done"
        assert it.lookup_nowait(ROOT_INO, b"f") is None, "asked for anew"
        assert (await it.lookup(ROOT_INO, b"f")).inode == file(8)
        await it.close()

    run(script())


def test_a_node_that_hears_nothing_does_not_keep_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "HEAR_S", 0.01)

    async def script() -> None:
        master = SyncingMaster()
        it = await RemoteNamespace.open(master)
        await until(lambda: master.count(c.GetEvents) > 0)
        master.held.add(c.GetEvents)
        master.change(ROOT_INO, b"f", file(8))
        assert (await it.sync(5, 0, stop=False)).sync.state == "done"
        master.free()
        await it.close()

    run(script())
