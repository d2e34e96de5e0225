"""Segments come back: the room and the places of what was read past the cache are free again."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import NoSpace
from tests.unit.worker.rig import MIB, Rig, only, open_reader, read, run, until
from worker.cache import tier as tier_module
from worker.cache.cache import Cache
from worker.fill import segments
from worker.fill.segment import memory_file
from worker.store.directory import TierDirectory
from worker.store.filesystem import is_unused, reopen
from worker.tier.admission import Admission

FULL_S = 3600.0
SMALL = 100 << 10


def fill_disk(worker: Cache) -> None:
    """The disk takes nothing for the rest of the test."""
    one = only(worker)
    full = OSError(errno.ENOSPC, "No space left on device")
    one.disk.health.fault(full, one.context.clocks.monotonic() + FULL_S)


class HangingScratch:
    """The disk, which hangs when a scratch file is made, until `answer` is set."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.calls = 0  # but for probes
        self._real = TierDirectory.scratch_file

    def scratch_file(self, tier: TierDirectory, size_bytes: int) -> int:
        self.calls += size_bytes >= MIB
        assert self.answer.wait(60)
        return self._real(tier, size_bytes)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingScratch]:
    made = HangingScratch()
    monkeypatch.setattr(
        TierDirectory, "scratch_file", lambda tier, size: made.scratch_file(tier, size)
    )
    yield made
    made.answer.set()


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache takes nothing: everything goes into segments."""

    async def reserve(*_: Any) -> bool:
        return False

    monkeypatch.setattr(Admission, "reserve", reserve)
    monkeypatch.setattr(Admission, "reserve_nowait", lambda *_, **__: False)


def test_the_kernel_tells_whether_a_lent_file_in_memory_is_in_use() -> None:
    fd = memory_file(MIB)
    try:
        assert is_unused(fd)
        lent = reopen(fd)
        assert not is_unused(fd)
        os.close(lent)
        assert is_unused(fd)
    finally:
        os.close(fd)


def test_lent_segments_in_memory_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-full-cache] Each of many files is read once and closed while the disk is full."""
    monkeypatch.setattr(segments, "MOST_SEGMENTS", 8)

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, origin_deadline_s=2.0)
        async with rig.worker() as worker:
            fill_disk(worker)
            for ino in range(1, 41):
                rig.put(ino, SMALL)
                assert await read(worker, ino) == rig.data[ino]
            assert worker.status()["tiers"][0]["segments"] <= 8
            assert only(worker).context.memory.segments_bytes <= 8 * MIB

    run(script())


@pytest.mark.usefixtures("refusing")
def test_a_read_does_not_fail_with_the_open_of_another_reader(tmp_path: Path) -> None:
    """[S-full-cache] Where all of a small file finds no room, its open goes on by pages, and so
    does a read that waits for the same page."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        async with rig.worker() as worker:
            readers = []
            while not readers or readers[-1].grant.complete:  # the last one finds no room
                ino = rig.put(len(readers) + 1, 2 * MIB)
                readers.append(await open_reader(worker, ino))
            again = asyncio.create_task(open_reader(worker, ino))
            await until(lambda: any(one.inflight for one in only(worker)._catalog.entries()))
            assert await readers[-1].at(0, 4096) == rig.data[ino][:4096]
            readers.append(await again)
            assert not readers[-1].grant.complete
            for reader in readers:
                reader.close()

    run(script())


@pytest.mark.usefixtures("refusing")
def test_fills_that_hang_with_the_disk_keep_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: HangingScratch
) -> None:
    """Two fills hang, and two wait for their places; the disk is left then."""
    monkeypatch.setattr(segments, "MOST_FILLING", 2)
    # The tier is out of service at its end, and its threads need longer on a busy machine.
    monkeypatch.setattr(tier_module, "HANGING_WAIT_S", tier_module.CLOSE_WAIT_S)

    async def script() -> None:
        rig = Rig(tmp_path, 256 * MIB)
        async with rig.worker() as worker:
            inos = [rig.put(ino, 9 * MIB) for ino in range(1, 5)]
            reads = [asyncio.create_task(read(worker, ino)) for ino in inos]
            await until(lambda: only(worker)._segments._filling == 2 <= hanging.calls)
            await until(only(worker)._segments._turn.locked)
            only(worker)._watch.withdraw()
            calls = hanging.calls
            async with asyncio.timeout(20):
                assert await asyncio.gather(*reads) == [rig.data[ino] for ino in inos]
            assert hanging.calls == calls, "those that waited for a place leave the disk alone"
            hanging.answer.set()
            await until(lambda: not only(worker)._filler._running)
            assert only(worker)._segments._filling == 0

    run(script())


@pytest.mark.usefixtures("refusing")
def test_fills_that_wait_for_their_turn_hold_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: HangingScratch
) -> None:
    monkeypatch.setattr(segments, "MOST_FILLING", 2)

    async def script() -> None:
        rig = Rig(tmp_path, 256 * MIB)
        async with rig.worker() as worker:
            memory, running = only(worker).context.memory, only(worker)._filler._running
            reads = [asyncio.create_task(read(worker, rig.put(ino, 9 * MIB))) for ino in range(6)]
            await until(
                lambda: (
                    only(worker)._segments._filling == 2 and len(only(worker)._filler._pieces) >= 6
                )
            )
            in_flight = sum(min(piece.size_bytes, 2 * MIB) for piece in running.values())
            assert memory.buffers_bytes + memory.windows_bytes == in_flight
            assert len(running) < len(only(worker)._filler._pieces)
            hanging.answer.set()
            await asyncio.gather(*reads)
            await until(lambda: not only(worker)._filler._pieces)
            assert memory.buffers_bytes == memory.windows_bytes == 0

    run(script())


def test_copies_that_nobody_reads_any_more_leave_the_memory(tmp_path: Path) -> None:
    """Other tiers of the process share it."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB)
        async with rig.worker() as worker:
            fill_disk(worker)
            one, held = only(worker), only(worker)._segments
            made = [
                await held.make(bytes([n]) * 36, MIB, (0, 1), wait_s=1.0, in_memory=True)
                for n in range(3)
            ]
            idle, fresh, filling = made
            for segment in (idle, fresh):
                segment.fd, segment.ready_end = memory_file(MIB), 1
                held.filled(segment)
            for segment in (idle, filling):
                segment.used_at_s -= 2 * segments.FRESH_S
            only(worker)._watch.look()
            assert [segment.dropped for segment in made] == [True, False, False]
            assert one.context.memory.segments_bytes == 2 * MIB
            held.filled(filling)

    run(script())


def test_what_took_long_to_come_is_fresh_when_it_has_come(tmp_path: Path) -> None:
    """What is read ahead from a slow origin stays until its reader gets to it, in memory and in the
    scratch area, also while others want its room."""

    async def script() -> None:
        async with Rig(tmp_path, 64 * MIB).worker() as worker:
            one, held = only(worker), only(worker)._segments
            memory, scratch = [
                await held.make(bytes([n]) * 36, MIB, (0, 1), wait_s=0.0, in_memory=n == 0)
                for n in range(2)
            ]
            for segment in (memory, scratch):
                segment.fd, segment.ready_end = memory_file(MIB), 1
                segment.used_at_s -= 2 * segments.FRESH_S
                held.filled(segment)
            one._watch.look()
            full_bytes = one.contents.ledger.free_for_scratch
            assert one.contents.take_scratch(full_bytes)
            with pytest.raises(NoSpace):
                await held.make(b"other" * 7 + b"!", MIB, (0, 1), wait_s=0.0)
            assert not memory.dropped
            assert not scratch.dropped
            one.contents.free_scratch(full_bytes)

    run(script())


def test_files_in_memory_are_closed_behind_no_fetch(tmp_path: Path) -> None:
    async def script() -> None:
        async with Rig(tmp_path, 64 * MIB).worker(fetch_threads=1) as worker:
            one, busy = only(worker), threading.Event()
            fetch = only(worker)._supply.fetchers.threads.run(busy.wait, 60)
            fd = memory_file(MIB)
            one.disk.close_memory(fd)
            try:
                await until(lambda: not os.path.exists(f"/proc/self/fd/{fd}"))
            finally:
                busy.set()
            await fetch

    run(script())
