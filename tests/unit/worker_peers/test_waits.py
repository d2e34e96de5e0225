"""A peer waits for what this node's readers wait for by the same view, and for nothing else that
other nodes have to bring first: so no two nodes wait for each other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import Unreachable
from cachefs.core.model import Origin
from connectors.fetch.request import RangeRequest
from tests.unit.worker.rig import MIB, Rig, open_reader, run
from worker.fill.source import NO_EPOCH, NotHere, OriginBody, OriginSource, Purpose, SourceBody

EPOCH = 5


class OfPeers:
    """A source in which readers wait for peers, who take as long as the test says."""

    def __init__(self, rig: Rig) -> None:
        self.then = OriginSource(lambda namespace, ufs: rig.origin)
        self.epoch: int | None = EPOCH
        self.go_on = threading.Event()
        self.asked: list[Purpose] = []

    def waits_for_peers(self, origin: Origin, offset: int) -> int | None:
        return self.epoch

    def has_stand_in(self, origin: Origin, offset: int) -> bool:
        return False

    def ask(self, origin: Origin, offset: int, size: int) -> RangeRequest | None:
        return None

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        self.asked.append(purpose)
        return _Slow(self.then.read(origin, offset, size, purpose), self.go_on)


class _Slow(OriginBody):
    def __init__(self, body: SourceBody, go_on: threading.Event) -> None:
        super().__init__(body)
        self._go_on = go_on

    def __iter__(self) -> Iterator[memoryview]:
        assert self._go_on.wait(20)
        return super().__iter__()


@pytest.mark.parametrize("size", [MIB, 30 * MIB])
def test_a_peer_waits_for_a_reader_s_fill_only_by_the_same_view(tmp_path: Path, size: int) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        origin = rig.space.origins[rig.put(1, size)]
        source = OfPeers(rig)
        async with rig.worker(source) as worker:
            reading = asyncio.ensure_future(first_bytes(rig, worker))
            while not source.asked:
                await asyncio.sleep(0.001)
            for epoch in (EPOCH - 1, EPOCH + 1):
                with pytest.raises(NotHere):
                    await worker.serving.provide(origin, 0, 1, epoch)
            waiting = asyncio.ensure_future(worker.serving.provide(origin, 0, 1, EPOCH))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            source.go_on.set()
            pages = await waiting
            assert pages.first == 0
            pages.close()
            assert await reading == rig.data[1][:100]
            assert Purpose.SERVE not in source.asked

    run(script())


async def first_bytes(rig: Rig, worker: object) -> bytes:
    reader = await open_reader(worker, 1)  # type: ignore[arg-type]
    try:
        return await reader.at(0, 100)
    finally:
        reader.close()


def test_a_peer_waits_for_what_the_first_owner_s_readers_bring(tmp_path: Path) -> None:
    """Whatever the view: it waits for nobody itself."""

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        origin = rig.space.origins[rig.put(1, MIB)]
        source = OfPeers(rig)
        source.epoch = None
        async with rig.worker(source) as worker:
            reading = asyncio.ensure_future(first_bytes(rig, worker))
            while not source.asked:
                await asyncio.sleep(0.001)
            waiting = asyncio.ensure_future(worker.serving.provide(origin, 0, 1, EPOCH + 1))
            source.go_on.set()
            (await waiting).close()
            await reading
            assert source.asked == [Purpose.SERVE], "once, and it asks nobody who would ask others"

    run(script())


class CutOff(OfPeers):
    """An owner's source: its first request waits, then finds the way to the origin cut."""

    epoch: int | None

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        if purpose is Purpose.CUT_OFF:
            return super().read(origin, offset, size, purpose)
        self.asked.append(purpose)
        assert self.found_out.wait(20)
        raise Unreachable("no way")

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.epoch = None
        self.found_out = threading.Event()


@pytest.mark.parametrize("size", [MIB, 30 * MIB])
def test_no_peer_waits_for_an_owner_s_fill_that_asks_peers(tmp_path: Path, size: int) -> None:
    """Nor does one that waited for the same fill before. Its readers get the bytes."""

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        origin = rig.space.origins[rig.put(1, size)]
        source = CutOff(rig)
        async with rig.worker(source) as worker:
            reading = asyncio.ensure_future(first_bytes(rig, worker))
            while not source.asked:
                await asyncio.sleep(0.001)
            waiting = asyncio.ensure_future(worker.serving.provide(origin, 0, 1, EPOCH))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            source.epoch = NO_EPOCH
            source.found_out.set()
            for peer in (waiting, worker.serving.provide(origin, 0, 1, EPOCH)):
                with pytest.raises(NotHere):
                    await asyncio.wait_for(peer, 10.0)
            assert not reading.done()
            source.go_on.set()
            assert await reading == rig.data[1][:100]
            assert set(source.asked) == {Purpose.SERVE, Purpose.CUT_OFF}

    run(script())
