"""Reads past a full cache while clients keep all that can be lent to them: the room comes back, or
the bytes are copied, and no read fails or waits for others' files to be closed."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from cachefs.core.messages import MOST_KEPT
from tests.unit.worker.rig import MIB, Reader, Rig, ensure, only, open_reader, read, run, until
from worker.cache.cache import Cache
from worker.fill import segments

BIG = 9 * MIB  # larger than what is opened whole
LEAST_MEMORY = 128 * MIB


async def fill(rig: Rig, worker: Cache) -> None:
    """Makes the cache full: not even a page more is admitted."""
    for n in range(1000, 1064):
        await read(worker, rig.put(n, MIB))
        if only(worker).contents.ledger.free_for_files < MIB:
            return
    raise AssertionError("the cache did not become full")


async def hold_everything(rig: Rig, worker: Cache, held: list[int], first: int) -> None:
    """Takes descriptors of segments, as a client that keeps them all, until nothing can be lent."""
    reader = await open_reader(worker, rig.put(first, 40 * MIB))
    for page in range(40):
        asked = ensure(worker, reader.grant.handle, page * MIB, 10, takes_bytes=False)
        try:
            ensured, fd = await asyncio.wait_for(asked, 0.5)
        except TimeoutError:
            break
        assert fd is not None
        held.append(fd)
        assert ensured.segment
    reader.close()


def test_clients_that_keep_everything_stop_nobody(tmp_path: Path) -> None:
    """The last part of the memory for segments is never lent, so it always comes back."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=1, memory_limit_bytes=LEAST_MEMORY)
        async with rig.worker() as worker:
            await fill(rig, worker)
            held: list[int] = []
            await hold_everything(rig, worker, held, 2)
            files = [rig.put(n, BIG + n) for n in range(10, 16)]
            began = time.monotonic()
            found = await asyncio.gather(*(read(worker, n) for n in files))
            took_s = time.monotonic() - began
            for n, data in zip(files, found, strict=True):
                assert data == rig.data[n]
            assert took_s < 20.0, "54 pages, 0.1 s each at most were there no memory at all"
            only(worker).context.memory.check_invariants()
            only(worker).contents.ledger.check_invariants()
            for fd in held:
                os.close(fd)

    run(script())


def test_many_small_files_that_the_cache_refuses_may_be_open(tmp_path: Path) -> None:
    """The kernel keeps what it reads by itself until the file is closed: these files take half of
    the room at most, others are read through pages; none fails."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=2, memory_limit_bytes=LEAST_MEMORY)
        async with rig.worker() as worker:
            await fill(rig, worker)
            files = [rig.put(n, 2 * MIB + n) for n in range(10, 50)]
            readers = await asyncio.gather(*(open_reader(worker, n) for n in files))
            whole = [reader for reader in readers if reader.grant.complete]
            assert 0 < len(whole) < len(readers)
            one = only(worker)
            most_bytes = one.contents.ledger.scratch_limit_bytes // segments.WHOLE_SHARE
            assert sum(reader.grant.size for reader in whole) <= most_bytes
            for n, reader in zip(files, readers, strict=True):
                assert await reader.at(0, reader.grant.size) == rig.data[n]
            for reader in readers:
                reader.close()
            assert not one.context.counters.errors, "a file that is not opened whole is no error"

    run(script())


def test_room_is_given_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "COPY_AFTER_S", float("inf"))
    given: list[bytes] = []
    add = segments.Segments._add

    def watched(self: segments.Segments, want: Any, *where: Any) -> Any:
        given.append(want.key)
        return add(self, want, *where)

    monkeypatch.setattr(segments.Segments, "_add", watched)

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=3)
        async with rig.worker() as worker:
            await fill(rig, worker)
            held: list[int] = []
            await hold_everything(rig, worker, held, 2)

            async def first_page(n: int) -> None:
                reader = await open_reader(worker, n)
                assert await reader.at(0, 10) == rig.data[n][:10]
                reader.close()

            files = [rig.put(n, BIG) for n in range(10, 16)]
            waiting = []
            for n in files:
                waiting.append(asyncio.ensure_future(first_page(n)))
                await until(lambda n=n: worker.status()["fills_in_flight"] >= n - 9)
            given.clear()
            for fd in held:
                os.close(fd)
            await asyncio.gather(*waiting)
            expected = [rig.content(n).key for n in files]
            assert [key for key in given if key in expected] == expected

    run(script())


def test_more_readers_keep_fewer_segments_each(tmp_path: Path) -> None:
    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=4)
        async with rig.worker() as worker:
            await fill(rig, worker)
            readers: list[Reader] = []
            kept: list[int] = []
            for n in range(10, 40):
                readers.append(await open_reader(worker, rig.put(n, BIG)))
                ensured, fd = await ensure(worker, readers[-1].grant.handle, 0, 10)
                kept.append(ensured.keep)
                if fd is not None:
                    os.close(fd)
            assert kept[0] == MOST_KEPT
            assert kept == sorted(kept, reverse=True)
            assert 1 in kept
            assert kept[-1] == 0, "each reader is given the part that it asked for"
            for reader in readers[1:]:
                reader.close()
            ensured, fd = await ensure(worker, readers[0].grant.handle, 3 * MIB, 10)
            assert ensured.keep == MOST_KEPT, "those that are closed take no share"
            assert fd is not None
            os.close(fd)
            readers[0].close()

    run(script())


def test_an_older_client_is_lent_memory(tmp_path: Path) -> None:
    """It does not understand copies."""

    async def script() -> None:
        rig = Rig(tmp_path, 64 * MIB, seed=5)
        async with rig.worker() as worker:
            await fill(rig, worker)
            reader = await open_reader(worker, rig.put(2, 40 * MIB))
            held: list[Any] = []
            for page in range(40):
                place = page * MIB + 5
                ensured, fd = await ensure(
                    worker, reader.grant.handle, place, 10, takes_bytes=False
                )
                assert not ensured.data
                assert fd is not None
                held.append(fd)
                assert os.pread(fd, 10, place - ensured.base) == rig.data[2][place : place + 10]
            reader.close()
            for fd in held:
                os.close(fd)

    run(script())
