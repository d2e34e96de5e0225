"""Transfers that bring nothing: their pages fail while the thread is still in the request, and the
next reader's request is a new one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.core.errors import Unreachable
from cachefs.core.model import PAGE_BYTES, Origin
from connectors.memory import MemoryConnector
from connectors.until import NEVER_S, until
from tests.unit.worker import rig
from tests.unit.worker.rig import Rig, run
from worker.source import OriginBody, OriginSource, Purpose, SourceBody
from worker.stalls import GRACE_S, PAGE_LIMIT_S, give_up_stalled
from worker.transfer import Transfer
from worker.worker import Worker

DEADLINE_S = 5.0


class Stalling(OriginSource):
    """The first body waits for `go_on`, even when it is closed."""

    def __init__(self, origin: MemoryConnector) -> None:
        super().__init__(lambda namespace, key: origin)
        self.go_on = threading.Event()
        self.stalled = threading.Event()
        self.until_s: list[float] = []

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        self.until_s.append(until())
        body = super().read(origin, offset, size, purpose)
        return body if self.stalled.is_set() else OriginBody(_Slow(body, self))


class _Slow:
    def __init__(self, body: SourceBody, source: Stalling) -> None:
        self._body = body
        self._source = source

    def __iter__(self) -> Iterator[memoryview]:
        self._source.stalled.set()
        assert self._source.go_on.wait(60)
        yield from self._body

    def close(self) -> None:
        self._body.close()


@pytest.mark.parametrize("is_small", [False, True])
def test_pages_that_do_not_come_fail_and_are_asked_for_anew(tmp_path: Path, is_small: bool) -> None:
    made = Rig(tmp_path, 64 << 20, origin_deadline_s=DEADLINE_S)
    ino = made.put(1, 300_000 if is_small else 6 * PAGE_BYTES)
    source = Stalling(made.origin)

    async def script() -> None:
        async with made.worker(source) as worker:
            reading = asyncio.create_task(rig.read(worker, ino))
            await rig.until(source.stalled.is_set)
            _look(worker, PAGE_LIMIT_S)
            await asyncio.sleep(0)
            assert not reading.done()  # too early
            _look(worker, PAGE_LIMIT_S + 2 * GRACE_S)
            with pytest.raises(Unreachable):
                await reading
            assert await rig.read(worker, ino) == made.data[ino]
            source.go_on.set()

    try:
        run(script())
    finally:
        source.go_on.set()
    now = time.monotonic()
    assert all(one < now + DEADLINE_S for one in source.until_s)
    assert until() == NEVER_S


def test_a_cut_does_not_wait_for_the_body_to_close(tmp_path: Path) -> None:
    made = Rig(tmp_path, 64 << 20)
    ino = made.put(1, 300_000)
    source = _Holding(made.origin)
    transfer = Transfer(made.space.origins[ino], 0, 1, 0, lambda page, checksum: None)
    ended: list[BaseException] = []

    def work() -> None:
        try:
            transfer.run(source, -1)
        except Unreachable as err:
            ended.append(err)

    running = threading.Thread(target=work, daemon=True)
    running.start()
    assert source.stalled.wait(60)
    cutting = threading.Thread(target=transfer.cut, args=(Unreachable("silent"),), daemon=True)
    cutting.start()
    cutting.join(10)
    try:
        assert not cutting.is_alive()
    finally:
        source.go_on.set()
    running.join(60)
    assert [error.cause for error in ended if isinstance(error, Unreachable)] == ["silent"]


class _Holding(Stalling):
    """A body whose close waits for `go_on`, too."""

    def read(
        self, origin: Origin, offset: int, size: int, purpose: Purpose = Purpose.READ
    ) -> SourceBody:
        return OriginBody(_Held(super().read(origin, offset, size, purpose), self))


class _Held(_Slow):
    def close(self) -> None:
        assert self._source.go_on.wait(60)
        super().close()


def _look(worker: Worker, later_s: float) -> None:
    """Looks at what stalls, as at a later time."""
    give_up_stalled(worker._filler._running, DEADLINE_S, time.monotonic() + later_s)
