"""Far more readers than the room for segments is large enough for: each is given the bytes that it
asked for, which come from the origin once and leave when it has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.errors import CacheFSError, Interrupted
from cachefs.core.messages import COPY_BYTES
from tests.unit.worker.rig import MIB, Reader, Rig, ensure, only, open_reader, run, until
from worker.cache.cache import Cache
from worker.fill import segments
from worker.fill.segments import Segments
from worker.fill.source import NotHere, OriginSource
from worker.tier.admission import Admission

KIB = 1 << 10
STEP = 256 * KIB
BIG = 9 * MIB  # larger than what is opened whole
LEAST_MEMORY = 128 * MIB


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache takes nothing, and few readers are a crowd."""

    async def reserve(*_: Any) -> bool:
        return False

    monkeypatch.setattr(Admission, "reserve", reserve)
    monkeypatch.setattr(Admission, "reserve_nowait", lambda *_, **__: False)
    monkeypatch.setattr(Admission, "may_fit", lambda *_: False)
    monkeypatch.setattr(Segments, "are_crowded", True)


def held_bytes(worker: Cache) -> int:
    one = only(worker)
    return one.context.memory.segments_bytes + one.contents.ledger.scratch_bytes


def origin_bytes(worker: Cache) -> int:
    return only(worker).context.counters.origin_bytes


def test_readers_of_files_of_their_own_fetch_each_byte_once(tmp_path: Path) -> None:
    """Each comes back for the next 256 KiB when all others had theirs."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=1)
        async with rig.worker() as worker:
            inos = [rig.put(ino, BIG + ino) for ino in range(1, 21)]
            readers = [await open_reader(worker, ino) for ino in inos]
            for offset in range(0, 2 * MIB, STEP):
                found = await asyncio.gather(*(one.at(offset, STEP) for one in readers))
                assert found == [rig.data[ino][offset : offset + STEP] for ino in inos]
            await until(lambda: not only(worker)._filler._pieces)
            assert origin_bytes(worker) == len(inos) * 2 * MIB
            for one in readers:
                one.close()
            await until(lambda: not held_bytes(worker))

    run(script())


def test_a_part_may_lie_in_two_pages_and_end_with_the_file(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=2)
        async with rig.worker() as worker:
            reader = await open_reader(worker, rig.put(1, BIG + 5))
            for offset, size, length in (
                (MIB - 100, 512 * KIB, 512 * KIB),
                (3 * MIB + 7, 10, COPY_BYTES),  # readers of little mostly go on
                (4 * MIB, 8 * MIB, MIB),
                (BIG - 3, 512 * KIB, 8),
            ):
                ensured, fd = await ensure(worker, reader.grant.handle, offset, size)
                assert fd is not None
                assert (ensured.start, ensured.end, ensured.keep) == (offset, offset + length, 0)
                assert (
                    os.pread(fd, 2 * MIB, offset - ensured.base)
                    == (rig.data[1][offset : offset + length])
                )
                os.close(fd)
            reader.close()

    run(script())


def test_a_part_whose_reader_has_gone_leaves(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=3)
        async with rig.worker() as worker:
            reader = await open_reader(worker, rig.put(1, BIG))
            cancelled = 0
            for turns in range(12):
                asked = asyncio.ensure_future(worker.ensure(reader.grant.handle, 0, STEP))
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled += asked.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    _, fd = await asked
                    assert fd is not None
                    os.close(fd)
            assert cancelled
            await until(lambda: not only(worker)._filler._pieces and not held_bytes(worker))
            assert await reader.at(0, 10) == rig.data[1][:10]
            reader.close()

    run(script())


def test_errors_of_the_origin_are_told(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=4)
        async with rig.worker() as worker:
            reader = await open_reader(worker, rig.put(1, BIG))
            rig.origin.put(b"dir/1", bytes(BIG))  # another version
            with pytest.raises(CacheFSError) as caught:
                await reader.at(0, STEP)
            assert caught.value.code == "stale"
            await until(lambda: not only(worker)._filler._pieces and not held_bytes(worker))
            reader.close()

    run(script())


def test_readers_are_copied_what_cannot_be_lent(tmp_path: Path) -> None:
    """A client that was stopped keeps all descriptors that it was sent."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=5, memory_limit_bytes=LEAST_MEMORY)
        async with rig.worker() as worker:
            stopped = await open_reader(worker, rig.put(1, 64 * MIB))
            kept: list[int] = []
            for page in range(64):
                ensured, fd = await ensure(worker, stopped.grant.handle, page * MIB, MIB)
                if fd is None:
                    break
                kept.append(fd)
            assert len(ensured.data) == COPY_BYTES
            reader: Reader = await open_reader(worker, rig.put(2, BIG))
            assert await reader.at(0, 2 * MIB) == rig.data[2][: 2 * MIB]
            assert (reader.copies, reader.segments) == (2 * MIB // COPY_BYTES, 0), len(kept)
            await until(lambda: not only(worker)._filler._pieces)
            assert origin_bytes(worker) == len(kept) * MIB + COPY_BYTES + 2 * MIB
            for fd in kept:
                os.close(fd)
            await until(lambda: not held_bytes(worker))
            assert await reader.at(0, MIB) == rig.data[2][:MIB]
            assert reader.segments == 1
            for one in (stopped, reader):
                one.close()

    run(script())


class BrokenOff(OriginSource):
    """Brings the first page of the first body, and then knows nobody who has the next one."""

    asked = 0

    def read(self, *args: Any) -> Any:
        """See `Source`."""
        self.asked += 1
        body = super().read(*args)
        return body if self.asked > 1 else FirstBytes(body, 100)


class FirstBytes:
    """So many bytes of a body."""

    from_peer = False
    checksum = None

    def __init__(self, body: Any, size_bytes: int) -> None:
        self.close = body.close
        self._body = body
        self._size_bytes = size_bytes

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(next(iter(self._body)))[: self._size_bytes]
        raise NotHere("nobody has the rest")


def test_a_part_that_broke_off_is_brought_again(tmp_path: Path) -> None:
    """Its first page is whole, and its reader waits for both."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=6)
        source = BrokenOff(lambda *_: rig.origin)
        async with rig.worker(source) as worker:
            reader = await open_reader(worker, rig.put(1, BIG))
            assert await reader.at(MIB - 100, STEP) == rig.data[1][MIB - 100 :][:STEP]
            assert source.asked == 2
            reader.close()
            await until(lambda: not held_bytes(worker))

    run(script())


class Stuck(OriginSource):
    """Brings the first page, and then nothing until it is closed."""

    def read(self, *args: Any) -> Any:
        """See `Source`."""
        return StuckBytes(super().read(*args), 100)


class StuckBytes(FirstBytes):
    def __init__(self, body: Any, size_bytes: int) -> None:
        super().__init__(body, size_bytes)
        self._closed = threading.Event()
        self.close = self._closed.set

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(next(iter(self._body)))[: self._size_bytes]
        self._closed.wait()
        raise Interrupted("it was closed")


def test_a_worker_that_closes_gives_no_part_of_a_part(tmp_path: Path) -> None:
    """The reader is told, and no fill begins any more."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=8)
        async with rig.worker(Stuck(lambda *_: rig.origin)) as worker:
            reader = await open_reader(worker, rig.put(1, BIG))
            asked = asyncio.ensure_future(ensure(worker, reader.grant.handle, MIB - 100, STEP))
            await until(lambda: any(one.ready_end == 1 for one in only(worker)._segments._all()))
            await worker.close()
            with pytest.raises(Interrupted):
                await asked

    run(script())


def test_parts_that_clients_keep_take_a_bounded_number_of_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are copied then."""
    monkeypatch.setattr(segments, "MOST_SEGMENTS", 5)

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=7)
        async with rig.worker() as worker:
            reader = await open_reader(worker, rig.put(1, BIG))
            found = [await ensure(worker, reader.grant.handle, at * STEP, STEP) for at in range(8)]
            kept = [fd for _, fd in found if fd is not None]
            assert len(kept) == 5
            assert [len(ensured.data) for ensured, _ in found[5:]] == 3 * [COPY_BYTES]
            for fd in kept:
                os.close(fd)
            await until(lambda: not held_bytes(worker))
            assert await reader.at(0, STEP) == rig.data[1][:STEP]
            assert reader.segments == 1
            reader.close()

    run(script())
